"""Samples of ops without an entry: elementwise ops and plain reductions.

The samples follow from the row: its arity, element types, attribute type and traits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tcc.ir.op import Array, OpSpec, Trait
from tcc.ir.types import F16, F32, F64, I32, U8, DType
from tcc.ops.algebra.reduce import ArgAttrs, ReduceAttrs

from .sampling import SPECIAL, Sample, Samples, binary_samples, draw, spread, unary_samples


def default_samples(op: OpSpec) -> Samples | None:
    """Returns the samples that follow from the row; None if the op needs an entry."""
    if op.attrs is ReduceAttrs:
        return reduction_samples(op.dtypes)
    if op.attrs is ArgAttrs:
        return _arg_samples
    if Trait.ELEMENTWISE not in op.traits:
        return None
    try:
        attrs = (op.attrs(),)
    except TypeError:  # an attribute has no default
        return None
    least, most = op.arity
    if most == 1:
        return unary_samples(op.dtypes, attrs=attrs)
    if least == most == 2:
        return binary_samples(op.dtypes, attrs=attrs)
    return _many_samples(op.dtypes, least, min(most, max(least, 3)), attrs[0])


def _many_samples(dtypes: Sequence[DType], least: int, most: int, attrs: Any) -> Samples:
    """Returns samples of `most` operands with different ranks, and of `least` operands that are
    vectors."""

    def vectors(*arrays: Array) -> tuple[Array, ...]:
        return arrays[:most] + (arrays[-1],) * (least - len(arrays))

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        shapes = [((3, 7), (7,), (2, 1, 1))[n % 3] for n in range(most)]
        for dtype in (d for d in (F32, F64, F16, I32) if d in dtypes):
            operands = tuple(draw(rng, dtype, shape, -5, 5) for shape in shapes)
            yield Sample(operands, attrs, f"three_{dtype.name}")
        one = draw(rng, F32, (13,), -5, 5)
        yield Sample(vectors(one), attrs, "one")
        yield Sample(vectors(one[:0], one[:1]), attrs, "empty")
        nan = np.where(np.arange(13) % 3 == 0, np.float32(np.nan), one)
        yield Sample(vectors(one, nan.astype(np.float32)), attrs, "nan")

    return samples


def reduction_samples(dtypes: Sequence[DType], lo: float = -4.0, hi: float = 4.0) -> Samples:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        main, *other_dtypes = spread(dtypes)
        x = draw(rng, main, (3, 7, 5), lo, hi)
        for axes in ((2,), (0,), (0, 2), (0, 1, 2), ()):
            name = "".join(map(str, axes)) or "none"
            yield Sample((x,), ReduceAttrs(axes, True), f"keep_{name}")
        yield Sample((x,), ReduceAttrs((1,), False), "drop_1")
        yield Sample((x,), ReduceAttrs((0, 1, 2), False), "drop_all")
        yield Sample((np.asarray(x[0, 0, 0]),), ReduceAttrs((), False), "scalar")
        yield Sample((x[:0],), ReduceAttrs((2,), False), "empty")
        yield Sample((draw(rng, main, (2, 133), lo, hi),), ReduceAttrs((1,), True), "long")
        if main.is_float:
            yield Sample((SPECIAL.reshape(2, 4).copy(),), ReduceAttrs((1,), True), "special")
        for dtype in other_dtypes:
            y = draw(rng, dtype, (3, 17), lo, hi)
            yield Sample((y,), ReduceAttrs((1,), False), dtype.name)

    return samples


def _arg_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = draw(rng, F32, (3, 7, 5), -4, 4)
    for axis in range(3):
        yield Sample((x,), ArgAttrs(axis, True), f"keep_{axis}")
    yield Sample((x,), ArgAttrs(1, False), "drop_1")
    ties = rng.integers(0, 3, (3, 33))
    for dtype in (F32, F64, F16, I32, U8):
        yield Sample((ties.astype(dtype.carrier),), ArgAttrs(1, True), f"first_{dtype.name}")
    yield Sample((ties.astype(np.float32),), ArgAttrs(1, True, True), "last_f32")
    yield Sample((ties[:0].astype(np.float32),), ArgAttrs(1, False), "empty")
    yield Sample((SPECIAL.reshape(2, 4).copy(),), ArgAttrs(1, True), "special")
