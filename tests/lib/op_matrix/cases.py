"""The cases of the op matrix, and the comparison of their results: every op on each sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tcc.ir.graph import carrier
from tcc.ir.index import Index, as_int, symbol
from tcc.ir.op import OpSpec, Tolerance, Trait
from tcc.ir.types import BF16, F32, DType, TensorType, dtype_of, tensor
from tcc.ops import OPS

from tests.ops.samples import Sample, samples_of

from . import tolerance

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Case:
    """A sample of an op; `half` treats f32 operands as bf16.

    `number` distinguishes samples of equal label and type.
    """

    op: OpSpec
    sample: Sample
    half: bool = False
    number: int = 0

    @property
    def name(self) -> str:
        first = next((a for a in self.sample.inputs if a is not None), None)
        kind = "bf16" if self.half else "none" if first is None else dtype_of(first).name
        again = f".{self.number}" if self.number else ""
        return f"{self.op.name}-{self.sample.label}-{kind}{again}"

    @property
    def operands(self) -> tuple[Array | None, ...]:
        return tuple(None if a is None else carrier(a, self.dtype(a)) for a in self.sample.inputs)

    def dtype(self, array: Array) -> DType:
        dtype = dtype_of(array)
        return BF16 if self.half and dtype is F32 else dtype

    @property
    def types(self) -> tuple[TensorType | None, ...]:
        return tuple(
            None if a is None else tensor(self.dtype(a), *a.shape) for a in self.sample.inputs
        )


def cases() -> Iterator[Case]:
    for op in OPS.values():
        for sample in samples_of(op):
            yield Case(op, sample)
            floats = [a for a in sample.inputs if a is not None and a.dtype.kind == "f"]
            # The attributes of these ops contain the operands' types.
            fixed = op.name in ("expression", "guarded") or Trait.LISTS in op.traits
            if (
                BF16 in op.dtypes
                and not fixed
                and floats
                and all(a.dtype == np.float32 for a in floats)
            ):
                yield Case(op, sample, half=True)


def numbered() -> Iterator[Case]:
    counts: Counter[str] = Counter()
    for case in cases():
        yield replace(case, number=counts[case.name])
        counts[case.name] += 1


CASES = tuple(numbered())


def rows(cases: Iterable[Case]) -> dict[OpSpec, list[Case]]:
    cases_of: dict[OpSpec, list[Case]] = {}
    for case in cases:
        cases_of.setdefault(case.op, []).append(case)
    return cases_of


def each(cases: Iterable[Case]) -> Callable[[Callable[[Case], None]], Callable[..., None]]:
    """Returns a decorator that makes a test per op of a function that judges one case.

    A test per case would cost more than the cases. The test judges all cases of the op, and its
    errors name the failed cases.
    """
    parameters = [pytest.param(row, id=op.name) for op, row in rows(cases).items()]

    def over_rows(judge: Callable[[Case], None]) -> Callable[..., None]:
        @pytest.mark.parametrize("row", parameters)
        def test(row: list[Case]) -> None:
            judge_all(row, judge)

        return test

    return over_rows


def judge_all(cases: Iterable[Case], judge: Callable[[Case], None]) -> None:
    """Judges all cases; raises the errors of the failed cases with their names."""
    errors = []
    for case in cases:
        try:
            judge(case)
        except Exception as error:
            error.add_note(f"the case {case.name}")
            errors.append(error)
    if errors:
        raise ExceptionGroup("cases fail", errors)


def reference(case: Case) -> tuple[Array, ...]:
    types = case.op.infer(case.types, case.sample.attrs)
    results = case.op.reference(case.operands, case.sample.attrs)
    with np.errstate(over="ignore"):
        return tuple(carrier(r, t.dtype) for r, t in zip(results, types, strict=True))


def scale(case: Case, results: tuple[Array, ...]) -> tuple[Array, ...]:
    """Returns sums of absolute terms (the reference on absolute values), at least 1 and the
    result."""
    absolute = [np.abs(a) if a is not None and a.dtype.kind == "f" else a for a in case.operands]
    sums = case.op.reference(absolute, case.sample.attrs)
    return tuple(
        np.maximum(np.maximum(_finite(s), _finite(r)), 1.0) if s.dtype.kind == "f" else s
        for s, r in zip(sums, results, strict=True)
    )


def _finite(array: Array) -> Array:
    return np.asarray(np.where(np.isfinite(array), np.abs(array), 0)).astype(np.float64)


def length(case: Case) -> int:
    return max((a.size for a in case.sample.inputs if a is not None), default=1) + 4


def check(
    case: Case,
    actual: tuple[Array, ...],
    expected: tuple[Array, ...],
    kind: Tolerance,
    factor: float = 1.0,
) -> None:
    types = case.op.infer(case.types, case.sample.attrs)
    scales = scale(case, expected) if kind is Tolerance.ACCUMULATE else expected
    for a, e, t, s in zip(actual, expected, types, scales, strict=True):
        tolerance.check(
            a,
            e,
            t.dtype,
            lambda v, t=t, s=s: (
                factor * tolerance.bound(kind, v, t.dtype, np.asarray(s), length(case))
            ),
        )


# Attributes or rules of these ops need a fixed size.
STATIC = ("group_normalization-", "quantize_linear-block-", "dequantize_linear-block-")


def symbolic(types: tuple[TensorType | None, ...]) -> tuple[TensorType | None, ...]:
    """Returns `types` with symbols in place of dims above one; equal dims share a symbol."""

    def dim(size: Index) -> Index:
        constant = as_int(size)
        return size if constant is None or constant <= 1 else symbol(f"n{constant}", 1)

    return tuple(t and TensorType(t.dtype, tuple(map(dim, t.shape))) for t in types)


SYMBOLIC_CASES = tuple(
    c
    for c in CASES
    if c.op.traits & (Trait.ELEMENTWISE | Trait.REDUCTION)
    and not c.half
    and not c.name.startswith(STATIC)
)


def some(cases: Iterable[Case], most: int) -> tuple[Case, ...]:
    """Returns at most `most` samples of each op, evenly spread."""
    groups = rows(cases).values()
    return tuple(row[n] for row in groups for n in range(0, len(row), -(-len(row) // most)))


def fewer(cases: Iterable[Case], most: int, of_elementwise: int) -> tuple[Case, ...]:
    """Returns `some`, with only `of_elementwise` samples of each elementwise op.

    Loops, storage and bounds of elementwise kernels do not depend on the op. The choice rotates, so
    that the next op has the samples that one op leaves out.
    """
    subset: list[Case] = []
    for number, row in enumerate(rows(some(cases, most)).values()):
        plain = Trait.ELEMENTWISE in row[0].op.traits and Trait.MOVEMENT not in row[0].op.traits
        count = min(of_elementwise, len(row)) if plain else len(row)
        subset += (row[(number + n * len(row) // count) % len(row)] for n in range(count))
    return tuple(subset)


# A smaller set for slow tests; other sets with fixed sizes have all samples.
SOME_SYMBOLIC_CASES = fewer(SYMBOLIC_CASES, 5, 2)
