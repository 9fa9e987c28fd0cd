"""Converters of com.microsoft's operators on packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from tcc.frontends.onnx_context import Converter, NodeContext
from tcc.frontends.onnx_scope import Operand
from tcc.ir.narrow import decode, unpack
from tcc.ir.op import Array
from tcc.ir.types import F32, U2, U4, U8, DType

Results = Sequence["Operand | None"]

_LEVELS = {2: U2, 4: U4, 8: U8}


def _matmul_n_bits(ctx: NodeContext) -> Results:
    """`x` (.., K) times N rows of K levels, packed in blocks that share a scale and a zero point.

    Without zero points these are the middle of the levels' range.
    """
    bits = ctx.integer("bits", 4)
    rows, depth, block = (ctx.integer(name) for name in ("N", "K", "block_size"))
    dtype = _LEVELS.get(bits)
    if dtype is None:
        raise ctx.fail(f"levels of {bits} bits are not supported")
    if min(rows, depth, block) < 1:
        raise ctx.fail("a size is not positive")
    if ctx.optional(4) is not None:
        raise ctx.fail("g_idx is not supported")
    x, scale = ctx.input(0), ctx.input(2)
    blocks = -(-depth // block)
    data = _rows_of_bytes(ctx, 1, "B", rows, blocks * block, bits)
    levels = ctx.constant(_elements(data, (rows, blocks * block), dtype)[:, :depth], dtype)
    scale = ctx.reshape(scale, (rows, blocks))
    zero = _zero_points(ctx, (rows, blocks), dtype)
    weights = ctx.emit(
        "dequantize_linear", levels, ctx.cast(scale, F32), zero, axis=1, block_size=block, to=None
    )
    turned = ctx.emit("transpose", weights, perm=(1, 0))
    found = ctx.emit("matmul", ctx.cast(x, F32), turned)
    bias = ctx.optional(5)
    if bias is not None:
        found = ctx.emit("add", found, ctx.cast(bias, F32))
    return [ctx.cast(found, x.dtype)]


def _zero_points(ctx: NodeContext, shape: tuple[int, int], dtype: DType) -> Operand:
    if ctx.optional(3) is None:
        middle = np.full(shape, 1 << (dtype.bits - 1), dtype.carrier)
        return ctx.constant(middle, dtype)
    if ctx.input(3).dtype is not U8:
        raise ctx.fail("zero points that are floats are not supported")
    per_row = -(-shape[1] * dtype.bits // 8) * 8 // dtype.bits  # rows begin with a byte
    data = _rows_of_bytes(ctx, 3, "the zero points", shape[0], per_row, dtype.bits)
    return ctx.constant(_elements(data, (shape[0], per_row), dtype)[:, : shape[1]], dtype)


def _rows_of_bytes(
    ctx: NodeContext, number: int, what: str, rows: int, levels: int, bits: int
) -> Array:
    """A constant operand that is bytes, as many as the levels of all rows fill."""
    data = ctx.static(number, what)
    if data.dtype != np.uint8 or data.size * 8 != rows * levels * bits:
        raise ctx.fail(f"{what} has {data.size} bytes for {rows} rows of {levels} levels")
    return data.reshape(-1)


def _elements(data: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    if not dtype.is_packed:
        return data.reshape(shape)
    return decode(unpack(data.reshape(-1), prod(shape), dtype), dtype).reshape(shape)


def unpacked(ctx: NodeContext, number: int, what: str) -> Operand:
    """A constant operand of bytes that hold two levels each along the last axis, as these."""
    data = ctx.static(number, what)
    return ctx.constant(_elements(data, (*data.shape[:-1], 2 * data.shape[-1]), U4), U4)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("com.microsoft", "MatMulNBits"): _matmul_n_bits,
}
