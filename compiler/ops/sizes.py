"""Where sizes and tensors meet: tensors of sizes, and sizes read from tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.index import Index, as_int, const, symbol
from tcc.ir.op import Array, OpSpec, Sample, Tolerance, Trait
from tcc.ir.scalar import Scalar, apply, index_value
from tcc.ir.types import BOOL, DTYPES, I32, I64, DType, TensorType


@dataclass(frozen=True, slots=True)
class SizesAttrs:
    """The elements in row-major order and the (static) shape of a tensor of sizes."""

    values: tuple[Index, ...]
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class BindSizeAttrs:
    """The size symbol to bind and the number of the element (row-major) that gives its value."""

    symbol: Index
    element: int


def _sizes_types(types: Sequence[TensorType | None], attrs: SizesAttrs) -> tuple[TensorType, ...]:
    if prod(attrs.shape) != len(attrs.values):
        raise ValueError(f"{len(attrs.values)} values do not fill the shape {attrs.shape}")
    return (TensorType(attrs.dtype, tuple(map(const, attrs.shape))),)


def _sizes(arrays: Sequence[Array | None], attrs: SizesAttrs) -> tuple[Array, ...]:
    values = [as_int(value) for value in attrs.values]
    if None in values:
        raise ValueError("sizes must be bound before they are evaluated")
    return (np.array(values, attrs.dtype.carrier).reshape(attrs.shape),)


def _sizes_expr(types: Sequence[TensorType | None], attrs: SizesAttrs) -> Expr:
    b = ExprBuilder()
    at = b.iters(*attrs.shape)
    linear: Index = const(0)
    for position, extent in zip(at, attrs.shape, strict=True):
        linear = linear * extent + position
    body: Scalar = index_value(attrs.values[-1] if attrs.values else 0, attrs.dtype)
    for number in reversed(range(len(attrs.values) - 1)):
        here = apply("eq", index_value(linear, I64), index_value(number, I64))
        body = apply("select", here, index_value(attrs.values[number], attrs.dtype), body)
    b.stage(at, body)
    return b.done()


def _sizes_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for label, values, shape, dtype in (
        ("scalar", (7,), (), I64),
        ("vector", (2, 3, 0, -5), (4,), I64),
        ("empty", (), (0,), I64),
        ("matrix", (1, 2, 3, 4, 5, 6), (2, 3), I32),
    ):
        yield Sample((), SizesAttrs(tuple(map(const, values)), shape, dtype), label)


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
        "sizes",
        SizesAttrs,
        (0, 0),
        _sizes_types,
        _sizes,
        _sizes_samples,
        tuple(d for d in DTYPES.values() if d.is_integer),
        Tolerance.EXACT,
        "A tensor whose elements are integer expressions of the size symbols.",
        expr=_sizes_expr,
        traits=frozenset({Trait.MOVEMENT}),
    ),
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
