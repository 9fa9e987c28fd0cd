"""Ops that create tensors from sizes rather than from elements."""

from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, index_value
from tcc.ir.index import Index, const
from tcc.ir.op import Array, Tolerance
from tcc.ir.types import I64, TensorType
from tcc.ops.formula import chosen, wide
from tcc.ops.operands import integer, require, sizes
from tcc.ops.rows import op_row
from tcc.ops.shapes import NUMERIC, Point, Shape, same_dtype


@frozen
class RangeAttrs:
    """`size` is the number of elements; importers compute it from the operand `limit`."""

    size: Index


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
        "dims", DimsAttrs, _dims_infer, _dims_reference, (I64,),
        "A vector of integer expressions over the sizes: shape arithmetic that data needs.",
        element=lambda _, at, attrs: _nth(attrs.values, at[0]),
    ),
)  # fmt: skip
