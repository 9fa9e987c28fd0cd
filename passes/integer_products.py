"""Products of dequantised bytes and floats of a byte are products of these, scaled once.

    matmul(dequantize(%a, sa, za), dequantize(%b, sb, zb))
      ->  mul(cast(matmul_integer(%a, %b, za, zb)), sa * sb)         scales by tensor or by column

    matmul(dequantize(%a, sa), dequantize(%b, sb))                 floats of a byte
      ->  mul(matmul_levels(%a, %b), sa * sb)

The sums of integers are exact where those of scaled floats are rounded, and so are the products
of the floats.  Weights stay bytes, and matrix units
multiply them twice as fast as halves; so this is for targets that have such units.

Requires nothing; constants must not be folded yet, which would leave floats of the weights.
Establishes that no matmul or gemm is left whose factors are such bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.index import as_int
from tcc.ir.op import NoAttrs
from tcc.ir.rewrite import Inputs, rewritten
from tcc.ir.types import F32, FLOAT8, I8, U8
from tcc.ops import OPS
from tcc.ops.contract import GemmAttrs
from tcc.ops.levels import LevelsAttrs
from tcc.ops.movement import TransposeAttrs
from tcc.ops.quantize import DequantizeAttrs
from tcc.ops.unary import CastAttrs

# Products of bytes that 32 bits hold the sum of, whatever they are.
_LONGEST = (1 << 31) // (255 * 255) - 1


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A factor: bytes, their scale and zero point, and the axis along which these run (None: one
    for all)."""

    value: Value
    scale: Value
    zero: Value | None
    axis: int | None


def integer_products(graph: Graph) -> Graph:
    """`graph` with products of dequantised bytes as products of bytes; itself without any."""
    return rewritten(graph, _visit)


def _visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    if node.op.name == "gemm":
        return _gemm(b, node, inputs)
    if node.op.name != "matmul" or inputs[0] is None or inputs[1] is None:
        return None
    found = _product(b, node, _bytes(b, inputs[0]), _bytes(b, inputs[1]))
    return None if found is None else [found]


def _gemm(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    attrs = node.attrs
    if not isinstance(attrs, GemmAttrs) or attrs.alpha != 1 or attrs.beta != 1:
        return None
    x, w, *rest = inputs
    if x is None or w is None:
        return None
    left, right = _bytes(b, x), _bytes(b, w)
    left = _turned(b, node, left) if attrs.trans_a else left
    right = _turned(b, node, right) if attrs.trans_b else right
    found = _product(b, node, left, right)
    if found is None:
        return None
    shift = rest[0] if rest else None
    return [found] if shift is None else list(b.add(OPS["add"], [found, shift], loc=node.loc))


def _bytes(b: GraphBuilder, value: Value) -> _Bytes | None:
    """The bytes that `value` is made of, seen through a transposition of two axes."""
    producer = b.producer(value)
    if producer is None:
        return None
    if producer.op.name == "transpose" and producer.attrs == TransposeAttrs((1, 0)):
        (source,) = producer.inputs
        return None if source is None else _turned(b, producer, _bytes(b, source))
    attrs = producer.attrs
    if producer.op.name != "dequantize_linear" or not isinstance(attrs, DequantizeAttrs):
        return None
    x, scale, *rest = producer.inputs
    if x is None or scale is None or attrs.block_size or scale.type.dtype is not F32:
        return None
    if x.type.dtype not in (I8, U8, *FLOAT8) or scale.type.rank > 1:
        return None
    one = scale.type.rank == 0 or scale.type.static_shape == (1,)
    return _Bytes(x, scale, rest[0] if rest else None, None if one else attrs.axis)


def _turned(b: GraphBuilder, node: Node, found: _Bytes | None) -> _Bytes | None:
    """The bytes of the transposed matrix."""
    if found is None or found.value.type.rank != 2:
        return None
    (value,) = b.add(OPS["transpose"], [found.value], TransposeAttrs((1, 0)), loc=node.loc)
    return replace(found, value=value, axis=None if found.axis is None else 1 - found.axis)


def _product(
    b: GraphBuilder, node: Node, left: _Bytes | None, right: _Bytes | None
) -> Value | None:
    if left is None or right is None or left.axis is not None:
        return None
    rank = right.value.type.rank
    length = as_int(left.value.type.shape[-1]) if left.value.type.rank > 1 else None
    if rank < 2 or length is None or length > _LONGEST or right.axis not in (None, rank - 1):
        return None
    wide = _sums(b, node, left, right)
    if wide is None:
        return None
    (scale,) = b.add(OPS["mul"], [left.scale, right.scale], NoAttrs(), loc=node.loc)
    (found,) = b.add(OPS["mul"], [wide, scale], NoAttrs(), loc=node.loc)
    return found


def _sums(b: GraphBuilder, node: Node, left: _Bytes, right: _Bytes) -> Value | None:
    """The sums of products without scales, as f32."""
    kinds = {f.value.type.dtype for f in (left, right)}
    if kinds <= {I8, U8}:
        operands = [left.value, right.value, left.zero, right.zero]
        (sums,) = b.add(OPS["matmul_integer"], operands, NoAttrs(), loc=node.loc)
        return b.add(OPS["cast"], [sums], CastAttrs(F32), loc=node.loc)[0]
    if len(kinds) > 1 or not all(_is_zero(b, f.zero) for f in (left, right)):
        return None
    if right.value.type.rank != 2:
        return None
    factors = [left.value, right.value]
    return b.add(OPS["matmul_levels"], factors, LevelsAttrs(), loc=node.loc)[0]


def _is_zero(b: GraphBuilder, value: Value | None) -> bool:
    array = None if value is None else b.array(value)
    return value is None or (array is not None and not array.any())
