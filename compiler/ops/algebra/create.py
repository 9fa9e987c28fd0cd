"""Ops that create tensors from sizes rather than from elements."""

from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, index_value
from tcc.ir.index import Index, const
from tcc.ir.op import Array, NoAttrs, Tolerance
from tcc.ir.types import I64, TensorType, element_count
from tcc.ops.formula import chosen, wide
from tcc.ops.operands import integer, require, sizes
from tcc.ops.rows import op_row
from tcc.ops.shapes import ALL, NUMERIC, Point, Shape, same_dtype


@frozen
class RangeAttrs:
    """`size` is the number of elements; importers compute it from the operand `limit`."""

    size: Index


@frozen
class ShapeOfAttrs:
    """The result holds the dims of the axes from `start` to `end` (exclusive)."""

    start: int
    end: int


@frozen
class DimsAttrs:
    """`values` are the elements of the resulting vector."""

    values: Shape


# ---- range ---------------------------------------------------------------------------------------


def _range_infer(
    attrs: RangeAttrs, start: TensorType, limit: TensorType, delta: TensorType
) -> TensorType:
    dtype = same_dtype(start, limit, delta)
    require(start.rank == limit.rank == delta.rank == 0, "start, limit and delta are scalars")
    return TensorType(dtype, (attrs.size,))


def _range_reference(attrs: RangeAttrs, start: Array, limit: Array, delta: Array) -> Any:
    size = integer(attrs.size)
    wide = np.float32 if start.dtype == np.float16 else start.dtype
    steps = np.arange(size).astype(wide)
    return (start.astype(wide) + steps * delta.astype(wide)).astype(start.dtype)


def _range_element(b: ExprBuilder, at: Point, _: RangeAttrs, *_operands: TensorType) -> Scalar:
    start, delta = wide(b.read(0)), wide(b.read(2))
    return start + index_value(at[0], delta.dtype) * delta


# ---- dims as data --------------------------------------------------------------------------------


def _nth(values: Shape, place: Index) -> Scalar:
    """Returns `values[place]` as an i64 scalar; `values` are dims, and `place` may be symbolic."""
    return chosen(place, [index_value(value, I64) for value in values or (0,)])


def _shape_infer(attrs: ShapeOfAttrs, x: TensorType) -> TensorType:
    require(0 <= attrs.start <= attrs.end <= x.rank, f"axes outside {x}")
    return TensorType(I64, (const(attrs.end - attrs.start),))


def _shape_reference(attrs: ShapeOfAttrs, x: Array) -> Array:
    return np.array(x.shape[attrs.start : attrs.end], np.int64)


def _shape_element(b: ExprBuilder, at: Point, attrs: ShapeOfAttrs, x: TensorType) -> Scalar:
    return _nth(x.shape[attrs.start : attrs.end], at[0])


def _size_infer(attrs: NoAttrs, x: TensorType) -> TensorType:
    return TensorType(I64, ())


def _size_reference(attrs: NoAttrs, x: Array) -> Array:
    return np.array(x.size, np.int64)


def _dims_infer(attrs: DimsAttrs) -> TensorType:
    return TensorType(I64, (const(len(attrs.values)),))


def _dims_reference(attrs: DimsAttrs) -> Array:
    return np.array(sizes(attrs.values), np.int64)


# ---- rows of the op table ------------------------------------------------------------------------

OPS = (
    op_row(
        "range", RangeAttrs, _range_infer, _range_reference, NUMERIC,
        "start, start + delta, start + 2 * delta, ...; operands (start, limit, delta).",
        Tolerance.ELEMENTWISE,
        element=_range_element,
    ),
    op_row(
        "shape_of", ShapeOfAttrs, _shape_infer, _shape_reference, ALL,
        "The dims of x as a vector of i64.",
        element=_shape_element,
    ),
    op_row(
        "size_of", NoAttrs, _size_infer, _size_reference, ALL,
        "The number of elements of x as an i64.",
        element=lambda _b, _at, _attrs, x: index_value(element_count(x.shape), I64),
    ),
    op_row(
        "dims", DimsAttrs, _dims_infer, _dims_reference, (I64,),
        "A vector of integer expressions over the sizes: shape arithmetic that data needs.",
        element=lambda _, at, attrs: _nth(attrs.values, at[0]),
    ),
)  # fmt: skip
