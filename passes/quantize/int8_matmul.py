"""Products of dequantised bytes and floats of a byte are products of these, scaled once.

    matmul(dequantize(%a, sa, za), dequantize(%b, sb, zb))
      ->  mul(cast(matmul_integer(%a, %b, za, zb)), sa * sb)         scales by tensor or by column

    matmul(dequantize(%a, sa), dequantize(%b, sb))                 floats of a byte
      ->  mul(matmul_levels(%a, %b), sa * sb)

The sums of integers are exact where those of scaled floats are rounded, and so are the products
of the floats.  Weights stay bytes, and matrix units
multiply them twice as fast as halves; so this is for targets that have such units, or instructions
for words of bytes.

Requires nothing; constants must not be folded yet, which would leave floats of the weights.
Establishes that no matmul or gemm is left whose factors are such bytes.
"""

from dataclasses import replace
from functools import partial

from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int
from tcc.ir.types import F32, FLOAT8, I8, U8, element_count
from tcc.ops.algebra.contract import GemmAttrs
from tcc.ops.algebra.window import ConvAttrs
from tcc.passes.graph.emit import emit
from tcc.passes.quantize.zero_points import admits, channels, conv_integer, dequantized
from tcc.record import record

# Products of bytes that 32 bits hold the sum of, whatever they are.
_LONGEST = (1 << 31) // (255 * 255) - 1
# Channels of a group that a convolution of bytes needs.
_LEAST = 3


@record
class _Bytes:
    """A factor: bytes, their scale and zero point, and the axis along which these run (None: one
    for all)."""

    value: Value
    scale: Value
    zero: Value | None
    axis: int | None


def int8_matmuls(graph: Graph) -> Graph:
    """`graph` with products of dequantised bytes as products of bytes; itself without any."""
    return rewritten(graph, _visit)


def int8_weight_matmuls(graph: Graph) -> Graph:
    """The same where `zero_points` has a form for processors that multiply words of bytes, in
    convolutions too: with constant weights, and with factors whose rows lie in order."""
    return rewritten(graph, partial(_visit, weights=True))


def _visit(b: GraphBuilder, node: Node, inputs: Inputs, weights: bool = False) -> Replacement:
    match node.op.name:
        case "gemm":
            return _gemm(b, node, inputs, weights)
        case "conv":
            return _conv(b, node, inputs) if weights else None
        case "matmul" if inputs[0] is not None and inputs[1] is not None:
            left, right = _bytes(b, inputs[0]), _bytes(b, inputs[1])
            found = _matmul(b, node, left, right, weights)
            return None if found is None else [found]
    return None


def _conv(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    x, w, *rest = inputs
    attrs = node.attrs
    if x is None or w is None or not isinstance(attrs, ConvAttrs):
        return None
    left, right = _bytes(b, x), _bytes(b, w)
    if left is None or right is None or left.axis is not None or right.axis not in (None, 0):
        return None
    if not {left.value.type.dtype, right.value.type.dtype} <= {I8, U8}:
        return None
    depth = as_int(element_count(w.type.shape[1:]))
    # Channels of few others fill no words.
    few = (as_int(w.type.shape[1]) or 0) < _LEAST
    if few or depth is None or depth > _LONGEST or not _admitted(b, node, left, right):
        return None
    sums = conv_integer(b, attrs, left.value, right.value, left.zero, right.zero)
    sums = emit(b, "cast", sums, to=F32)
    scale = channels(b, emit(b, "mul", left.scale, right.scale), sums)
    found = emit(b, "mul", sums, scale)
    if rest and rest[0] is not None:
        found = emit(b, "add", found, channels(b, rest[0], sums))
    return [found]


def _admitted(b: GraphBuilder, node: Node, left: _Bytes, right: _Bytes) -> bool:
    return admits(b, node, left.zero, right.value, right.zero)


def _gemm(b: GraphBuilder, node: Node, inputs: Inputs, weights: bool) -> Replacement:
    attrs = node.attrs
    if not isinstance(attrs, GemmAttrs) or attrs.alpha != 1 or attrs.beta != 1:
        return None
    x, w, *rest = inputs
    if x is None or w is None:
        return None
    left, right = _bytes(b, x), _bytes(b, w)
    left = _transposed(b, left) if attrs.trans_a else left
    right = _transposed(b, right) if attrs.trans_b else right
    found = _matmul(b, node, left, right, weights)
    if found is None:
        return None
    shift = rest[0] if rest else None
    return [found if shift is None else emit(b, "add", found, shift)]


def _bytes(b: GraphBuilder, value: Value) -> _Bytes | None:
    """The bytes that `value` is made of, seen through a transposition of two axes."""
    found = dequantized(b, value)
    if found is None:
        return None
    node, transposed = found
    x, scale, *rest = node.inputs
    if x is None or scale is None or node.attrs.block_size:
        return None
    if scale.type.dtype is not F32 or value.type.dtype is not F32:
        return None
    if x.type.dtype not in (I8, U8, *FLOAT8) or scale.type.rank > 1:
        return None
    one = scale.type.rank == 0 or scale.type.static_shape == (1,)
    bytes_ = _Bytes(x, scale, rest[0] if rest else None, None if one else node.attrs.axis)
    return _transposed(b, bytes_) if transposed else bytes_


def _transposed(b: GraphBuilder, found: _Bytes | None) -> _Bytes | None:
    """The bytes of the transposed matrix."""
    if found is None or found.value.type.rank != 2:
        return None
    array = b.array(found.value)
    old = found.value
    if array is not None:
        value = b.constant(array.T.copy(), old.name, old.type.dtype, b.sources(old))
    else:
        value = emit(b, "transpose", old, perm=(1, 0))
    return replace(found, value=value, axis=None if found.axis is None else 1 - found.axis)


def _matmul(
    b: GraphBuilder, node: Node, left: _Bytes | None, right: _Bytes | None, weights: bool
) -> Value | None:
    if left is None or right is None or left.axis is not None:
        return None
    rank = right.value.type.rank
    length = as_int(left.value.type.shape[-1]) if left.value.type.rank > 1 else None
    if rank < 2 or length is None or length > _LONGEST or right.axis not in (None, rank - 1):
        return None
    if weights and not _admitted(b, node, left, right):
        return None
    wide = _sums(b, left, right)
    scale = None if wide is None else emit(b, "mul", left.scale, right.scale)
    return None if scale is None else emit(b, "mul", wide, scale)


def _sums(b: GraphBuilder, left: _Bytes, right: _Bytes) -> Value | None:
    """The sums of products without scales, as f32."""
    kinds = {f.value.type.dtype for f in (left, right)}
    if kinds <= {I8, U8}:
        sums = emit(b, "matmul_integer", left.value, right.value, left.zero, right.zero)
        return emit(b, "cast", sums, to=F32)
    if len(kinds) > 1 or not all(_is_zero(b, f.zero) for f in (left, right)):
        return None
    if right.value.type.rank != 2:
        return None
    return emit(b, "matmul_levels", left.value, right.value)


def _is_zero(b: GraphBuilder, value: Value | None) -> bool:
    array = None if value is None else b.array(value)
    return value is None or (array is not None and not array.any())
