"""Sizes read from tensors: where shapes are computed from data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tcc.errors import UserError
from tcc.ir.index import Index, as_int, const, symbol
from tcc.ir.op import Array, OpSpec, Sample, Tolerance, Trait
from tcc.ir.types import BOOL, DTYPES, TensorType


@dataclass(frozen=True, slots=True)
class BindSizeAttrs:
    """The size symbol to bind and the number of the element (row-major) that gives its value."""

    symbol: Index
    element: int


@dataclass(frozen=True, slots=True)
class RequireAttrs:
    """Two sizes that must be equal, and why: a clause that goes on from "because"."""

    left: Index
    right: Index
    reason: str


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


def _require_types(
    types: Sequence[TensorType | None], attrs: RequireAttrs
) -> tuple[TensorType, ...]:
    if as_int(attrs.left - attrs.right) not in (0, None):
        raise ValueError(f"{attrs.left.key} is never {attrs.right.key}")
    return ()


def _require(arrays: Sequence[Array | None], attrs: RequireAttrs) -> tuple[Array, ...]:
    if attrs.left is not attrs.right:
        raise UserError(
            f"a size is {attrs.left.key} where the model needs {attrs.right.key}",
            why=attrs.reason,
            hint="give inputs of other sizes",
        )
    return ()


def _require_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((), RequireAttrs(const(3), const(3), "of this sample"), "equal")


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
    OpSpec(
        "require",
        RequireAttrs,
        (0, 0),
        _require_types,
        _require,
        _require_samples,
        tuple(d for d in DTYPES.values() if d.is_integer),
        Tolerance.EXACT,
        "Stops the run unless two sizes are equal; a node without operands and outputs.",
        traits=frozenset({Trait.OPAQUE}),
    ),
)
