"""Replaces matmuls of dequantised 8-bit values by matmuls of the 8-bit values, scaled once.

    matmul(dequantize(%a, sa, za), dequantize(%b, sb, zb))
      ->  mul(cast(matmul_integer(%a, %b, za, zb)), sa * sb)         scales by tensor or by column

    matmul(dequantize(%a, sa), dequantize(%b, sb))                 8-bit floats
      ->  mul(matmul_levels(%a, %b), sa * sb)

Sums of integers are exact, whereas sums of scaled floats are rounded.  Products of 8-bit floats are
exact too.  Weights stay 8-bit, and matrix units multiply them twice as fast as 16-bit floats.  So
this pass is for targets with matrix units for 8-bit values, or with CPU instructions that multiply
four bytes at once.

Constants must not be folded yet, as folding would replace the weights by floats.  Establishes that
no matmul or gemm of two dequantised 8-bit factors in these forms is left.
"""

from dataclasses import replace
from functools import partial

from tcc.frozen import frozen
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int
from tcc.ir.types import F32, FLOAT8, I8, U8, element_count
from tcc.ops.algebra.window import ConvAttrs
from tcc.passes.graph.emit import emit
from tcc.passes.quantize.zero_points import (
    MATMULS,
    admits,
    channels,
    constant_zero,
    conv_integer,
    dequantized,
    with_bias,
)

# The sum of at most this many products of two bytes fits 32 bits, for all values of the bytes.
LONGEST = (1 << 31) // (255 * 255) - 1
# A convolution is computed in bytes only if each group has at least this many channels.
_LEAST = 3


@frozen
class _Bytes:
    """The factor of a matmul: 8-bit values with their scale and zero point.

    A `zero` of None stands for 0.  `axis` is the axis along which scale and zero point vary; None
    if all values share them.
    """

    value: Value
    scale: Value
    zero: Value | None
    axis: int | None


def int8_matmuls(graph: Graph) -> Graph:
    """Returns `graph` with matmuls of 8-bit values in place of matmuls of dequantised values.

    Returns `graph` itself if nothing is replaced.
    """
    return rewritten(graph, _visit)


def int8_weight_matmuls(graph: Graph) -> Graph:
    """Returns `graph` with matmuls and convolutions of 8-bit values, for CPUs.

    Changes only contractions that `zero_points` can then rewrite for instructions which multiply
    four bytes at once.  Their second factor is constant, or it is a matmul's factor that is not
    transposed.
    """
    return rewritten(graph, partial(_visit, weights=True))


def _visit(b: GraphBuilder, node: Node, inputs: Inputs, weights: bool = False) -> Replacement:
    if node.op.name == "conv":
        return byte_conv(b, node, inputs) if weights else None
    if node.op.name not in MATMULS:
        return None
    x, w, *biases = inputs
    result = _matmul(b, node, _bytes(b, x), _bytes(b, w), weights)
    return None if result is None else [with_bias(b, result, biases)]


def byte_conv(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    """Returns the convolution `node` of two dequantised factors as one of their bytes.

    Returns None where bytes would be slower, or do not fit.
    """
    x, w, *biases = inputs
    attrs = node.attrs
    if x is None or w is None or not isinstance(attrs, ConvAttrs):
        return None
    lhs, rhs = _bytes(b, x), _bytes(b, w)
    if lhs is None or rhs is None or lhs.axis is not None or rhs.axis not in (None, 0):
        return None
    if not {lhs.value.dtype, rhs.value.dtype} <= {I8, U8}:
        return None
    depth = as_int(element_count(w.shape[1:]))
    # With few channels, the groups of four bytes that an instruction multiplies are mostly empty.
    few = (as_int(w.shape[1]) or 0) < _LEAST
    if (
        few
        or depth is None
        or depth > LONGEST
        or not admits(b, node, lhs.zero, rhs.value, rhs.zero)
    ):
        return None
    sums = conv_integer(b, attrs, lhs.value, rhs.value, lhs.zero, rhs.zero)
    sums = emit(b, "cast", sums, to=F32)
    scale = channels(b, emit(b, "mul", lhs.scale, rhs.scale), sums)
    result = emit(b, "mul", sums, scale)
    if biases and biases[0] is not None:
        result = emit(b, "add", result, channels(b, biases[0], sums))
    return [result]


def _bytes(b: GraphBuilder, value: Value | None) -> _Bytes | None:
    """Returns the 8-bit factor from which `value` is dequantised; None if there is none.

    There may be a transpose of two axes in between.
    """
    dequantisation = dequantized(b, value)
    if dequantisation is None:
        return None
    node, transposed = dequantisation
    x, scale, *zeros = node.inputs
    if x is None or scale is None or node.attrs.block_size:
        return None
    if scale.dtype is not F32 or node.result.dtype is not F32:
        return None
    if x.dtype not in (I8, U8, *FLOAT8) or scale.rank > 1:
        return None
    one = scale.rank == 0 or scale.type.static_shape == (1,)
    bytes_ = _Bytes(x, scale, zeros[0] if zeros else None, None if one else node.attrs.axis)
    return _transposed(b, bytes_) if transposed else bytes_


def _transposed(b: GraphBuilder, factor: _Bytes | None) -> _Bytes | None:
    """Returns the factor of the transposed matrix; None if `factor` is None or no matrix."""
    if factor is None or factor.value.rank != 2:
        return None
    array = b.array(factor.value)
    old = factor.value
    if array is not None:
        value = b.constant(array.T.copy(), old.name, old.dtype, b.sources(old))
    else:
        value = emit(b, "transpose", old, perm=(1, 0))
    return replace(factor, value=value, axis=None if factor.axis is None else 1 - factor.axis)


def _matmul(
    b: GraphBuilder, node: Node, lhs: _Bytes | None, rhs: _Bytes | None, weights: bool
) -> Value | None:
    if lhs is None or rhs is None or lhs.axis is not None:
        return None
    rank = rhs.value.rank
    length = as_int(lhs.value.shape[-1]) if lhs.value.rank > 1 else None
    if rank < 2 or length is None or length > LONGEST or rhs.axis not in (None, rank - 1):
        return None
    if weights and not admits(b, node, lhs.zero, rhs.value, rhs.zero):
        return None
    wide = _sums(b, lhs, rhs)
    return None if wide is None else emit(b, "mul", wide, emit(b, "mul", lhs.scale, rhs.scale))


def _sums(b: GraphBuilder, lhs: _Bytes, rhs: _Bytes) -> Value | None:
    """Returns the matmul of the 8-bit values minus their zero points, as f32, without the scales.

    8-bit floats must have equal types and no zero points, and their second factor must be a matrix;
    otherwise returns None.
    """
    kinds = {f.value.dtype for f in (lhs, rhs)}
    if kinds <= {I8, U8}:
        sums = emit(b, "matmul_integer", lhs.value, rhs.value, lhs.zero, rhs.zero)
        return emit(b, "cast", sums, to=F32)
    zeros = [constant_zero(b, f.zero) for f in (lhs, rhs)]
    if len(kinds) > 1 or any(zero is None or zero.any() for zero in zeros):
        return None
    if rhs.value.rank != 2:
        return None
    return emit(b, "matmul_levels", lhs.value, rhs.value)
