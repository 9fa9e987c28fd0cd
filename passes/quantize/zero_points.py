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

from dataclasses import fields, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import const
from tcc.ir.op import Array
from tcc.ir.types import F32, I8, I32, U8, DType
from tcc.ops.algebra.movement import TransposeAttrs
from tcc.ops.algebra.quantize import DequantizeAttrs, QuantizeAttrs
from tcc.ops.algebra.window import ConvAttrs
from tcc.passes.graph.emit import emit
from tcc.record import record

# A factor: bytes, and their zero point.
_Bytes: TypeAlias = tuple[Value, Value | None]
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
    return weights.offset is None and (
        node.attrs.border_fill is None or _constant(b, x_zero) is not None
    )


# ---- activations --------------------------------------------------------------------------------


def _quantised(b: GraphBuilder, node: Node, inputs: Inputs, to: DType) -> Replacement:
    """Activations quantised to bytes of the other sign become such of type `to`."""
    attrs = node.attrs
    if isinstance(attrs, QuantizeAttrs) and attrs.to in (I8, U8) and attrs.to is not to:
        x, scale, *rest = inputs
        zero = _flipped_zero(b, rest[0] if rest else None, scale, to)
        if zero is None:
            return None
        made = b.add(node.op, [x, scale, zero], replace(attrs, to=to))
        return [_flipped(b, *made)]
    if isinstance(attrs, DequantizeAttrs) and inputs[0] is not None:
        source = _unflipped(b, inputs[0])
        if source is None or source.type.dtype is not to:
            return None
        _, scale, *rest = inputs
        zero = _flipped_zero(b, rest[0] if rest else None, scale, to)
        if zero is not None:
            return b.add(node.op, [source, scale, zero], attrs)
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


def _flipped(b: GraphBuilder, x: Value) -> Value:
    """Bytes of the other sign: 128 more, or less."""
    if x.type.dtype is I8:
        return emit(b, "bitwise_xor", emit(b, "cast", x, to=U8), _half(b))
    return emit(b, "cast", emit(b, "bitwise_xor", x, _half(b)), to=I8)


def _as_type(b: GraphBuilder, x: Value, to: DType) -> Value:
    """Bytes as such of type `to`."""
    if x.type.dtype is to:
        return x
    source = _unflipped(b, x)
    return _flipped(b, x) if source is None else source


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
        sums = emit(b, "add", sums, channels(b, bias[0], sums, last))
    factor = emit(b, "div", emit(b, "mul", x_scale, w_scale), y_scale)
    factor = channels(b, factor, sums, last)
    scaled = emit(b, "mul", emit(b, "cast", sums, to=F32), factor)
    return levels(b, scaled, y_zero)


def levels(b: GraphBuilder, scaled: Value, zero: Value) -> Value:
    """`scaled` rounded to even, plus `zero`, saturated to its type."""
    shift = emit(b, "cast", zero, to=F32)
    if zero.type.rank:
        shift = emit(b, "reshape", shift, shape=())
    moved = emit(b, "add", emit(b, "round", scaled), shift)
    return emit(b, "cast", moved, to=zero.type.dtype)


def _sums(b: GraphBuilder, node: Node, x: _Bytes, w: _Bytes, to: DType | None) -> Value | None:
    """The sums of products of both less their zero points, in i32."""
    conv = node.attrs if isinstance(node.attrs, ConvAttrs) else None
    value, zero = x
    to = value.type.dtype if to is None else to
    if zero is not None and zero.type.rank and zero.type.static_shape != (1,):
        return None
    weights = _weights(b, *w, 0 if conv else -1)
    if weights is None:
        return _computed_sums(b, x, w, to) if _computed(b, node, *w) else None
    known = _constant(b, zero)
    if conv is not None and (
        (known is None and conv.border_fill is not None) or weights.offset is not None
    ):
        return None
    u = _as_type(b, value, to)
    v = b.constant(weights.array, w[0].name, I8, b.sources(w[0]))
    if conv is None:
        sums = emit(b, "matmul_integer", u, v)
        columns = weights.array.sum(-2, dtype=np.int32, keepdims=value.type.rank > 1)
    else:
        border = 0 if known is None else known + _shift(value, to)
        sums = conv_integer(b, conv, u, v, border=border)
        filters = weights.array.reshape(len(weights.array), -1)
        columns = filters.sum(1, dtype=np.int32).reshape(-1, *[1] * (value.type.rank - 2))
    if weights.offset is not None:
        # sum (u - z)(v + o) = sum u v - z (sum v + K o) + o sum u
        columns = (columns + int(weights.array.shape[-2]) * weights.offset).astype(np.int32)
        rows = _totals(b, emit(b, "cast", u, to=I32), -1)
        sums = emit(b, "add", sums, emit(b, "mul", rows, b.constant(weights.offset)))
    if known is not None:
        offsets = (known + _shift(value, to)) * columns
        return emit(b, "sub", sums, b.constant(offsets)) if offsets.any() else sums
    z = _point(b, *x, to)
    return emit(b, "sub", sums, emit(b, "mul", b.constant(columns), z))


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


def _computed_sums(b: GraphBuilder, x: _Bytes, w: _Bytes, to: DType) -> Value:
    """sum (u - z)(v - o) = sum u v - z sum v - o sum (u - z), of bytes x and w that are computed: u
    of type `to`, v signed, z and o the zero points of these."""
    u, z = _as_type(b, x[0], to), _point(b, *x, to)
    v, zero = _as_type(b, w[0], I8), _point(b, *w, I8)
    sums = emit(b, "matmul_integer", u, v)
    if z is not None:
        columns = _totals(b, emit(b, "cast", v, to=I32), -2, u.type.rank > 1)
        sums = emit(b, "sub", sums, emit(b, "mul", columns, z))
    if zero is not None:
        rows = emit(b, "cast", u, to=I32)
        rows = _totals(b, rows if z is None else emit(b, "sub", rows, z), -1)
        sums = emit(b, "sub", sums, emit(b, "mul", rows, zero))
    return sums


def _totals(b: GraphBuilder, value: Value, axis: int, keepdims: bool = True) -> Value:
    return emit(b, "reduce_sum", value, axes=(axis % value.type.rank,), keepdims=keepdims)


def _shift(value: Value, to: DType) -> int:
    """By how much bytes grow that become such of type `to`."""
    return 0 if value.type.dtype is to else _HALF if to is U8 else -_HALF


def _known(b: GraphBuilder, zero: Value | None) -> Array | None:
    """Zero points that are constant, 0 for none."""
    return np.zeros((), np.int32) if zero is None else b.array(zero)


def _point(b: GraphBuilder, value: Value, zero: Value | None, to: DType) -> Value | None:
    """The zero point of bytes that become such of type `to`, in i32; None for zero."""
    shift = _shift(value, to)
    known = _known(b, zero)
    if known is not None:
        moved = known.astype(np.int32) + shift
        moved = moved.reshape(()) if moved.size == 1 else moved
        return b.constant(np.asarray(moved, np.int32)) if moved.any() else None
    assert zero is not None
    point = emit(b, "cast", zero, to=I32)
    point = emit(b, "reshape", point, shape=()) if zero.type.static_shape == (1,) else point
    return emit(b, "add", point, b.constant(np.asarray(shift, np.int32))) if shift else point


# ---- weights ------------------------------------------------------------------------------------


def _weights(b: GraphBuilder, w: Value, zero: Value | None, axis: int) -> _Weights | None:
    """Constant weights as signed bytes; zero points run along `axis`."""
    array = b.array(w)
    point = _known(b, zero)
    if array is None or point is None or array.ndim < 2 or not array.size:
        return None
    point = point.astype(np.int32)
    if point.size == 1:
        point = point.reshape(())
    elif axis == 0:
        point = point.reshape(-1, *[1] * (array.ndim - 1))
    elif point.ndim > 1:
        return None
    moved = signed_bytes(array, point)
    if moved is not None:
        return _Weights(moved, None)
    if w.type.dtype is I8:
        return _Weights(array, -point)
    return _Weights((array.astype(np.int16) - _HALF).astype(np.int8), _HALF - point)


def signed_bytes(array: Array, zero: Array) -> Array | None:
    """Bytes less their zero points as signed ones; None where one does not fit."""
    moved = array.astype(np.int32) - zero
    fits = moved.min() >= -_HALF and moved.max() < _HALF
    return moved.astype(np.int8) if fits else None


def _constant(b: GraphBuilder, zero: Value | None) -> int | None:
    """A zero point that is one constant, 0 for none."""
    array = _known(b, zero)
    return int(array.reshape(())) if array is not None and array.size == 1 else None


# ---- nodes --------------------------------------------------------------------------------------


def conv_integer(
    b: GraphBuilder, attrs: ConvAttrs, *operands: Value | None, border: int = 0
) -> Value:
    """The convolution `attrs` of bytes."""
    geometry = {f.name: getattr(attrs, f.name) for f in fields(ConvAttrs)}
    return emit(b, "conv_integer", *operands, **geometry, border=border)


def dequantized(b: GraphBuilder, value: Value | None) -> tuple[Node, bool] | None:
    """The dequantisation that makes `value`, and whether of the transposed matrix."""
    node = None if value is None else b.producer(value)
    if node is not None and node.attrs == TransposeAttrs((1, 0)):
        found = dequantized(b, node.inputs[0])
        return None if found is None else (found[0], not found[1])
    return None if node is None or node.op.name != "dequantize_linear" else (node, False)


def _half(b: GraphBuilder) -> Value:
    return b.constant(np.asarray(_HALF, np.uint8), "half")


def channels(b: GraphBuilder, value: Value, like: Value, last: bool = False) -> Value:
    """A value that is one number, or one for each channel of `like`."""
    if value.type.static_shape == (1,):
        return emit(b, "reshape", value, shape=())
    if last or value.type.rank == 0:
        return value
    ones = [const(1)] * (like.type.rank - 2)
    return emit(b, "reshape", value, shape=(value.type.shape[0], *ones))
