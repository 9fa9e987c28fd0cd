"""Replaces matmuls of dequantised constants by matmuls that read the quantised levels directly.

    matmul(%x, dequantize(%w : u4[k,n], %s[k/32,n], %z))
      ->  matmul_levels(%x, %levels : i8[k/2,n], %s, %z)          two levels to a byte

    matmul(%x, dequantize(%w : f8e4m3fn[k,n], %s[n]))  ->  mul(matmul_levels(%x, %w), %s)

Large constants of narrow types keep their size, in the layout that matmuls read.  Two levels of 4
bits that are neighbours along the sum share a byte.  A scale for each result, or one scale for all,
is applied after the sum.  Requires that large narrow constants are not folded to floats.
Establishes that they are multiplied in their narrow types if their blocks run along the sum.
"""

from dataclasses import replace

import numpy as np
from tcc.frozen import frozen
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.op import Array
from tcc.ir.types import F4E2M1, F8E4M3FN, F32, I8, DType
from tcc.ops.algebra.levels import nibbles
from tcc.ops.algebra.quantize import DequantizeAttrs
from tcc.passes.graph.emit import emit
from tcc.passes.quantize.zero_points import MATMULS, constant_zero, dequantized, with_bias

# Smaller narrow constants are folded to floats, like constants of other types.
_LARGE = 1 << 14


@frozen
class _Levels:
    """The levels of a quantised constant matrix (k, n).

    `scale` and `zero` are matrices.  Each has a single element, or an element for each position
    along `axis`.  With blocks, each has an element for each block of `block` positions along `axis`
    and for each position along the other axis.  A `zero` of None stands for 0, and a `block` of 0
    for no blocks.  `source` is the value of the constant.
    """

    array: Array
    dtype: DType
    scale: Array
    zero: Array | None
    axis: int
    block: int
    source: Value


def weight_quant_matmuls(graph: Graph) -> Graph:
    """Returns `graph` with matmuls of quantised levels in place of matmuls of dequantised
    constants.

    Returns `graph` itself if nothing is replaced.
    """
    return rewritten(graph, _visit)


def _visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    if node.op.name not in MATMULS or node.result.dtype is not F32:
        return None
    x, w, *biases = inputs
    if x is None or x.rank < 2:
        return None
    levels = _levels(b, w)
    if levels is None or not _along_sum(levels):
        return None
    return [with_bias(b, _matmul(b, x, levels), biases)]


def _along_sum(levels: _Levels) -> bool:
    """Returns True if there is one scale, one scale for each column, or blocks along the sum."""
    if levels.block:
        return levels.axis == 0
    return levels.axis == 1 or levels.scale.size == 1


def _levels(b: GraphBuilder, value: Value | None) -> _Levels | None:
    """Returns the levels from which `value` is dequantised, directly or through a transpose.

    Returns None if `value` is not a large dequantised constant of a narrow type.
    """
    dequantisation = dequantized(b, value)
    if dequantisation is None:
        return None
    node, transposed = dequantisation
    attrs = node.attrs
    x, scale, *zeros = node.inputs
    if x is None or scale is None:
        return None
    dtype = x.dtype
    data, scales = b.array(x), b.array(scale)
    zero = constant_zero(b, zeros[0] if zeros else None)
    if data is None or scales is None or zero is None:
        return None
    if not dtype.is_narrow or data.ndim != 2 or data.size < _LARGE:
        return None
    if dtype.is_float and zero.any():
        return None
    shape = _shape(scales, attrs)
    point = zero.reshape(shape) if zero.any() else None
    axis = attrs.axis if attrs.block_size or scales.size > 1 else 1
    levels = _Levels(data, dtype, scales.reshape(shape), point, axis, attrs.block_size, x)
    return _transposed(levels) if transposed else levels


def _shape(scales: Array, attrs: DequantizeAttrs) -> tuple[int, ...]:
    """Returns the two-dimensional shape in which scales broadcast to the levels or blocks."""
    if attrs.block_size:
        return tuple(scales.shape)
    return (1, scales.size) if attrs.axis == 1 else (scales.size, 1)


def _transposed(levels: _Levels) -> _Levels:
    """Returns the levels of the transposed matrix."""
    zero = None if levels.zero is None else levels.zero.T
    array, scale = levels.array.T, levels.scale.T
    return replace(levels, array=array, scale=scale, zero=zero, axis=1 - levels.axis)


def _matmul(b: GraphBuilder, x: Value, levels: _Levels) -> Value:
    data, zero, dtype, bits = _storage_form(levels)
    name, sources = levels.source.name, b.sources(levels.source)
    operands = [x, b.constant(data, f"{name}.levels", dtype, sources)]
    rows, columns = levels.array.shape
    if not levels.block and zero is None:
        sums = emit(b, "matmul_levels", *operands, bits=bits)
        after = np.ascontiguousarray(levels.scale.astype(np.float32).reshape(-1))
        return emit(b, "mul", sums, b.constant(after, f"{name}.scale"))
    block = levels.block or rows
    full = (-(-rows // block), columns)
    scale = np.ascontiguousarray(np.broadcast_to(levels.scale, full).astype(np.float32))
    operands.append(b.constant(scale, f"{name}.scales"))
    if zero is not None:
        zeros = np.ascontiguousarray(np.broadcast_to(zero, full).astype(np.int8))
        operands.append(b.constant(zeros, f"{name}.zeros"))
    return emit(b, "matmul_levels", *operands, bits=bits, block=block)


def _storage_form(levels: _Levels) -> tuple[Array, Array | None, DType, int]:
    """Returns (levels, zero points, dtype, bits) as `matmul_levels` reads them.

    Zero points are None if all are zero.  `bits` is 4 if two levels share a byte, otherwise 8.
    """
    if levels.dtype.is_float:
        # Levels of 4-bit floats are stored in the 8-bit type, which has all of their values.
        dtype = F8E4M3FN if levels.dtype is F4E2M1 else levels.dtype
        return np.ascontiguousarray(levels.array), None, dtype, 8
    integers, zero = levels.array.astype(np.int16), levels.zero
    if zero is not None:
        common = integers - np.int16(zero.reshape(-1)[0])
        if (zero == zero.reshape(-1)[0]).all() and common.min() >= -8 and common.max() <= 7:
            integers, zero = common, None
    # Unsigned levels and their zero points are moved by 8, into the range of signed levels.
    if integers.max() > 7:
        zeros = np.zeros(levels.scale.shape, np.int16) if zero is None else zero.astype(np.int16)
        integers, zero = integers - 8, zeros - 8
    narrow = np.ascontiguousarray(integers.astype(np.int8))
    halves = narrow.shape[0] % 2 == 0
    return (nibbles(narrow, 0), zero, I8, 4) if halves else (narrow, zero, I8, 8)
