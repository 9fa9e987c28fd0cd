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
# Values that a run stores as levels are scaled as if their largest were at least this, so that the
# inverse of their scale is finite.
LEAST = 2.0**-100


@frozen
class LevelsAttrs:
    """The storage of levels (quantised values).

    With 4 `bits`, a byte holds two levels that are neighbours along the summed axis, the first one
    in its low nibble. With 5 or 6 bits, these nibbles are the lower bits of levels, and the upper
    bits of eight or four neighbours share a byte of another operand, the first ones lowest. With 8
    bits, each level has its own byte. Along the summed axis, `block` levels share a scale and a
    zero point; 0 means that there are none.
    """

    bits: int = 8
    block: int = 0

    def __post_init__(self) -> None:
        if self.bits not in (4, 5, 6, 8):
            raise ValueError(f"levels have 4, 5, 6 or 8 bits, not {self.bits}")
        if self.block < 0:
            raise ValueError(f"block {self.block} is negative")


def packed_codes(codes: Array, axis: int, bits: int) -> Array:
    """Packs the lowest `bits` bits of neighbours along `axis` into bytes; the result is i8.

    The first neighbour has the lowest bits. The length of the axis is a multiple of 8 / `bits`.
    """
    lines, count = np.moveaxis(codes.view(np.uint8), axis, 0), 8 // bits
    packed = lines[::count] & np.uint8((1 << bits) - 1)
    for n in range(1, count):
        packed |= (lines[n::count] & np.uint8((1 << bits) - 1)) << np.uint8(bits * n)
    return np.moveaxis(packed.view(np.int8), 0, axis)


def nibbles(levels: Array, axis: int) -> Array:
    """Packs 4-bit levels two to a byte along `axis`, whose length is even; the result is i8."""
    return packed_codes(levels, axis, 4)


def unpacked(attrs: LevelsAttrs, levels: TensorType, high: TensorType | None) -> TensorType:
    """Returns the type of the levels as f32 levels that are not packed.

    Raises ValueError if `levels` and their upper bits do not fit `attrs`.
    """
    check_dtype(levels.dtype, (I8,) if attrs.bits < 8 else (I8, *FLOAT8), "the levels")
    if levels.rank != 2 or (high is None) != (attrs.bits in (4, 8)):
        raise ValueError(f"there are no levels of {attrs.bits} bits in {levels!r} and {high!r}")
    unpacked = tensor(F32, levels.shape[0] * (1 if attrs.bits == 8 else 2), levels.shape[1])
    if high is not None:
        check_dtype(high.dtype, (I8,), "the upper bits")
        count = 8 // (attrs.bits - 4)
        agree_shapes(high.shape, (unpacked.shape[0] // count, levels.shape[1]), "upper bits")
    return unpacked


def _infer(
    attrs: LevelsAttrs,
    x: TensorType,
    levels: TensorType,
    scale: TensorType | None = None,
    zero: TensorType | None = None,
    high: TensorType | None = None,
) -> TensorType:
    check_dtype(x.dtype, (*_FLOATS, *FLOAT8))
    w = unpacked(attrs, levels, high)
    if x.rank < 2:
        raise ValueError(f"there is no product of {x!r} and levels {levels!r}")
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
    scale: TensorType | None,
    zero: TensorType | None,
    high: TensorType | None,
) -> StageRef:

    def rhs(k: Index, j: Index) -> Scalar:
        value = cast(level_at(b, attrs, (1, 4), k, j), F32)
        if zero is not None:
            value -= cast(b.read(3, k // attrs.block, j), F32)
        if scale is not None:
            value *= cast(b.read(2, k // attrs.block, j), F32)
        return value

    w = unpacked(attrs, levels, high)
    return matmul_sum(b, x, w, lambda at, kj: cast(b.read(0, *at), F32) * rhs(*kj))


def level_at(
    b: ExprBuilder, attrs: LevelsAttrs, sources: tuple[int, int], k: Index, j: Index
) -> Scalar:
    """Returns level (k, j); `sources` are the operands with levels and with their upper bits."""
    if attrs.bits == 8:
        return b.read(sources[0], k, j)
    byte = cast(b.read(sources[0], k // 2, j), I32)
    if attrs.bits == 4:
        return _field(byte, 4, k)
    low = fn("bit_and", fn("shift_right", byte, 4 * (k % 2)), 15)
    bits = attrs.bits - 4
    high = _field(cast(b.read(sources[1], k // (8 // bits), j), I32), bits, k)
    # The cast says that a level has at most eight bits.
    return cast(fn("bit_or", fn("shift_left", high, 4), low), I8)


def _field(byte: Scalar, bits: int, k: Index) -> Scalar:
    """Returns the signed number of `bits` bits that neighbour k has in a byte."""
    # The left shift puts the number into the top bits; the arithmetic right shift extends its sign.
    raised = fn("shift_left", byte, 32 - bits - bits * (k % (8 // bits)))
    return fn("shift_right", raised, 32 - bits)


def _reference(
    attrs: LevelsAttrs,
    x: Array,
    levels: Array,
    scale: Array | None,
    zero: Array | None,
    high: Array | None,
) -> Any:
    return np.matmul(x.astype(np.float32), level_values(attrs, levels, scale, zero, high))


def level_values(
    attrs: LevelsAttrs,
    levels: Array,
    scale: Array | None,
    zero: Array | None,
    high: Array | None,
) -> Array:
    """Returns the values of levels, in f32."""
    wide = levels.astype(np.float32)
    if attrs.bits < 8:
        wide = _codes(levels, 4).astype(np.float32)
    if high is not None:
        upper = _codes(high, attrs.bits - 4).astype(np.float32)
        wide = wide % 16 + 16 * upper
    for parameter, combine in ((zero, np.subtract), (scale, np.multiply)):
        if parameter is not None:
            spread = np.repeat(parameter.astype(np.float32), attrs.block, 0)[: len(wide)]
            wide = combine(wide, spread)
    return wide


def _codes(packed: Array, bits: int) -> Array:
    """Returns the signed numbers of `bits` bits in the bytes of `packed`, in order of its rows."""
    shifts = np.arange(8 - bits, -1, -bits).reshape(-1, 1)
    return ((packed[:, None] << shifts).astype(np.int8) >> (8 - bits)).reshape(-1, packed.shape[1])


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
        "Matrix product with levels; operands (x, levels, scales, zero points, upper bits of levels"
        "), scales and zero points by block of the sum.",
        Tolerance.ACCUMULATE,
        _expr, traits=Trait.CONTRACTION,
    ),
)  # fmt: skip
