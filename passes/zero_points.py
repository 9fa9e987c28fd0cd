"""Zero points leave sums of products of bytes: what is left are unsigned times signed bytes.

    matmul_integer(%x, %w, %zx, %zw)
      ->  sub(matmul_integer(%u, %v), mul(%zx + 128, %s))   x i8: u = x + 128; x u8: u = x, no 128
                                                       v = w - zw in i8, s its sums, constants

    qlinear_matmul(...)  ->  the same, and what requantises it

Integers wrap, so all of it is exact.  Weights are constants that fit signed bytes after their zero
point is taken off, as most do; of other u8 ones 128 is taken off, and sums of x make up for it.
Convolutions need the zero point of a padded image to be a constant: their border holds it.

    quantize_linear(%y : i8)  ->  quantize_linear(%y : u8), and back     zero point 128 more

Requires nothing.  Establishes products that processors have instructions for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.index import Index, as_index, const
from tcc.ir.op import Array, NoAttrs
from tcc.ir.rewrite import Inputs, rewritten
from tcc.ir.types import F32, I8, I32, U8, DType
from tcc.ops import OPS
from tcc.ops.movement import ReshapeAttrs
from tcc.ops.quantize import DequantizeAttrs, QuantizeAttrs
from tcc.ops.quantized import ConvIntegerAttrs
from tcc.ops.reduce import ReduceAttrs
from tcc.ops.unary import CastAttrs
from tcc.ops.window import ConvAttrs

# Half the range of a byte: what makes a signed one unsigned.
_HALF = 128


def split_zero_points(graph: Graph) -> Graph:
    """`graph` with products of bytes without zero points; itself where there is nothing to do."""
    return rewritten(rewritten(graph, _unsigned), _visit)


def admits(
    b: GraphBuilder, node: Node, x_zero: Value | None, w: Value, w_zero: Value | None
) -> bool:
    """Whether the product that `node` is, with these zero points, becomes one without."""
    weights = _weights(b, w, w_zero, 0 if isinstance(node.attrs, ConvAttrs) else -1)
    if weights is None:
        return False
    if not isinstance(node.attrs, ConvAttrs):
        return True
    return weights.offset is None and (_unpadded(node.attrs) or _constant(b, x_zero) is not None)


# ---- activations --------------------------------------------------------------------------------


def _unsigned(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    """Activations quantised to signed bytes become unsigned ones."""
    attrs = node.attrs
    if isinstance(attrs, QuantizeAttrs) and attrs.to is I8:
        x, scale, *rest = inputs
        zero = _raised(b, rest[0] if rest else None, scale)
        if zero is None:
            return None
        made = b.add(OPS["quantize_linear"], [x, scale, zero], replace(attrs, to=U8), loc=node.loc)
        return [_emit(b, node, "cast", _emit(b, node, "bitwise_xor", *made, _half(b)), to=I8)]
    if isinstance(attrs, DequantizeAttrs) and inputs[0] is not None:
        source = _unflipped(b, inputs[0])
        _, scale, *rest = inputs
        zero = None if source is None else _raised(b, rest[0] if rest else None, scale)
        if zero is not None:
            return b.add(OPS[node.op.name], [source, scale, zero], attrs, loc=node.loc)
    return None


def _raised(b: GraphBuilder, zero: Value | None, scale: Value | None) -> Value | None:
    """A constant signed zero point as that of unsigned bytes."""
    assert scale is not None
    if zero is not None:
        array = b.array(zero)
    else:
        shape = scale.type.static_shape
        array = None if shape is None else np.zeros(shape, np.int8)
    if array is None:
        return None
    return b.constant((array.astype(np.int16) + _HALF).astype(np.uint8), "zero")


def _raised_bytes(b: GraphBuilder, node: Node, x: Value) -> Value:
    """Signed bytes plus 128, as unsigned ones."""
    found = _unflipped(b, x)
    if found is not None:
        return found
    return _emit(b, node, "bitwise_xor", _emit(b, node, "cast", x, to=U8), _half(b))


def _unflipped(b: GraphBuilder, x: Value) -> Value | None:
    """The unsigned bytes that `x` is made of by `_unsigned`."""
    back = b.producer(x)
    if back is None or back.op.name != "cast" or x.type.dtype is not I8:
        return None
    (flipped,) = back.inputs
    flip = None if flipped is None else b.producer(flipped)
    if flip is None or flip.op.name != "bitwise_xor" or flip.inputs[1] is None:
        return None
    mask = b.array(flip.inputs[1])
    return flip.inputs[0] if mask is not None and mask.ndim == 0 and mask == _HALF else None


# ---- products -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Weights:
    """Signed bytes `array`, which are the weights less their zero points where `offset` is None,
    and lack this number (i32, spread to their columns) otherwise."""

    array: Array
    offset: Array | None


def _visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    match node.op.name:
        case "matmul_integer" | "conv_integer":
            x, w, *zeros = inputs
            x_zero, w_zero = (*zeros, None, None)[:2]
            if x is None or w is None:
                return None
            plain = x.type.dtype is U8 and w.type.dtype is I8 and x_zero is None and w_zero is None
            found = None if plain else _sums(b, node, (x, x_zero), (w, w_zero))
        case "qlinear_matmul" | "qlinear_conv":
            found = _requantised(b, node, inputs)
        case _:
            return None
    return None if found is None else [found]


def _requantised(b: GraphBuilder, node: Node, inputs: Inputs) -> Value | None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = inputs
    if x is None or w is None or x_scale is None or w_scale is None or y_zero is None:
        return None
    if any(v.type.rank > 0 and v.type.static_shape != (1,) for v in (x_scale, y_zero)):
        return None
    sums = _sums(b, node, (x, x_zero), (w, w_zero))
    if sums is None:
        return None
    last = not isinstance(node.attrs, ConvAttrs)
    if bias and bias[0] is not None:
        sums = _emit(b, node, "add", sums, _channels(b, node, bias[0], sums, last))
    factor = _emit(b, node, "div", _emit(b, node, "mul", x_scale, w_scale), y_scale)
    factor = _channels(b, node, factor, sums, last)
    scaled = _emit(b, node, "mul", _emit(b, node, "cast", sums, to=F32), factor)
    return levels(b, node, scaled, y_zero)


def levels(b: GraphBuilder, node: Node, scaled: Value, zero: Value) -> Value:
    """`scaled` rounded to even, plus `zero`, saturated to its type."""
    shift = _emit(b, node, "cast", zero, to=F32)
    if zero.type.rank:
        shift = _emit(b, node, "reshape", shift, shape=())
    moved = _emit(b, node, "add", _emit(b, node, "round", scaled), shift)
    return _emit(b, node, "cast", moved, to=zero.type.dtype)


def _sums(
    b: GraphBuilder, node: Node, x: tuple[Value, Value | None], w: tuple[Value, Value | None]
) -> Value | None:
    """The sums of products of both less their zero points, in i32."""
    conv = node.attrs if isinstance(node.attrs, ConvAttrs) else None
    value, zero = x
    weights = _weights(b, *w, 0 if conv else -1)
    if weights is None or (zero is not None and zero.type.rank and zero.type.static_shape != (1,)):
        return None
    known = _constant(b, zero)
    half = _HALF if value.type.dtype is I8 else 0
    if conv is not None and ((known is None and not _unpadded(conv)) or weights.offset is not None):
        return None
    if half:
        value = _raised_bytes(b, node, value)
    signed = b.constant(weights.array, w[0].name, I8, b.sources(w[0]))
    if conv is None:
        (sums,) = b.add(OPS["matmul_integer"], [value, signed], NoAttrs(), loc=node.loc)
        wide = weights.array.sum(-2, dtype=np.int32, keepdims=weights.array.ndim > 1)
    else:
        border = 0 if known is None else known + half
        attrs = ConvIntegerAttrs(
            conv.strides, conv.before, conv.after, conv.dilations, conv.group, border
        )
        (sums,) = b.add(OPS["conv_integer"], [value, signed], attrs, loc=node.loc)
        filters = weights.array.reshape(len(weights.array), -1)
        wide = filters.sum(1, dtype=np.int32).reshape(-1, *[1] * (value.type.rank - 2))
    return _with_offsets(b, node, sums, (value, zero, known, half), weights, wide)


def _with_offsets(
    b: GraphBuilder,
    node: Node,
    sums: Value,
    x: tuple[Value, Value | None, int | None, int],
    weights: _Weights,
    wide: Array,
) -> Value:
    """Sums plus what the offsets of x (unsigned bytes, less `zero + half`) and of the weights add;
    `wide` are the sums of the signed weights."""
    value, zero, known, half = x
    if weights.offset is not None:
        # sum (u - z)(v + o) = sum u v - z (sum v + K o) + o sum u
        length = int(weights.array.shape[-2])
        wide = (wide + length * weights.offset).astype(np.int32)
        rows = _emit(b, node, "cast", value, to=I32)
        axes = ReduceAttrs((value.type.rank - 1,), True)
        (rows,) = b.add(OPS["reduce_sum"], [rows], axes, loc=node.loc)
        sums = _emit(b, node, "add", sums, _emit(b, node, "mul", rows, b.constant(weights.offset)))
    if known is not None:
        shift = (known + half) * wide
        return _emit(b, node, "sub", sums, b.constant(shift)) if shift.any() else sums
    assert zero is not None
    point = _emit(b, node, "cast", zero, to=I32)
    point = _emit(b, node, "reshape", point, shape=()) if zero.type.rank else point
    point = _emit(b, node, "add", point, b.constant(np.asarray(half, np.int32))) if half else point
    return _emit(b, node, "sub", sums, _emit(b, node, "mul", b.constant(wide), point))


# ---- weights ------------------------------------------------------------------------------------


def _weights(b: GraphBuilder, w: Value, zero: Value | None, axis: int) -> _Weights | None:
    """Constant weights as signed bytes; zero points run along `axis`."""
    array = b.array(w)
    point = np.zeros((), np.int32) if zero is None else b.array(zero)
    if array is None or point is None or array.ndim < 2 or not array.size:
        return None
    point = point.astype(np.int32)
    if point.size == 1:
        point = point.reshape(())
    elif axis == 0:
        point = point.reshape(-1, *[1] * (array.ndim - 1))
    elif point.ndim > 1:
        return None
    moved = array.astype(np.int16) - point
    if moved.min() >= -_HALF and moved.max() < _HALF:
        return _Weights(moved.astype(np.int8), None)
    if w.type.dtype is I8:
        return _Weights(array, -point)
    return _Weights((array.astype(np.int16) - _HALF).astype(np.int8), _HALF - point)


def _constant(b: GraphBuilder, zero: Value | None) -> int | None:
    """A zero point that is one constant, 0 for none."""
    array = np.zeros((), np.int32) if zero is None else b.array(zero)
    return int(array.reshape(())) if array is not None and array.size == 1 else None


def _unpadded(attrs: ConvAttrs) -> bool:
    return all(as_index(n) is const(0) for n in (*attrs.before, *attrs.after))


# ---- nodes --------------------------------------------------------------------------------------


def _half(b: GraphBuilder) -> Value:
    return b.constant(np.asarray(_HALF, np.uint8), "half")


def _channels(b: GraphBuilder, node: Node, value: Value, like: Value, last: bool) -> Value:
    """A value that is one number, or one for each channel of `like`."""
    if value.type.rank == 0:
        return value
    if value.type.static_shape == (1,):
        return _emit(b, node, "reshape", value, shape=())
    if last:
        return value
    ones = [const(1)] * (like.type.rank - 2)
    return _emit(b, node, "reshape", value, shape=(value.type.shape[0], *ones))


def _emit(
    b: GraphBuilder,
    node: Node,
    op: str,
    *inputs: Value | None,
    to: DType | None = None,
    shape: tuple[Index, ...] | None = None,
) -> Value:
    """The result of one more node in place of `node`."""
    attrs: NoAttrs | CastAttrs | ReshapeAttrs = NoAttrs()
    if to is not None:
        attrs = CastAttrs(to)
    elif shape is not None:
        attrs = ReshapeAttrs(shape)
    (made,) = b.add(OPS[op], inputs, attrs, loc=node.loc)
    return made
