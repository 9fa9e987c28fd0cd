"""Moves zero points out of contractions of bytes, so that instructions can multiply the bytes.

    matmul_integer(%x : i8, %w, %zx, %zw)
      ->  sub(matmul_integer(%u, %v), mul(%zx + 128, %s))         u = x + 128 in u8
                                                       v = w - zw in i8, s its sums, constants

The form above is for instructions that multiply unsigned by signed bytes.  If x is u8, u is x, and
128 is not added.  For instructions that multiply signed bytes, u is x if x is i8, and x - 128 if x
is u8.  On a target that has both kinds of instructions, u is x.  Integers wrap, so all forms are
exact.

Most weights are constants that fit signed bytes after their zero point is subtracted.  From other
u8 weights 128 is subtracted, and the result gets a correction with sums of x.  If neither factor is
constant, this correction also includes the zero point of the second factor.  A convolution of a
padded image needs a constant zero point, because the padding holds the zero point.

Activations that are quantised to the other 8-bit type are quantised to the type of u instead:

    quantize_linear(%y : i8)  ->  quantize_linear(%y : u8) with a zero point 128 larger

Requires nothing.  Establishes products of bytes for which processors have instructions.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from tcc.frozen import frozen
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import const
from tcc.ir.op import Array
from tcc.ir.types import F32, I8, I32, U8, DType
from tcc.ops.algebra.movement import TransposeAttrs
from tcc.ops.algebra.quantize import DequantizeAttrs, QuantizeAttrs
from tcc.ops.algebra.window import ConvAttrs
from tcc.passes.graph.emit import emit

# A factor of a contraction: the value of its bytes, and its zero point; None stands for 0.
_Bytes: TypeAlias = tuple[Value, Value | None]
# Half the range of a byte: the difference of a signed byte and its unsigned form.
_HALF = 128


def split_zero_points(graph: Graph, to: DType | None = U8) -> Graph:
    """Returns `graph` with contractions of bytes without zero points.

    The first factor has type `to`, or its own type if `to` is None.  The second factor is i8.
    Returns `graph` itself if nothing changes.
    """
    graph = graph if to is None else rewritten(graph, partial(_quantised, to=to))
    return rewritten(graph, partial(_visit, to=to))


def admits(
    b: GraphBuilder, node: Node, x_zero: Value | None, w: Value, w_zero: Value | None
) -> bool:
    """Returns True if the contraction `node` can be computed without these zero points."""
    weights = _weights(b, w, w_zero, 0 if isinstance(node.attrs, ConvAttrs) else -1)
    if weights is None:
        return _computed(b, node, w, w_zero) and not _is_transposed(b, w)
    if not isinstance(node.attrs, ConvAttrs):
        return True
    return weights.offset is None and (
        node.attrs.border_fill is None or _constant(b, x_zero) is not None
    )


# ---- quantised activations ----------------------------------------------------------------------


def _quantised(b: GraphBuilder, node: Node, inputs: Inputs, to: DType) -> Replacement:
    """Changes the 8-bit type of a quantise or dequantise node to `to`.

    A conversion between i8 and u8 is added after a quantise node.  Before a dequantise node it is
    removed.
    """
    attrs = node.attrs
    if isinstance(attrs, QuantizeAttrs) and attrs.to in (I8, U8) and attrs.to is not to:
        x, scale, *zeros = inputs
        zero = _flipped_zero(b, zeros[0] if zeros else None, scale, to)
        if zero is None:
            return None
        quantised = b.add(node.op, [x, scale, zero], replace(attrs, to=to))
        return [_flipped(b, *quantised)]
    if isinstance(attrs, DequantizeAttrs) and inputs[0] is not None:
        source = _unflipped(b, inputs[0])
        if source is None or source.dtype is not to:
            return None
        _, scale, *zeros = inputs
        zero = _flipped_zero(b, zeros[0] if zeros else None, scale, to)
        if zero is not None:
            return b.add(node.op, [source, scale, zero], attrs)
    return None


def _flipped_zero(
    b: GraphBuilder, zero: Value | None, scale: Value | None, to: DType
) -> Value | None:
    """Returns the zero point that belongs to bytes after their conversion to type `to`.

    The bytes have the other 8-bit type before.  Returns None if the zero point is not constant.
    """
    assert scale is not None
    if zero is not None:
        array = b.array(zero)
    else:
        shape = scale.type.static_shape
        array = None if shape is None else np.zeros(shape, np.int8)
    if array is None:
        return None
    shifted = array.astype(np.int16) + (_HALF if to is U8 else -_HALF)
    return b.constant(shifted.astype(to.carrier), "zero")


def _flipped(b: GraphBuilder, x: Value) -> Value:
    """Returns u8 for i8 bytes by adding 128, or i8 for u8 bytes by subtracting 128."""
    if x.dtype is I8:
        return emit(b, "bitwise_xor", emit(b, "cast", x, to=U8), _half(b))
    return emit(b, "cast", emit(b, "bitwise_xor", x, _half(b)), to=I8)


def _as_type(b: GraphBuilder, x: Value, to: DType) -> Value:
    """Returns bytes converted to type `to`, by adding or subtracting 128 if the type changes."""
    if x.dtype is to:
        return x
    source = _unflipped(b, x)
    return _flipped(b, x) if source is None else source


def _unflipped(b: GraphBuilder, x: Value) -> Value | None:
    """Returns the bytes that `_flipped` converted to `x`; None if `x` is not a result of it."""
    last = b.producer(x)
    first = None if last is None or last.inputs[0] is None else b.producer(last.inputs[0])
    if last is None or first is None:
        return None
    flip, cast = (first, last) if x.dtype is I8 else (last, first)
    if (flip.op.name, cast.op.name) != ("bitwise_xor", "cast") or flip.inputs[1] is None:
        return None
    mask, (source, *_) = b.array(flip.inputs[1]), first.inputs
    bytes_ = source is not None and {source.dtype, x.dtype} == {I8, U8}
    return source if bytes_ and mask is not None and mask.ndim == 0 and mask == _HALF else None


# ---- contractions -------------------------------------------------------------------------------


@frozen
class _Weights:
    """Constant weights as signed bytes.

    The weights minus their zero points are `array` plus `offset`.  The offset is i32 and has one
    element, or one for each column.  An offset of None stands for 0.
    """

    array: Array
    offset: Array | None


def _visit(b: GraphBuilder, node: Node, inputs: Inputs, to: DType | None) -> Replacement:
    if node.op.name not in ("matmul_integer", "conv_integer"):
        return None
    x, w, *zeros = inputs
    x_zero, w_zero = (*zeros, None, None)[:2]
    if x is None or w is None:
        return None
    plain = x.dtype is (to or x.dtype) and w.dtype is I8
    plain = plain and x_zero is None and w_zero is None
    sums = None if plain else _sums(b, node, (x, x_zero), (w, w_zero), to)
    return None if sums is None else [sums]


def levels(b: GraphBuilder, scaled: Value, zero: Value) -> Value:
    """Returns `scaled` rounded, ties to even, plus `zero`, saturated to the type of `zero`."""
    shift = emit(b, "cast", zero, to=F32)
    if zero.rank:
        shift = emit(b, "reshape", shift, shape=())
    shifted = emit(b, "add", emit(b, "round", scaled), shift)
    return emit(b, "cast", shifted, to=zero.dtype)


def _sums(b: GraphBuilder, node: Node, x: _Bytes, w: _Bytes, to: DType | None) -> Value | None:
    """Returns the contraction of both factors minus their zero points, in i32.

    Returns None if it cannot be written without zero points.
    """
    conv = node.attrs if isinstance(node.attrs, ConvAttrs) else None
    value, zero = x
    to = value.dtype if to is None else to
    if zero is not None and zero.rank and zero.type.static_shape != (1,):
        return None
    weights = _weights(b, *w, 0 if conv else -1)
    if weights is None:
        return _computed_sums(b, x, w, to) if _computed(b, node, *w) else None
    point = _constant(b, zero)
    if conv is not None and (
        (point is None and conv.border_fill is not None) or weights.offset is not None
    ):
        return None
    u = _as_type(b, value, to)
    v = b.constant(weights.array, w[0].name, I8, b.sources(w[0]))
    if conv is None:
        sums = emit(b, "matmul_integer", u, v)
        columns = weights.array.sum(-2, dtype=np.int32, keepdims=value.rank > 1)
    else:
        border = 0 if point is None else point + _shift(value, to)
        sums = conv_integer(b, conv, u, v, border=border)
        filters = weights.array.reshape(len(weights.array), -1)
        columns = filters.sum(1, dtype=np.int32).reshape(-1, *[1] * (value.rank - 2))
    if weights.offset is not None:
        # x - zx is u - z, w - zw is v + o, and the sum has K terms:
        # sum (u - z)(v + o) = sum u v - z (sum v + K o) + o sum u
        columns = (columns + int(weights.array.shape[-2]) * weights.offset).astype(np.int32)
        rows = _totals(b, emit(b, "cast", u, to=I32), -1)
        sums = emit(b, "add", sums, emit(b, "mul", rows, b.constant(weights.offset)))
    if point is not None:
        offsets = (point + _shift(value, to)) * columns
        return emit(b, "sub", sums, b.constant(offsets)) if offsets.any() else sums
    z = _point(b, *x, to)
    return emit(b, "sub", sums, emit(b, "mul", b.constant(columns), z))


def _computed(b: GraphBuilder, node: Node, w: Value, zero: Value | None) -> bool:
    """Returns True if `w`, the second factor of a matmul, is computed and not a constant.

    Its zero point must be a single number, or a vector of one for each column.
    """
    plain = w.rank > 1 and (zero is None or zero.rank < 2)
    return plain and not isinstance(node.attrs, ConvAttrs) and b.array(w) is None


def _is_transposed(b: GraphBuilder, value: Value) -> bool:
    """Returns True if a transpose puts neighbours along the last axis apart in memory.

    Each operand of an instruction would then be assembled byte by byte, which takes as long as a
    matmul of floats.
    """
    attrs = None if (producer := b.producer(value)) is None else producer.attrs
    return isinstance(attrs, TransposeAttrs) and attrs.perm[-1] != value.rank - 1


def _computed_sums(b: GraphBuilder, x: _Bytes, w: _Bytes, to: DType) -> Value:
    """Returns the contraction of computed bytes `x` and `w`, minus their zero points, in i32.

    sum (u - z) * (v - o) = sum u * v  -  z * sum v  -  o * sum (u - z)

    Here u is x as type `to`, v is w as i8, and z and o are their zero points.
    """
    u, z = _as_type(b, x[0], to), _point(b, *x, to)
    v, zero = _as_type(b, w[0], I8), _point(b, *w, I8)
    sums = emit(b, "matmul_integer", u, v)
    if z is not None:
        columns = _totals(b, emit(b, "cast", v, to=I32), -2, u.rank > 1)
        sums = emit(b, "sub", sums, emit(b, "mul", columns, z))
    if zero is not None:
        rows = emit(b, "cast", u, to=I32)
        rows = _totals(b, rows if z is None else emit(b, "sub", rows, z), -1)
        sums = emit(b, "sub", sums, emit(b, "mul", rows, zero))
    return sums


def _totals(b: GraphBuilder, value: Value, axis: int, keepdims: bool = True) -> Value:
    return emit(b, "reduce_sum", value, axes=(axis % value.rank,), keepdims=keepdims)


def _shift(value: Value, to: DType) -> int:
    """Returns the number that a conversion to type `to` adds to bytes: 128, -128 or 0."""
    return 0 if value.dtype is to else _HALF if to is U8 else -_HALF


def constant_zero(b: GraphBuilder, zero: Value | None) -> Array | None:
    """Returns the array of a constant zero point, or the array 0 if `zero` is None.

    Returns None if the zero point is not constant.
    """
    return np.zeros((), np.int32) if zero is None else b.array(zero)


def _point(b: GraphBuilder, value: Value, zero: Value | None, to: DType) -> Value | None:
    """Returns the zero point, as i32, of bytes that are converted to `to`; None if it is zero."""
    shift = _shift(value, to)
    array = constant_zero(b, zero)
    if array is not None:
        shifted = array.astype(np.int32) + shift
        shifted = shifted.reshape(()) if shifted.size == 1 else shifted
        return b.constant(np.asarray(shifted, np.int32)) if shifted.any() else None
    assert zero is not None
    point = emit(b, "cast", zero, to=I32)
    point = emit(b, "reshape", point, shape=()) if zero.type.static_shape == (1,) else point
    return emit(b, "add", point, b.constant(np.asarray(shift, np.int32))) if shift else point


# ---- weights ------------------------------------------------------------------------------------


def _weights(b: GraphBuilder, w: Value, zero: Value | None, axis: int) -> _Weights | None:
    """Returns constant weights as signed bytes.

    The zero points vary along `axis`.  Returns None if weights or zero points are not constant.
    """
    array = b.array(w)
    point = constant_zero(b, zero)
    if array is None or point is None or array.ndim < 2 or not array.size:
        return None
    point = point.astype(np.int32)
    if point.size == 1:
        point = point.reshape(())
    elif axis == 0:
        point = point.reshape(-1, *[1] * (array.ndim - 1))
    elif point.ndim > 1:
        return None
    signed = signed_bytes(array, point)
    if signed is not None:
        return _Weights(signed, None)
    if w.dtype is I8:
        return _Weights(array, -point)
    return _Weights((array.astype(np.int16) - _HALF).astype(np.int8), _HALF - point)


def signed_bytes(array: Array, zero: Array) -> Array | None:
    """Returns bytes minus their zero points, as signed bytes; None if some do not fit."""
    shifted = array.astype(np.int32) - zero
    fits = shifted.min() >= -_HALF and shifted.max() < _HALF
    return shifted.astype(np.int8) if fits else None


def _constant(b: GraphBuilder, zero: Value | None) -> int | None:
    """Returns a zero point as a number.

    Returns 0 if there is no zero point, and None if it is not a constant with a single element.
    """
    array = constant_zero(b, zero)
    return int(array.reshape(())) if array is not None and array.size == 1 else None


# ---- nodes --------------------------------------------------------------------------------------


def conv_integer(
    b: GraphBuilder, attrs: ConvAttrs, *operands: Value | None, border: int = 0
) -> Value:
    """Adds a convolution of bytes with the geometry of `attrs`, and returns its result.

    `border` is the value of the padding.
    """
    geometry = {f.name: getattr(attrs, f.name) for f in fields(ConvAttrs)}
    return emit(b, "conv_integer", *operands, **geometry, border=border)


# Their operands are the two factors; a gemm has a bias too.
MATMULS = frozenset({"matmul", "gemm"})


def with_bias(b: GraphBuilder, sums: Value, biases: Sequence[Value | None]) -> Value:
    """Returns `sums` plus the biases that there are, at most one."""
    return emit(b, "add", sums, *biases) if biases else sums


def dequantized(b: GraphBuilder, value: Value | None) -> tuple[Node, bool] | None:
    """Returns the dequantise node that computes `value`, and a bool; None if there is none.

    The bool is true if the node's result is transposed to give `value`.
    """
    node = b.producer(value)
    if node is not None and node.attrs == TransposeAttrs((1, 0)):
        inner = dequantized(b, node.inputs[0])
        return None if inner is None else (inner[0], not inner[1])
    return None if node is None or node.op.name != "dequantize_linear" else (node, False)


def _half(b: GraphBuilder) -> Value:
    return b.constant(np.asarray(_HALF, np.uint8), "half")


def channels(b: GraphBuilder, value: Value, like: Value, last: bool = False) -> Value:
    """Returns `value` in a shape that broadcasts to `like`.

    `value` has one number, or one for each channel of `like`.  With `last`, channels are the last
    axis, otherwise axis 1.
    """
    if value.type.static_shape == (1,):
        return emit(b, "reshape", value, shape=())
    if last or value.rank == 0:
        return value
    unit_axes = [const(1)] * (like.rank - 2)
    return emit(b, "reshape", value, shape=(value.shape[0], *unit_axes))
