"""Converters of com.microsoft's operators on packed weights.

A weight is `(level - zero point) * scale`.  Levels are small integers, several in a byte.
"""

from math import prod

import numpy as np
from tcc.frontends.emit import constant, emit
from tcc.frontends.onnx.context import Converters, NodeContext, Results, named, static
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.narrow import decode, unpack
from tcc.ir.op import Array
from tcc.ir.types import F32, U2, U4, U8, DType
from tcc.ops.algebra.levels import nibbles

# The tables of bitsandbytes: 4-bit floats, and quantiles of a normal distribution.
_FP4 = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
_FP4 += [-number for number in _FP4]
_NF4 = (
    -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1,
)  # fmt: skip
_LEVELS = {2: U2, 4: U4, 8: U8}


def level_type(bits: int) -> DType:
    """Returns the element type of levels of `bits` bits."""
    if bits not in _LEVELS:
        raise Refusal(f"levels of {bits} bits are not supported")
    return _LEVELS[bits]


def _mat_mul_n_bits(ctx: NodeContext, *, bits: int = 4, N: int, K: int, block_size: int) -> Results:
    """Multiplies `x` (.., K) with N rows of K levels, packed in blocks that share a scale and a
    zero point.

    Without zero points, the middle of the levels' range stands for zero. `g_idx` has the block of
    each level, from which the level takes its scale and its zero point. (ONNX Runtime's CPU kernel
    ignores packed zero points if there is a `g_idx`.) `accuracy_level` allows rounding of x, which
    this converter does not use: the matmul is in f32.
    """
    dtype = level_type(bits)
    if min(N, K, block_size) < 1:
        raise Refusal("a size is not positive")
    x = ctx.input(0).cast(F32)
    blocks = -(-K // block_size)
    data = _rows_of_bytes(ctx, 1, "B", N, blocks * block_size, bits)
    levels = _elements(data, (N, blocks * block_size), dtype)[:, :K]
    scale = ctx.input(2).reshape((N, blocks)).cast(F32)
    zero = _zero_points(ctx, (N, blocks), dtype)
    groups, even = _groups(ctx, K, blocks), np.arange(K) // block_size
    if groups is not None and (groups != even).any():
        order = np.argsort(groups, kind="stable")
        if (groups[order] == even).all():
            x, levels = _gathered(x, order, x.rank - 1), levels[:, order]
        else:  # blocks have different sizes, so each level becomes a block of its own
            block_size, scale, zero = 1, _gathered(scale, groups, 1), zero[:, groups]
    result = _matmul_rows(x, (levels, scale, zero), dtype, block_size)
    bias = ctx.optional(5)
    if bias:
        result = result + bias.cast(F32)
    return result.cast(ctx.input(0).dtype)


def _mat_mul_bnb4(
    ctx: NodeContext, *, quant_type: int, transB: bool = True, N: int, K: int, block_size: int
) -> Results:
    """Multiplies `x` with N rows of K numbers from a table of 16.

    The numbers are stored as positions in the table, two in a byte, the first in the high four
    bits. The numbers of all rows are cut into blocks, each of which has a factor.
    """
    if quant_type not in (0, 1) or min(N, K, block_size) < 1:
        raise Refusal(
            f"quant_type {quant_type}, N {N}, K {K} or block_size {block_size} is no such"
        )
    count = N * K
    packed, factors = (
        static(ctx.input(1), "B").reshape(-1),
        static(ctx.input(2), "absmax").reshape(-1),
    )
    if packed.dtype != np.uint8 or (packed.size, factors.size) != (
        -(-count // 2),
        -(-count // block_size),
    ):
        raise Refusal(f"B and absmax have {packed.size} and {factors.size} entries for {count}")
    places = np.stack([packed >> 4, packed & 15], 1).reshape(-1)[:count]
    numbers = np.array((_FP4, _NF4)[quant_type], np.float32)[places]
    numbers *= np.repeat(factors.astype(np.float32), block_size)[:count]
    numbers = numbers.reshape(N, K)
    weights = constant(numbers.T if transB else numbers)
    x = ctx.input(0)
    return (x.cast(F32) @ weights).cast(x.dtype)


def _matmul_rows(
    x: Operand, rows: tuple[Array, Operand, Array], dtype: DType, block: int
) -> Operand:
    """Multiplies `x` with `rows`: levels, their scales and zero points.

    `dtype` is the type of the levels. Each `block` levels of a row share a scale and a zero point.
    """
    levels, scale, zero = rows
    if zero.dtype == dtype.carrier:
        operands = [constant(levels, dtype), scale, constant(zero, dtype)]
        weights = emit("dequantize_linear", *operands, axis=1, block_size=block)
        return x @ weights.transpose((1, 0))
    half = 1 << (dtype.bits - 1)
    signed = np.ascontiguousarray((levels.T.astype(np.int16) - half).astype(np.int8))
    bits = 4 if dtype.bits <= 4 and len(signed) % 2 == 0 else 8
    level_operand = constant(nibbles(signed, 0) if bits == 4 else signed)
    points = constant(np.ascontiguousarray(zero.T - np.float32(half)))
    return x.matmul_levels(level_operand, scale.transpose((1, 0)), points, bits=bits, block=block)


def _gathered(x: Operand, at: Array, axis: int) -> Operand:
    return x.gather(constant(at.astype(np.int64)), axis=axis)


def _groups(ctx: NodeContext, depth: int, blocks: int) -> Array | None:
    """Returns the index of each level's block in a row of `depth` levels and `blocks` blocks.

    Returns None if the model does not give the indices.
    """
    if ctx.optional(4) is None:
        return None
    groups = static(ctx.input(4), "g_idx").reshape(-1)
    is_integer = groups.dtype.kind in "iu"
    if not is_integer or groups.size < depth or not ((groups >= 0) & (groups < blocks)).all():
        raise Refusal(f"g_idx does not name one of {blocks} blocks for each of {depth} levels")
    return groups[:depth]


def _zero_points(ctx: NodeContext, shape: tuple[int, int], dtype: DType) -> Array:
    """Returns the zero points, [row, block], as levels, or as floats if some are not levels."""
    if ctx.optional(3) is None:
        return np.full(shape, 1 << (dtype.bits - 1), dtype.carrier)
    if ctx.input(3).dtype.is_float:
        points = static(ctx.input(3), "the zero points").astype(np.float32)
        if points.size != prod(shape):
            raise Refusal(f"there are {points.size} zero points for {prod(shape)} blocks")
        points = points.reshape(shape)
        levels: Array = np.clip(np.nan_to_num(points), 0, (1 << dtype.bits) - 1).astype(
            dtype.carrier
        )
        return levels if (levels == points).all() else points
    if ctx.input(3).dtype is not U8:
        raise Refusal(f"zero points of type {ctx.input(3).dtype} are not supported")
    per_row = -(-shape[1] * dtype.bits // 8) * 8 // dtype.bits  # levels in the whole bytes of a row
    data = _rows_of_bytes(ctx, 3, "the zero points", shape[0], per_row, dtype.bits)
    return _elements(data, (shape[0], per_row), dtype)[:, : shape[1]]


def _rows_of_bytes(
    ctx: NodeContext, number: int, what: str, rows: int, levels: int, bits: int
) -> Array:
    """Returns the bytes of operand `number`, which is constant.

    Raises `UserError` unless they are exactly the bytes of `rows` rows of `levels` levels.
    """
    data = static(ctx.input(number), what)
    if data.dtype != np.uint8 or data.size * 8 != rows * levels * bits:
        raise Refusal(f"{what} has {data.size} bytes for {rows} rows of {levels} levels")
    return data.reshape(-1)


def _elements(data: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    if not dtype.is_packed:
        return data.reshape(shape)
    return decode(unpack(data.reshape(-1), prod(shape), dtype), dtype).reshape(shape)


def unpacked(
    ctx: NodeContext, number: int, what: str, dtype: DType, count: int | None = None
) -> Operand:
    """Unpacks a constant operand of bytes to levels along the last axis.

    Each row begins with a new byte. `count` is the number of levels in a row; levels beyond it,
    which fill the row's last byte, are cut off.
    """
    data = static(ctx.input(number), what)
    if data.dtype != np.uint8 or not data.ndim:
        raise Refusal(f"{what} are no rows of bytes")
    rows = _elements(data, (*data.shape[:-1], data.shape[-1] * 8 // dtype.bits), dtype)
    if count is not None and not count <= rows.shape[-1] < count + 8 // dtype.bits:
        raise Refusal(f"{what} have {rows.shape[-1]} levels in a row for {count}")
    return constant(rows[..., :count], dtype)


CONVERTERS: Converters = named(_mat_mul_n_bits, _mat_mul_bnb4)
