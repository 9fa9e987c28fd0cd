"""Matmuls whose right operand is stored in integers of 4 or 8 bits, or in 8-bit floats.

The stored values are called levels.  A level minus a zero point, times a scale, is the value that
is multiplied; a block of levels has a common zero point and scale.
"""

from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast
from tcc.ir.index import Index, as_int
from tcc.ir.op import (
    Array,
    Tolerance,
    Trait,
)
from tcc.ir.types import BF16, F16, F32, FLOAT8, I8, I32, TensorType, tensor
from tcc.ops.algebra.contract import matmul_sum
from tcc.ops.formula import fn
from tcc.ops.rows import op_row
from tcc.ops.shapes import agree_shapes, check_dtype

_FLOATS = (F32, F16, BF16)


@frozen
class LevelsAttrs:
    """The storage of levels (quantised values).

    With 4 `bits`, a byte holds two levels that are neighbours along the summed axis, the first one
    in its low nibble. With 8 bits, each level has its own byte. Along the summed axis, `block`
    levels share a scale and a zero point; 0 means that there are none.
    """

    bits: int = 8
    block: int = 0

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"levels have 4 or 8 bits, not {self.bits}")
        if self.block < 0:
            raise ValueError(f"block {self.block} is negative")


def nibbles(levels: Array, axis: int) -> Array:
    """Packs 4-bit levels two to a byte along `axis`, whose length is even; the result is i8."""
    bits = levels.view(np.uint8) & 0xF
    even = np.take(bits, np.arange(0, bits.shape[axis], 2), axis)
    odd = np.take(bits, np.arange(1, bits.shape[axis], 2), axis)
    packed: Array = (even | odd << 4).view(np.int8)
    return packed


def _unpacked(attrs: LevelsAttrs, x: TensorType, levels: TensorType) -> TensorType:
    """Returns the type of the levels as f32 levels that are not packed.

    Raises ValueError if `x` and the levels do not fit.
    """
    check_dtype(x.dtype, (*_FLOATS, *FLOAT8))
    check_dtype(levels.dtype, (I8,) if attrs.bits == 4 else (I8, *FLOAT8), "the levels")
    if levels.rank != 2 or x.rank < 2:
        raise ValueError(f"there is no product of {x!r} and levels {levels!r}")
    return tensor(F32, levels.shape[0] * (8 // attrs.bits), levels.shape[1])


def _infer(
    attrs: LevelsAttrs,
    x: TensorType,
    levels: TensorType,
    scale: TensorType | None = None,
    zero: TensorType | None = None,
) -> TensorType:
    w = _unpacked(attrs, x, levels)
    if x.shape[-1] is not w.shape[0]:
        raise ValueError(f"{w.shape[0].key} levels along the sum, {x.shape[-1].key} are due")
    for parameter, what, dtypes in (
        (scale, "scales", _FLOATS),
        (zero, "zero points", (I8, *_FLOATS)),
    ):
        if parameter is None:
            continue
        if not attrs.block:
            raise ValueError(f"there are {what} and no block")
        check_dtype(parameter.dtype, dtypes, f"the {what}")
        blocks = -(-w.shape[0] // attrs.block)
        agree_shapes(parameter.shape, (blocks, w.shape[1]), what)
    return tensor(F32, *x.shape[:-1], w.shape[1])


def _expr(
    b: ExprBuilder,
    attrs: LevelsAttrs,
    x: TensorType,
    levels: TensorType,
    scale: TensorType | None = None,
    zero: TensorType | None = None,
) -> StageRef:

    def rhs(k: Index, j: Index) -> Scalar:
        value = cast(_level(b, attrs, k, j), F32)
        if zero is not None:
            value -= cast(b.read(3, k // attrs.block, j), F32)
        if scale is not None:
            value *= cast(b.read(2, k // attrs.block, j), F32)
        return value

    w = _unpacked(attrs, x, levels)
    return matmul_sum(b, x, w, lambda at, kj: cast(b.read(0, *at), F32) * rhs(*kj))


def _level(b: ExprBuilder, attrs: LevelsAttrs, k: Index, j: Index) -> Scalar:
    if attrs.bits == 8:
        return b.read(1, k, j)
    byte = cast(b.read(1, k // 2, j), I32)
    # The left shift puts the nibble into the top bits; the arithmetic right shift extends its sign.
    raised = fn("shift_left", byte, 28 - 4 * (k % 2))
    return fn("shift_right", raised, 28)


def _reference(
    attrs: LevelsAttrs,
    x: Array,
    levels: Array,
    scale: Array | None = None,
    zero: Array | None = None,
) -> Any:
    wide = levels.astype(np.float32)
    if attrs.bits == 4:
        low, high = (levels << 4).astype(np.int8) >> 4, levels >> 4
        wide = np.stack([low, high], 1).reshape(-1, levels.shape[1]).astype(np.float32)
    for parameter, combine in ((zero, np.subtract), (scale, np.multiply)):
        if parameter is not None:
            spread = np.repeat(parameter.astype(np.float32), attrs.block, 0)[: len(wide)]
            wide = combine(wide, spread)
    return np.matmul(x.astype(np.float32), wide)


# ---- zero points apart from levels --------------------------------------------------------------


def _infer_zeros(
    attrs: LevelsAttrs, x: TensorType, scale: TensorType, zero: TensorType
) -> TensorType:
    if x.rank < 2 or scale.rank != 2 or not attrs.block:
        raise ValueError(f"{x!r} has no blocks with the scales {scale!r}")
    for operand in (x, scale, zero):
        check_dtype(operand.dtype, _FLOATS)
    shape = (-(-x.shape[-1] // attrs.block), scale.shape[1])
    agree_shapes(scale.shape, shape, "scales")
    agree_shapes(zero.shape, shape, "zero points")
    return tensor(F32, *x.shape[:-1], scale.shape[1])


def _zeros_expr(
    b: ExprBuilder, attrs: LevelsAttrs, x: TensorType, scale: TensorType, zero: TensorType
) -> StageRef:
    blocks, columns = scale.shape
    *rows, block = b.iters(*x.shape[:-1], blocks)
    (k,) = b.iters(attrs.block)
    fill = None if as_int(x.shape[-1] % attrs.block) == 0 else 0.0
    element = b.read(0, *rows, block * attrs.block + k, fill=fill)
    sums = b.sum((*rows, block), cast(element, F32), over=(k,))
    *rows, column = b.iters(*x.shape[:-1], columns)
    (block,) = b.iters(blocks)
    offset = cast(b.read(1, block, column), F32) * cast(b.read(2, block, column), F32)
    return b.sum((*rows, column), b.read(sums, *rows, block) * offset, over=(block,))


def _zeros_reference(attrs: LevelsAttrs, x: Array, scale: Array, zero: Array) -> Any:
    starts = np.arange(0, x.shape[-1], attrs.block)
    sums = np.add.reduceat(x.astype(np.float32), starts, -1)
    return np.matmul(sums, scale.astype(np.float32) * zero.astype(np.float32))


OPS = (
    op_row(
        "matmul_zeros", LevelsAttrs, _infer_zeros, _zeros_reference, _FLOATS,
        "Matrix product of the sums of blocks of x with scales times zero points; operands (x, "
        "scales, zero points). `matmul_levels` with zero points is the one without, minus this.",
        Tolerance.ACCUMULATE,
        _zeros_expr, traits=Trait.CONTRACTION,
    ),
    op_row(
        "matmul_levels", LevelsAttrs, _infer, _reference, (*_FLOATS, *FLOAT8),
        "Matrix product with levels; operands (x, levels, scales, zero points), the last two by "
        "block of the sum.",
        Tolerance.ACCUMULATE,
        _expr, traits=Trait.CONTRACTION,
    ),
)  # fmt: skip
