"""Compares the op table's functions of one float with f64 results, rounded once, on many inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tcc.ir.graph import carrier
from tcc.ir.op import OpSpec, Tolerance, Trait
from tcc.ir.types import BF16, F16, F32, DType
from tcc.ops import OPS

from tests.ops.samples import Sample, samples_of

from . import tolerance
from .cases import Array
from .special import EITHER_ZERO, SpecialCase

ROUNDED = 0.5  # The error in units of the last place of a rounded exact result.
# Larger values count as this power of two, so that infinity counts as a rounding.
_TOPS = {"f16": 2.0**16, "bf16": 2.0**128, "f32": 2.0**128}


@dataclass(frozen=True)
class Error:
    """The error of a function on many arguments.

    `units` is the largest error in units of the result's last place; for composed functions it
    counts only errors above 1e-6. `absolute` is the largest absolute error of results beyond the
    bound. `inexact` counts results that are not the nearest value. `wrong` describes an argument
    beyond the function's bound; it is empty without one.
    """

    units: float
    absolute: float
    inexact: int
    wrong: str


def unary_forms() -> Iterator[tuple[OpSpec, Sample]]:
    """Yields each op from f32 to f32 with each of its samples' attributes."""
    for op in OPS.values():
        if Trait.ELEMENTWISE not in op.traits or F32 not in op.dtypes or op.arity[0] > 1:
            continue
        texts = set()
        for sample in samples_of(op, np.random.default_rng(0)):
            arrays = [a for a in sample.inputs if a is not None]
            if len(arrays) != 1 or arrays[0].dtype != np.float32 or repr(sample.attrs) in texts:
                continue
            case = SpecialCase(op, sample, kinds=(F32,) + (None,) * (len(sample.inputs) - 1))
            if case.op.infer(case.types, sample.attrs)[0].dtype is F32:
                texts.add(repr(sample.attrs))
                yield op, sample


def cases_of(dtype: DType, x: Array, names: Sequence[str] = ("",)) -> list[SpecialCase]:
    """Returns the functions of `names` on the values `x`; an empty name selects all."""
    cases = []
    for number, (op, sample) in enumerate(unary_forms()):
        if op.name in names or "" in names:
            absent = (None,) * (len(sample.inputs) - 1)
            arguments = Sample((x, *absent), sample.attrs, sample.label)
            cases.append(
                SpecialCase(op, arguments, number=number, kinds=(dtype, *absent), main=dtype)
            )
    return cases


def all_halves(dtype: DType) -> Array:
    """Returns every value of f16 or bf16."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    if dtype is F16:
        return codes.view(np.float16)
    return (codes.astype(np.uint32) << 16).view(np.float32)


def dense_floats(count: int) -> Array:
    """Returns `count` f32 values.

    The first have as many of each exponent and sign; the rest lie near zeros, poles and limits of
    functions.
    """
    rng = np.random.default_rng(7)
    repeats = count // 1024
    heads = np.repeat(np.arange(512, dtype=np.uint32) << 23, repeats)
    patterns = (heads | rng.integers(0, 1 << 23, heads.size, dtype=np.uint32)).view(np.float32)
    share = (count - patterns.size) // 8
    turns = np.rint(rng.uniform(-1, 1, share) * 2.0 ** rng.uniform(0, 20, share)) * (np.pi / 2)
    about = rng.choice([1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0], share)
    close = about + rng.standard_normal(share) * 2.0 ** -rng.uniform(1, 24, share)
    ends = [88.722839, -87.336548, -103.97208, 89.415985, 9.0, -9.0, 3.92, -3.92]
    edge = rng.choice(ends, share) * (1 + rng.standard_normal(share) * 2.0 ** -rng.uniform(4, 24))
    ranges = [rng.uniform(-r, r, share) for r in (1.0, 4.0, 12.0, 110.0, 1e4)]
    plain = np.concatenate([turns, close, edge, *ranges]).astype(np.float32)
    return np.concatenate([patterns, plain])


def measured(case: SpecialCase, actual: Array) -> Error:
    """Returns the error of a result against the op's reference in f64."""
    (x,) = (a for a in case.sample.inputs if a is not None)
    dtype = case.main
    with np.errstate(all="ignore"):
        wide = tuple(None if a is None else a.astype(np.float64) for a in case.sample.inputs)
        (exact,) = case.op.reference(wide, case.sample.attrs)
        nearest = carrier(exact.astype(dtype.carrier if dtype is not BF16 else np.float32), dtype)
    nans = np.isnan(exact)
    bad = nans != np.isnan(actual)
    bad |= np.isinf(exact) & (actual != exact)
    if case.op.name not in EITHER_ZERO:
        bad |= (exact == 0) & (actual == 0) & (np.signbit(actual) != np.signbit(exact))
    top = _TOPS[dtype.name]
    with np.errstate(invalid="ignore"):
        values = np.clip(np.where(nans, 0, actual).astype(np.float64), -top, top)
        reference = np.clip(np.where(nans, 0, exact), -top, top)
    error = np.abs(values - reference)
    units = error / tolerance.ulp(np.clip(reference, -top * 0.75, top * 0.75), dtype)
    beyond = units > bound(case)
    counted = np.ones(units.shape, bool)
    if case.op.tolerance is Tolerance.ACTIVATION:
        counted = error > 1e-6
    bad |= beyond & counted
    text = ""
    if bad.any():
        n = int(np.argmax(bad))
        text = f"of {x[n]!s} gives {actual[n]!s}, not {exact[n]!s} ({int(bad.sum())})"
    inexact = int(np.count_nonzero(~nans & (actual != nearest)))
    limited = float(error[beyond].max(initial=0))
    return Error(float(units[counted].max(initial=0)), limited, inexact, text)


def bound(case: SpecialCase) -> float:
    """Returns the allowed error in units of the last place."""
    if case.main is F32:
        return 4.0 if case.op.tolerance is not Tolerance.EXACT else 0.0
    if case.op.tolerance is Tolerance.ACTIVATION:
        return 1.0
    # The result is computed in f32 to 4 units, then rounded.
    return ROUNDED + 4 * 2.0 ** (-13 if case.main is F16 else -16)
