"""Cases of the op matrix whose operands hold the special values of their dtypes.

Elementwise ops get every pair of values over two operands. Other ops get operands of their samples'
shapes with special values in some places. Operands of another dtype than the first float (indices,
conditions) stay as in the sample.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from tcc.errors import TccError
from tcc.ir.graph import carrier
from tcc.ir.index import Index, const
from tcc.ir.narrow import decode
from tcc.ir.op import OpSpec, Tolerance, Trait
from tcc.ir.types import (
    DTYPES,
    F32,
    F64,
    I32,
    I64,
    DType,
    DTypeKind,
    TensorType,
    dtype_of,
    integer_limits,
    tensor,
)
from tcc.ops import collective
from tcc.ops.composite import linalg

from tests.ops.samples import Sample, samples_of

from . import tolerance
from .cases import Array, Case, check

# Bodies and lists have separate tests; other ops name sizes, or allocate by values. The sign of a
# zero from an extremum of both zeros is open, as in ONNX.
_POOLS = ("max_pool", "max_roi_pool")
EITHER_ZERO = ("relu", "clip", "max", "min", "reduce_max", "reduce_min", *_POOLS)
# Numbers of the operands that hold values. Other operands of the op are coordinates, which must
# be numbers.
VALUES = {
    "grid_sample": (0,),
    "roi_align": (0,),
    "max_roi_pool": (0,),
    "non_max_suppression": (1,),
    "quantize_linear": (0,),
    # Zeros around the image, which make NaN of infinite weights, are optional.
    "conv_transpose": (0, 2),
}
# The results for infinities and NaN depend on an open order of sums, or on skipped zero factors.
UNORDERED = ("det", "dft", "roi_align", "resize", "dynamic_quantize_linear")
_SIZES = (
    "expression", "guarded", "range", "bind_size", "broadcast_size",
    "name_size", "require", "check_indices",
)  # fmt: skip
# A matrix with special values has no decomposition.
_MATRICES = tuple(op.name for op in linalg.OPS if op.name != "det")
# The collective ops need ranks.
LEFT_OUT = (*_SIZES, *_MATRICES, *(op.name for op in collective.OPS))
TAIL = 67  # Elements beyond whole vectors.
MOST_SAMPLES = 4

_NEAR = (0.5, 1.0, 1.5, 2.5, 3.0, 7.0, 100.0, 127.5, 128.5, 255.5, 256.0, 1 / 3, 1e-3, np.pi / 2)
_BOUNDS = (88.7, 104.0, 2049.0, 32767.5, 65504.0, 65520.0, 2.0**24 + 2, 2.0**31, 2.0**32, 2.0**63)
_TINY = {"f16": (2.0**-24, 2.0**-14), "bf16": (2.0**-133, 2.0**-126), "f32": (2.0**-149, 2.0**-126)}


@cache
def values(dtype: DType) -> Array:
    """Returns the special values of a dtype, unique except for NaN; all values of a narrow
    dtype."""
    if dtype.kind is DTypeKind.BOOL:
        return np.array([False, True])
    if dtype.is_narrow:
        return decode(np.arange(1 << dtype.bits, dtype=np.uint8), dtype)
    if dtype.is_integer:
        low, high = integer_limits(dtype)
        plain = (0, 1, -1, 2, -2, 3, -3, 7, dtype.bits - 1, dtype.bits, dtype.bits + 1, 100)
        ends = (low, low + 1, high - 1, high, high // 2 + 1)
        return np.array([v for v in (*plain, *ends) if low <= v <= high], dtype.carrier)
    least, normal = _TINY.get(dtype.name, (2.0**-1074, 2.0**-1022))
    sizes = np.array((*_NEAR, *_BOUNDS, least, 3 * least, normal - least, normal, np.inf))
    with np.errstate(over="ignore"):
        both = carrier(np.concatenate([sizes, -sizes, [0.0, -0.0]]).astype(dtype.carrier), dtype)
    largest = _largest(dtype)
    more = np.array([largest, -largest, np.nan, -np.nan], dtype.carrier)
    return np.concatenate([np.unique(both[both != 0]), both[both == 0][-2:], more])


def _largest(dtype: DType) -> float:
    if dtype.name == "bf16":
        return 2.0**128 - 2.0**120
    return float(np.finfo(dtype.carrier).max)


@dataclass(frozen=True)
class SpecialCase(Case):
    """A case with the dtypes of its operands, which NumPy's arrays do not always tell."""

    kinds: tuple[DType | None, ...] = ()
    main: DType = F32  # The dtype of the replaced operands.

    @property
    def name(self) -> str:
        kinds = "_".join(d.name if d else "none" for d in self.kinds[:3])
        return f"{self.op.name}-{self.sample.label}-{kinds}.{self.number}"

    @property
    def operands(self) -> tuple[Array | None, ...]:
        return self.sample.inputs

    @property
    def types(self) -> tuple[TensorType | None, ...]:
        pairs = zip(self.sample.inputs, self.kinds, strict=True)
        return tuple(None if a is None or d is None else tensor(d, *a.shape) for a, d in pairs)


def special_cases(op: OpSpec) -> Iterator[SpecialCase]:
    """Yields the cases of an op, in every dtype that it takes."""
    rng = np.random.default_rng(zlib.crc32(op.name.encode()))
    number = 0
    for sample, replaced, kinds, attrs in _forms(op, rng):
        for label, operands in _fillings(op, sample, replaced, kinds, rng):
            resized = _sized(op, Sample(operands, attrs, label))
            if _takes(op, resized, kinds, attrs):
                pairs = zip(kinds, replaced, strict=True)
                main = next(d for d, r in pairs if r and d is not None)
                yield SpecialCase(op, resized, number=number, kinds=kinds, main=main)
                number += 1


def one_of(op: OpSpec, number: int) -> tuple[SpecialCase, ...]:
    """Returns one case of the op, in f32 for even numbers and any dtype for odd numbers."""
    cases = list(special_cases(op))
    if number % 2 == 0:
        cases = [c for c in cases if c.main is F32] or cases
    return (cases[number * 7 % len(cases)],) if cases else ()


def _sized(op: OpSpec, sample: Sample) -> Sample:
    """Returns the sample with the data-dependent size of its values in the attributes."""
    if not isinstance(getattr(sample.attrs, "size", None), Index):
        return sample
    with np.errstate(all="ignore"):
        first = op.reference(sample.inputs, sample.attrs)[0]
    axis = getattr(sample.attrs, "axis", None) or 0
    dim = first.shape[-1 if op.name == "non_zero" else axis]
    return dataclasses.replace(sample, attrs=dataclasses.replace(sample.attrs, size=const(dim)))


Form = tuple[Sample, tuple[bool, ...], tuple[DType | None, ...], Any]


def _forms(op: OpSpec, rng: np.random.Generator) -> Iterator[Form]:
    """Yields samples with the operands to replace, the dtypes of all operands, and attributes.

    A pointwise op has a form for each pair of dtypes and attributes; other ops have a few forms for
    each list of dtypes.
    """
    if op.name in LEFT_OUT or Trait.LISTS in op.traits:
        return
    forms_of_key: dict[Any, list[Form]] = {}
    for sample in samples_of(op, rng):
        arrays = [a for a in sample.inputs if a is not None]
        if not arrays or not all(a.size for a in arrays) or arrays[0].dtype == object:
            continue
        for replaced, kinds in _kinds(op, sample):
            for attrs in _attributes(op, sample.attrs):
                if _takes(op, sample, kinds, attrs):
                    key = (kinds, repr(attrs)) if _pointwise(op) else kinds
                    forms_of_key.setdefault(key, []).append((sample, replaced, kinds, attrs))
    most = 1 if _pointwise(op) else 2 if Trait.MOVEMENT in op.traits else MOST_SAMPLES
    for forms in forms_of_key.values():
        yield from forms[:: -(-len(forms) // most)]


def _pointwise(op: OpSpec) -> bool:
    return Trait.ELEMENTWISE in op.traits


def _kinds(op: OpSpec, sample: Sample) -> Iterator[tuple[tuple[bool, ...], tuple[Any, ...]]]:
    """Yields the operands to replace, and the dtypes of all operands then."""
    input_dtypes = [None if a is None else dtype_of(a) for a in sample.inputs]
    first = next(d for d in input_dtypes if d is not None)
    mains = [F32] if F32 in input_dtypes else []
    if not mains or (_pointwise(op) and first not in mains):
        mains.append(first)
    for main in mains:
        # Except in pointwise ops, integers after the first are indices.
        first_only = main in (I32, I64) and not _pointwise(op)
        places = VALUES.get(
            op.name, (input_dtypes.index(main),) if first_only else range(len(input_dtypes))
        )
        replaced = tuple(d is main and n in places for n, d in enumerate(input_dtypes))
        dtypes = op.dtypes if main in op.dtypes else (main,)
        for dtype in dtypes:
            # Resize weighs in f32 for any image.
            if not dtype.is_handle and (op.name, dtype) != ("resize", F64):
                flags = [first_only and not r for r in replaced]
                pairs = zip(input_dtypes, flags, strict=True)
                yield replaced, tuple(dtype if d is main and not k else d for d, k in pairs)


def _attributes(op: OpSpec, attrs: Any) -> Iterator[Any]:
    """Yields the attributes; conversions have every result dtype."""
    yield attrs
    if _pointwise(op) and getattr(attrs, "to", None) in DTYPES.values():
        for to in DTYPES.values():
            if to is not attrs.to and not to.is_handle:
                yield dataclasses.replace(attrs, to=to)


def _takes(op: OpSpec, sample: Sample, kinds: Sequence[DType | None], attrs: Any) -> bool:
    arrays = zip(sample.inputs, kinds, strict=True)
    types = [None if a is None or d is None else tensor(d, *a.shape) for a, d in arrays]
    try:
        op.infer(types, attrs)
    except (ValueError, TccError):
        return False
    return True


# ---- operands ----------------------------------------------------------------------------------

Operands = tuple[Array | None, ...]
Filling = Callable[[np.random.Generator, DType, tuple[int, ...]], Array]


def _fillings(
    op: OpSpec,
    sample: Sample,
    replaced: Sequence[bool],
    kinds: Sequence[DType | None],
    rng: np.random.Generator,
) -> Iterator[tuple[str, Operands]]:
    """Yields labels and operands."""
    dtype = next(d for d, r in zip(kinds, replaced, strict=True) if r and d is not None)
    if _pointwise(op):
        pairs = _pairs(sample, replaced, kinds, rng)
        if _takes(op, Sample(pairs, sample.attrs), kinds, sample.attrs) or op.name == "cast":
            yield "pairs", pairs
            return
        names = ("mixed", "other", "third")
    elif Trait.MOVEMENT in op.traits:
        names = ("mixed",)
    elif not dtype.is_float or dtype.is_narrow or op.tolerance is Tolerance.EXACT:
        names = ("mixed", "other", *_ROWS) if dtype.is_float else ("mixed", "other")
    else:
        names = ("nan", "infinite", "small", *_ROWS)
    if op.name in UNORDERED:
        names = ("small", "zeros")
    for name in names:
        fill = _FILLINGS.get(name, _mixed)
        if dtype.is_narrow or not dtype.is_float:
            fill = _mixed
        yield (
            name,
            tuple(
                _held(a, d) if not r or a is None or d is None else fill(rng, d, a.shape)
                for a, r, d in zip(sample.inputs, replaced, kinds, strict=True)
            ),
        )


def _held(array: Array | None, dtype: DType | None) -> Array | None:
    """Returns a coordinate in the dtype of the values."""
    if array is None or dtype is None or array.dtype.kind != "f":
        return array
    return carrier(array.astype(dtype.carrier), dtype)


def _pairs(
    sample: Sample,
    replaced: Sequence[bool],
    kinds: Sequence[DType | None],
    rng: np.random.Generator,
) -> Operands:
    """Returns vectors: all pairs of values over the first two operands, random values over the
    others."""
    lists = [
        values(d) if r and d is not None else None if a is None else np.unique(a)
        for a, r, d in zip(sample.inputs, replaced, kinds, strict=True)
    ]
    present = [n for n, v in enumerate(lists) if v is not None]
    grid: dict[int, Array] = {}
    first = lists[present[0]]
    second = lists[present[1]] if len(present) > 1 else np.zeros(1)
    assert first is not None
    assert second is not None
    a, b = np.meshgrid(np.arange(first.size), np.arange(second.size), indexing="ij")
    order = rng.permutation(a.size)
    tail = rng.integers(0, a.size, TAIL + -a.size % 64)
    order = np.concatenate([order, tail])
    grid[0], grid[1] = a.ravel()[order], b.ravel()[order]
    return tuple(
        None
        if v is None
        else v[grid[present.index(n)]]
        if present.index(n) < 2
        else rng.choice(v, order.size)
        for n, v in enumerate(lists)
    )


def _mixed(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    return np.asarray(rng.choice(values(dtype), shape))


def _sprinkled(*some: float) -> Filling:
    """Returns a filling of ordinary values, an eighth of them replaced by `some`."""

    def fill(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
        plain = rng.uniform(-2, 2, shape)
        mixed = np.where(rng.random(shape) < 0.125, rng.choice(some, shape), plain)
        return carrier(mixed.astype(dtype.carrier), dtype)

    return fill


def _whole(*some: float) -> Filling:
    """Returns a filling of `some` values only."""

    def fill(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
        return carrier(np.asarray(rng.choice(some, shape)).astype(dtype.carrier), dtype)

    return fill


_ROWS = ("minus infinity", "infinities", "zeros")
_FILLINGS: dict[str, Filling] = {
    "nan": _sprinkled(np.nan),
    "infinite": _sprinkled(np.inf, -np.inf),
    "small": _sprinkled(0.0, -0.0, 2.0**-140, -(2.0**-140)),
    "minus infinity": _whole(-np.inf),
    "infinities": _whole(np.inf, np.inf, 1.0),
    "zeros": _whole(0.0, -0.0),
}


# ---- comparison --------------------------------------------------------------------------------


def differs(case: Case, actual: tuple[Array, ...], expected: tuple[Array, ...]) -> str:
    """Returns the difference from the reference, signs of zeros included, or an empty text."""
    with np.errstate(all="ignore"):
        try:
            check(case, actual, expected, case.op.tolerance)
        except AssertionError as error:
            return first_difference(case, actual, expected) or " ".join(str(error).split())[:200]
    if case.op.tolerance is Tolerance.ACCUMULATE or case.op.name in EITHER_ZERO:
        return ""
    for a, e in zip(actual, expected, strict=True):
        if e.dtype.kind == "f":
            wrong = (a == 0) & (e == 0) & (np.signbit(a) != np.signbit(e))
            if wrong.any():
                return f"sign of zero: {_at(case, a, e, wrong)}"
    return ""


def first_difference(case: Case, actual: tuple[Array, ...], expected: tuple[Array, ...]) -> str:
    """Returns the first element that differs from the reference, with its operands if aligned."""
    types = case.op.infer(case.types, case.sample.attrs)
    for a, e, t in zip(actual, expected, types, strict=True):
        if a.shape != e.shape or t.dtype.is_handle:
            continue
        wide_a, wide_e = a.astype(np.float64), e.astype(np.float64)
        if t.dtype.is_float and case.op.tolerance is not Tolerance.EXACT:
            limit = 4 * tolerance.ulp(np.where(np.isfinite(wide_e), wide_e, 0), t.dtype)
        else:
            limit = np.zeros(wide_e.shape)
        close = np.abs(wide_a - wide_e) <= limit
        wrong = ~((a == e) | close | (np.isnan(wide_a) & np.isnan(wide_e)))
        if wrong.any():
            return _at(case, a, e, wrong)
    return ""


def _at(case: Case, actual: Array, expected: Array, wrong: Array) -> str:
    place = tuple(np.argwhere(wrong)[0])
    operands = [
        a[place] if a is not None and a.shape == expected.shape else "..."
        for a in case.sample.inputs
    ]
    of = ", ".join(str(o) for o in operands)
    return (
        f"({of}) gives {actual[place]!s}, not {expected[place]!s}"
        f" ({np.count_nonzero(wrong)} of {wrong.size})"
    )
