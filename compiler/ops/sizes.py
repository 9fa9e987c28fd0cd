"""Sizes read from tensors: where shapes are computed from data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tcc.ir.index import Index, symbol
from tcc.ir.op import Array, OpSpec, Sample, Tolerance, Trait
from tcc.ir.types import BOOL, DTYPES, TensorType


@dataclass(frozen=True, slots=True)
class BindSizeAttrs:
    """The size symbol to bind and the number of the element (row-major) that gives its value."""

    symbol: Index
    element: int


def _bind_types(types: Sequence[TensorType | None], attrs: BindSizeAttrs) -> tuple[TensorType, ...]:
    source = types[0]
    if source is None or not (source.dtype.is_integer or source.dtype is BOOL):
        raise ValueError("a size is read from an integer tensor")
    shape = source.static_shape
    if shape is None or not 0 <= attrs.element < prod(shape):
        raise ValueError(f"element {attrs.element} does not exist")
    return ()


def _bind(arrays: Sequence[Array | None], attrs: BindSizeAttrs) -> tuple[Array, ...]:
    """The binding itself is the evaluator's; there is no result."""
    return ()


def _bind_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((np.array([4, 5]),), BindSizeAttrs(symbol("n"), 1), "vector")


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "bind_size",
        BindSizeAttrs,
        (1, 1),
        _bind_types,
        _bind,
        _bind_samples,
        tuple(d for d in DTYPES.values() if d.is_integer),
        Tolerance.EXACT,
        "Binds a size symbol to an element of an integer tensor; a node without outputs.",
        traits=frozenset({Trait.OPAQUE}),
    ),
)
