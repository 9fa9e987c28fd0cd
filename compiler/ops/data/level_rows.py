"""Reads rows of a table that is stored as the levels of a matmul's right operand.

A language model may read one table twice: a row for each token, and as a matrix.
"""

from typing import Any

import numpy as np
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import StageRef, cast
from tcc.ir.op import Array
from tcc.ir.types import BF16, F16, F32, I8, I32, I64, TensorType, tensor
from tcc.ops.algebra.levels import LevelsAttrs, level_at, level_values, unpacked
from tcc.ops.data.indexing import chosen
from tcc.ops.rows import op_row
from tcc.ops.shapes import agree_shapes, check_dtype


def _infer(
    attrs: LevelsAttrs,
    levels: TensorType,
    index: TensorType,
    scale: TensorType,
    high: TensorType | None = None,
) -> TensorType:
    length, columns = unpacked(attrs, levels, high).shape
    check_dtype(index.dtype, (I32, I64), "the numbers")
    if index.rank != 1 or not attrs.block:
        raise ValueError(f"{index!r} selects no levels with scales for blocks of {attrs.block}")
    check_dtype(scale.dtype, (F32, F16, BF16), "the scales")
    agree_shapes(scale.shape, (-(-length // attrs.block), columns), "scales")
    return tensor(F32, index.shape[0], length)


def _expr(
    b: ExprBuilder,
    attrs: LevelsAttrs,
    levels: TensorType,
    index: TensorType,
    scale: TensorType,
    high: TensorType | None,
) -> StageRef:
    length, columns = unpacked(attrs, levels, high).shape
    row, k = b.iters(index.shape[0], length)
    j = chosen(b, b.read(1, row), columns)
    level = cast(level_at(b, attrs, (0, 3), k, j), F32)
    return b.stage((row, k), level * cast(b.read(2, k // attrs.block, j), F32))


def _reference(
    attrs: LevelsAttrs, levels: Array, index: Array, scale: Array, high: Array | None
) -> Any:
    return np.take(level_values(attrs, levels, scale, None, high), index, 1).T


OPS = (
    op_row(
        "gather_levels",
        LevelsAttrs,
        _infer,
        _reference,
        (I8,),
        "Columns of a matrix of levels as rows of f32; operands (levels, numbers of columns, "
        "scales, upper bits of levels), which are stored as for `matmul_levels`.",
        expr=_expr,
    ),
)
