"""Zero points leave sums of products of bytes: what is left are bytes times signed ones.

    matmul_integer(%x, %w, %zx, %zw)
      ->  sub(matmul_integer(%u, %v), mul(%zx + 128, %s))   x i8: u = x + 128; x u8: u = x, no 128
                                                       v = w - zw in i8, s its sums, constants

    qlinear_matmul(...)  ->  the same, and what requantises it

That is for instructions of unsigned bytes with signed ones; for those of signed ones u is x or
x - 128, and x where there are both.  Integers wrap, so all of it is exact.  Weights are constants
that fit signed bytes after their zero point is taken off, as most do; of other u8 ones 128 is taken
off, and sums of x make up for it.  So they do where both factors are computed, for the zero point
of the second.
Convolutions need the zero point of a padded image to be a constant: their border holds it.

    quantize_linear(%y : i8)  ->  quantize_linear(%y : u8), and back     zero point 128 more

Requires nothing.  Establishes products that processors have instructions for.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import Index, as_index, const
from tcc.ir.op import Array, NoAttrs
from tcc.ir.types import F32, I8, I32, U8, DType
from tcc.ops import OPS
from tcc.ops.algebra.movement import ReshapeAttrs, TransposeAttrs
from tcc.ops.algebra.quantize import DequantizeAttrs, QuantizeAttrs
from tcc.ops.algebra.quantized import ConvIntegerAttrs
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.algebra.unary import CastAttrs
from tcc.ops.algebra.window import ConvAttrs
from tcc.record import record

# Half the range of a byte: what makes a signed one unsigned.
_HALF = 128


def split_zero_points(graph: Graph, to: DType | None = U8) -> Graph:
    """`graph` with products of bytes of type `to` (None: as they are) with signed ones, without
    zero points; itself where there is nothing to do."""
    graph = graph if to is None else rewritten(graph, partial(_quantised, to=to))
    return rewritten(graph, partial(_visit, to=to))


def admits(
    b: GraphBuilder, node: Node, x_zero: Value | None, w: Value, w_zero: Value | None
) -> bool:
    """Whether the product that `node` is, with these zero points, becomes one without."""
    weights = _weights(b, w, w_zero, 0 if isinstance(node.attrs, ConvAttrs) else -1)
    if weights is None:
        return _computed(b, node, w, w_zero) and not _is_turned(b, w)
    if not isinstance(node.attrs, ConvAttrs):
        return True
    return weights.offset is None and (_unpadded(node.attrs) or _constant(b, x_zero) is not None)


# ---- activations --------------------------------------------------------------------------------


def _quantised(b: GraphBuilder, node: Node, inputs: Inputs, to: DType) -> Replacement:
    """Activations quantised to bytes of the other sign become such of type `to`."""
    attrs = node.attrs
    if isinstance(attrs, QuantizeAttrs) and attrs.to in (I8, U8) and attrs.to is not to:
        x, scale, *rest = inputs
        zero = _flipped_zero(b, rest[0] if rest else None, scale, to)
        if zero is None:
            return None
        made = b.add(OPS["quantize_linear"], [x, scale, zero], replace(attrs, to=to), loc=node.loc)
        return [_flipped(b, node, *made)]
    if isinstance(attrs, DequantizeAttrs) and inputs[0] is not None:
        source = _unflipped(b, inputs[0])
        if source is None or source.type.dtype is not to:
            return None
        _, scale, *rest = inputs
        zero = _flipped_zero(b, rest[0] if rest else None, scale, to)
        if zero is not None:
            return b.add(OPS[node.op.name], [source, scale, zero], attrs, loc=node.loc)
    return None


def _flipped_zero(
    b: GraphBuilder, zero: Value | None, scale: Value | None, to: DType
) -> Value | None:
    """A constant zero point as that of bytes of type `to`, which is not its own."""
    assert scale is not None
    if zero is not None:
        array = b.array(zero)
    else:
        shape = scale.type.static_shape
        array = None if shape is None else np.zeros(shape, np.int8)
    if array is None:
        return None
    moved = array.astype(np.int16) + (_HALF if to is U8 else -_HALF)
    return b.constant(moved.astype(to.carrier), "zero")


def _flipped(b: GraphBuilder, node: Node, x: Value) -> Value:
    """Bytes of the other sign: 128 more, or less."""
    if x.type.dtype is I8:
        return _emit(b, node, "bitwise_xor", _emit(b, node, "cast", x, to=U8), _half(b))
    return _emit(b, node, "cast", _emit(b, node, "bitwise_xor", x, _half(b)), to=I8)


def _as_type(b: GraphBuilder, node: Node, x: Value, to: DType) -> Value:
    """Bytes as such of type `to`."""
    if x.type.dtype is to:
        return x
    source = _unflipped(b, x)
    return _flipped(b, node, x) if source is None else source


def _unflipped(b: GraphBuilder, x: Value) -> Value | None:
    """The bytes of the other sign that `_flipped` made `x` of."""
    last = b.producer(x)
    first = None if last is None or last.inputs[0] is None else b.producer(last.inputs[0])
    if last is None or first is None:
        return None
    flip, cast = (first, last) if x.type.dtype is I8 else (last, first)
    if (flip.op.name, cast.op.name) != ("bitwise_xor", "cast") or flip.inputs[1] is None:
        return None
    mask, (source, *_) = b.array(flip.inputs[1]), first.inputs
    bytes_ = source is not None and {source.type.dtype, x.type.dtype} == {I8, U8}
    return source if bytes_ and mask is not None and mask.ndim == 0 and mask == _HALF else None


# ---- products -----------------------------------------------------------------------------------


@record
class _Weights:
    """Signed bytes `array`, which are the weights less their zero points where `offset` is None,
    and lack this number (i32, spread to their columns) otherwise."""

    array: Array
    offset: Array | None


def _visit(b: GraphBuilder, node: Node, inputs: Inputs, to: DType | None) -> Replacement:
    match node.op.name:
        case "matmul_integer" | "conv_integer":
            x, w, *zeros = inputs
            x_zero, w_zero = (*zeros, None, None)[:2]
            if x is None or w is None:
                return None
            plain = x.type.dtype is (to or x.type.dtype) and w.type.dtype is I8
            plain = plain and x_zero is None and w_zero is None
            found = None if plain else _sums(b, node, (x, x_zero), (w, w_zero), to)
        case "qlinear_matmul" | "qlinear_conv":
            found = _requantised(b, node, inputs, to)
        case _:
            return None
    return None if found is None else [found]


def _requantised(b: GraphBuilder, node: Node, inputs: Inputs, to: DType | None) -> Value | None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = inputs
    if x is None or w is None or x_scale is None or w_scale is None or y_zero is None:
        return None
    if any(v.type.rank > 0 and v.type.static_shape != (1,) for v in (x_scale, y_zero)):
        return None
    if x_scale.type.dtype is not F32:  # scales of 16 bits are multiplied and rounded as they are
        return None
    sums = _sums(b, node, (x, x_zero), (w, w_zero), to)
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
    b: GraphBuilder,
    node: Node,
    x: tuple[Value, Value | None],
    w: tuple[Value, Value | None],
    to: DType | None,
) -> Value | None:
    """The sums of products of both less their zero points, in i32."""
    conv = node.attrs if isinstance(node.attrs, ConvAttrs) else None
    value, zero = x
    to = value.type.dtype if to is None else to
    if zero is not None and zero.type.rank and zero.type.static_shape != (1,):
        return None
    weights = _weights(b, *w, 0 if conv else -1)
    if weights is None:
        return _computed_sums(b, node, x, w, to) if _computed(b, node, *w) else None
    known = _constant(b, zero)
    half = 0 if value.type.dtype is to else _HALF if to is U8 else -_HALF
    if conv is not None and ((known is None and not _unpadded(conv)) or weights.offset is not None):
        return None
    value = _as_type(b, node, value, to)
    signed = b.constant(weights.array, w[0].name, I8, b.sources(w[0]))
    if conv is None:
        (sums,) = b.add(OPS["matmul_integer"], [value, signed], loc=node.loc)
        wide = weights.array.sum(-2, dtype=np.int32, keepdims=value.type.rank > 1)
    else:
        border = 0 if known is None else known + half
        attrs = ConvIntegerAttrs(
            conv.strides, conv.before, conv.after, conv.dilations, conv.group, border
        )
        (sums,) = b.add(OPS["conv_integer"], [value, signed], attrs, loc=node.loc)
        filters = weights.array.reshape(len(weights.array), -1)
        wide = filters.sum(1, dtype=np.int32).reshape(-1, *[1] * (value.type.rank - 2))
    return _with_offsets(b, node, sums, (value, zero, known, half), weights, wide)


def _computed(b: GraphBuilder, node: Node, w: Value, zero: Value | None) -> bool:
    """Whether a product is one with bytes that are computed, and a zero point for all of them or
    for each column."""
    plain = w.type.rank > 1 and (zero is None or zero.type.rank < 2)
    return plain and not isinstance(node.attrs, ConvAttrs) and b.array(w) is None


def _is_turned(b: GraphBuilder, value: Value) -> bool:
    """Whether neighbours of the last axis lie apart in memory: words would be put together byte by
    byte, and products of floats are as fast."""
    attrs = None if (producer := b.producer(value)) is None else producer.attrs
    return isinstance(attrs, TransposeAttrs) and attrs.perm[-1] != value.type.rank - 1


def _computed_sums(
    b: GraphBuilder,
    node: Node,
    x: tuple[Value, Value | None],
    w: tuple[Value, Value | None],
    to: DType,
) -> Value:
    """sum (u - z)(v - o) = sum u v - z sum v - o sum (u - z), of bytes x and w that are computed: u
    of type `to`, v signed, z and o the zero points of these."""
    u, z = _moved(b, node, *x, to)
    v, zero = _moved(b, node, *w, I8)
    (sums,) = b.add(OPS["matmul_integer"], [u, v], loc=node.loc)
    if z is not None:
        columns = _emit(b, node, "cast", v, to=I32)
        axes = ReduceAttrs((v.type.rank - 2,), u.type.rank > 1)
        (columns,) = b.add(OPS["reduce_sum"], [columns], axes, loc=node.loc)
        sums = _emit(b, node, "sub", sums, _emit(b, node, "mul", columns, z))
    if zero is not None:
        rows = _emit(b, node, "cast", u, to=I32)
        rows = rows if z is None else _emit(b, node, "sub", rows, z)
        axes = ReduceAttrs((u.type.rank - 1,), True)
        (rows,) = b.add(OPS["reduce_sum"], [rows], axes, loc=node.loc)
        sums = _emit(b, node, "sub", sums, _emit(b, node, "mul", rows, zero))
    return sums


def _moved(
    b: GraphBuilder, node: Node, value: Value, zero: Value | None, to: DType
) -> tuple[Value, Value | None]:
    """Bytes as those of type `to`, and their zero point in i32, None for zero."""
    shift = 0 if value.type.dtype is to else _HALF if to is U8 else -_HALF
    value = _as_type(b, node, value, to)
    known = np.zeros((), np.int32) if zero is None else b.array(zero)
    if known is not None:
        moved = known.astype(np.int32) + shift
        moved = moved.reshape(()) if moved.size == 1 else moved
        return value, b.constant(np.asarray(moved, np.int32)) if moved.any() else None
    assert zero is not None
    point = _emit(b, node, "cast", zero, to=I32)
    point = _emit(b, node, "reshape", point, shape=()) if zero.type.static_shape == (1,) else point
    return value, _emit(b, node, "add", point, b.constant(np.asarray(shift, np.int32)))


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
