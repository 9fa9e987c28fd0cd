"""Contractions of quantised integers.

Zero points are subtracted from the operands, and the sums are i32. The q-linear ops then scale the
sums in f32, round to nearest even, add the zero point and saturate.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast, index_value
from tcc.ir.index import Index, const
from tcc.ir.op import (
    Array,
    NoAttrs,
    OnnxBinding,
    Trait,
)
from tcc.ir.types import F32, I8, I32, I64, U8, TensorType, integer_limits
from tcc.ops.algebra.contract import matmul_shape, matmul_sum
from tcc.ops.algebra.window import (
    ConvAttrs,
    conv_indices,
    conv_shape,
    convolve,
    when,
    with_bias,
)
from tcc.ops.formula import fn
from tcc.ops.operands import inside, require
from tcc.ops.rows import op_row
from tcc.ops.shapes import agree, check_broadcast, optional, required

_BYTES = (U8, I8)


def _check_bytes(*types: TensorType) -> None:
    for x in types:
        require(x.dtype in _BYTES, f"quantised operands are u8 or i8, not {x}")


def _shifted(b: ExprBuilder, number: int, at: Any, point: int, row: Index | None) -> Scalar:
    """Returns operand `number` at the indices `at`, minus its zero point, in i32.

    Operand `point` is the zero point; `row` is its index if it is a vector.
    """
    value = cast(b.read(number, *at), I32)
    if optional(b.params, point) is None:
        return value
    return value - cast(_parameter(b, point, row), I32)


def _parameter(b: ExprBuilder, number: int, place: Index | None = None) -> Scalar:
    """Returns the scale or zero point in operand `number`; of a vector, the element `place`."""
    type_ = required(b.params, number)
    if type_.rank == 0 or place is None or type_.static_shape == (1,):
        return b.read(number, *([0] * type_.rank))
    return b.read(number, place)


def _requantised(b: ExprBuilder, sums: Scalar, row: Index | None, column: Index | None) -> Scalar:
    """Returns the result of a q-linear op at the row and column of the operands' scales.

    Operands 1, 4 and 6 are the scales of both operands and of the result, 7 is its zero point.
    """
    scales = [cast(_parameter(b, *p), F32) for p in ((1, row), (4, column), (6,))]
    factor = scales[0] * scales[1] / scales[2]
    zero = _parameter(b, 7)
    scaled = fn("round", cast(sums, F32) * factor)
    return cast(scaled + cast(zero, F32), zero.dtype)  # this cast limits values to the type's range


def _requantise(sums: Array, factor: Array, zero: Array) -> Array:
    info = np.iinfo(zero.dtype)
    scaled = np.rint(sums.astype(np.float32) * factor) + zero.astype(np.float32)
    return np.asarray(np.clip(scaled, info.min, info.max)).astype(zero.dtype)


# ---- matmul_integer ------------------------------------------------------------------------------


def _matmul_integer_infer(
    _attrs: NoAttrs,
    a: TensorType,
    c: TensorType,
    a_zero: TensorType | None = None,
    c_zero: TensorType | None = None,
) -> TensorType:
    _check_bytes(a, c)
    _check_numbers(a, _rows(a), {2: a_zero})
    _check_numbers(c, _columns(c), {3: c_zero})
    return TensorType(I32, matmul_shape(a, c))


def _rows(a: TensorType) -> Index:
    return a.shape[-2] if a.rank > 1 else const(1)


def _columns(c: TensorType) -> Index:
    return c.shape[-1] if c.rank > 1 else const(1)


def _check_numbers(x: TensorType, count: Index, numbers: Mapping[int, TensorType | None]) -> None:
    """Checks scales and zero points of `x`; `numbers` maps the position of each to its type.

    Each must have one element or `count` elements. A zero point must have the type of `x`. Raises
    ValueError otherwise.
    """
    for number, type_ in numbers.items():
        if type_ is not None:
            matches_type = type_.dtype.is_float or type_.dtype is x.dtype
            require(matches_type and type_.rank < 2, f"{type_} is no scale or zero point of {x}")
            check_broadcast(type_.shape, (count,), number)


def _less_zero(x: Array, zero: Array | None, axis: int) -> Array:
    """Returns `x` minus its zero point, in i32; a vector of zero points runs along `axis`."""
    wide = x.astype(np.int32)
    if zero is None:
        return wide
    shape = [1] * x.ndim
    if zero.ndim:
        shape[axis] = zero.size
    return wide - zero.astype(np.int32).reshape(shape)


def _matmul_integer_reference(
    _attrs: NoAttrs, a: Array, c: Array, a_zero: Array | None = None, c_zero: Array | None = None
) -> Any:
    return np.matmul(_less_zero(a, a_zero, -2), _less_zero(c, c_zero, -1))


def _integer_sum(
    b: ExprBuilder, a: TensorType, c: TensorType, numbers: tuple[int, int, int, int]
) -> StageRef:
    """Appends the stage of the sums of an integer matmul.

    `numbers` are the positions of four operands: a, its zero point, c, its zero point.
    """
    return matmul_sum(
        b,
        a,
        c,
        lambda at_a, at_c: (
            _shifted(b, numbers[0], at_a, numbers[1], at_a[-2] if a.rank > 1 else None)
            * _shifted(b, numbers[2], at_c, numbers[3], at_c[-1] if c.rank > 1 else None)
        ),
    )


def _matmul_integer_expr(
    b: ExprBuilder, _attrs: NoAttrs, a: TensorType, c: TensorType, *_zeros: TensorType | None
) -> StageRef:
    return _integer_sum(b, a, c, (0, 2, 1, 3))


# ---- conv_integer --------------------------------------------------------------------------------


@frozen
class ConvIntegerAttrs(ConvAttrs):
    """`border` is the value of the padding where the image has no zero point.

    With a zero point, `border` is 0 and the padding holds the zero point.
    """

    border: int = 0


def _conv_integer_infer(
    attrs: ConvIntegerAttrs,
    x: TensorType,
    w: TensorType,
    x_zero: TensorType | None = None,
    w_zero: TensorType | None = None,
) -> TensorType:
    _check_bytes(x, w)
    _check_numbers(x, const(1), {2: x_zero})
    _check_numbers(w, w.shape[0], {3: w_zero})
    low, high = integer_limits(x.dtype)
    require(low <= attrs.border <= high, f"a border of {attrs.border} around {x}")
    require(x_zero is None or not attrs.border, "a border besides a zero point")
    return TensorType(I32, conv_shape(x, w, attrs))


def _conv_integer_reference(
    attrs: ConvIntegerAttrs,
    x: Array,
    w: Array,
    x_zero: Array | None = None,
    w_zero: Array | None = None,
) -> Array:
    x = _less_zero(x, x_zero, 0)
    w = _less_zero(w, w_zero, 0)
    # The padding's value is subtracted first, because `convolve` pads with zeros.
    sums = convolve(x - np.int32(attrs.border), w, attrs)
    return with_bias(sums, attrs.border * w.reshape(len(w), -1).sum(1, dtype=np.int32))


def _conv_sum(
    b: ExprBuilder, x: TensorType, w: TensorType, attrs: ConvAttrs, numbers: tuple[int, ...]
) -> StageRef:
    """Appends the stage of the sums of (x - zero) * (w - zero).

    `numbers` are the positions of four operands: x, its zero point, w, its zero point. The padding
    holds x's zero point, so that it adds nothing.
    """
    i, over, at_x, at_w = conv_indices(b, x, w, attrs)
    border = attrs.border if isinstance(attrs, ConvIntegerAttrs) else 0
    fill = None if attrs.border_fill is None else border
    pixel = cast(b.read(numbers[0], *at_x, fill=fill), I32)
    has_zero = optional(b.params, numbers[1]) is not None
    if has_zero:
        pixel -= cast(_parameter(b, numbers[1]), I32)
    if has_zero and fill is not None:
        # A read outside the image gives 0, from which the zero point must not be subtracted.
        image = zip(at_x[2:], x.shape[2:], strict=True)
        pixel = when([inside(index_value(k, I64), n) for k, n in image], pixel)
    weight = _shifted(b, numbers[2], at_w, numbers[3], i[1])
    # The loop over channels is innermost, because channels are adjacent in memory and targets
    # multiply several at once.
    return b.sum(i, pixel * weight, over=(*over[1:], over[0]))


def _conv_integer_expr(
    b: ExprBuilder, attrs: ConvIntegerAttrs, x: TensorType, w: TensorType, *_zeros: object
) -> StageRef:
    return _conv_sum(b, x, w, attrs, (0, 2, 1, 3))


# ---- q-linear ops --------------------------------------------------------------------------------


def _qlinear_matmul_infer(
    _attrs: NoAttrs,
    a: TensorType,
    a_scale: TensorType,
    a_zero: TensorType,
    c: TensorType,
    c_scale: TensorType,
    c_zero: TensorType,
    y_scale: TensorType,
    y_zero: TensorType,
) -> TensorType:
    _check_bytes(a, c)
    _check_numbers(a, _rows(a), {1: a_scale, 2: a_zero})
    _check_numbers(c, _columns(c), {4: c_scale, 5: c_zero})
    _check_numbers(y_zero, const(1), {6: y_scale, 7: y_zero})
    return TensorType(y_zero.dtype, matmul_shape(a, c))


def _qlinear_matmul_reference(
    _attrs: NoAttrs,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    c: Array,
    c_scale: Array,
    c_zero: Array,
    y_scale: Array,
    y_zero: Array,
) -> Array:
    sums = np.matmul(_less_zero(a, a_zero, -2), _less_zero(c, c_zero, -1))
    rows = a_scale.reshape(-1, 1) if a_scale.size > 1 else a_scale.reshape(())
    columns = c_scale if c_scale.size > 1 else c_scale.reshape(())
    factor = rows.astype(np.float32) * columns.astype(np.float32) / y_scale.reshape(())
    return _requantise(np.asarray(sums), factor, y_zero.reshape(()))


def _qlinear_matmul_expr(b: ExprBuilder, attrs: NoAttrs, *types: TensorType) -> StageRef:
    a, c = types[0], types[3]
    y = _qlinear_matmul_infer(attrs, *types)
    sums = _integer_sum(b, a, c, (0, 2, 3, 5))
    i = b.point(y)
    row = i[-1 - (c.rank > 1)] if a.rank > 1 else None
    column = i[-1] if c.rank > 1 else None
    return b.stage(i, _requantised(b, b.read(sums, *i), row, column))


def _qlinear_conv_infer(
    attrs: ConvAttrs,
    x: TensorType,
    x_scale: TensorType,
    x_zero: TensorType,
    w: TensorType,
    w_scale: TensorType,
    w_zero: TensorType,
    y_scale: TensorType,
    y_zero: TensorType,
    bias: TensorType | None = None,
) -> TensorType:
    _check_bytes(x, w)
    _check_numbers(x, const(1), {1: x_scale, 2: x_zero})
    _check_numbers(y_zero, const(1), {6: y_scale, 7: y_zero})
    _check_numbers(w, w.shape[0], {4: w_scale, 5: w_zero})
    if bias is not None:
        require(bias.dtype is I32 and bias.rank == 1, f"the bias {bias} must be a vector of i32")
        agree(bias.shape[0], w.shape[0], "the elements of the bias")
    return TensorType(y_zero.dtype, conv_shape(x, w, attrs))


def _qlinear_conv_reference(
    attrs: ConvAttrs,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None = None,
) -> Array:
    sums = convolve(_less_zero(x, x_zero, 0), _less_zero(w, w_zero, 0), attrs)
    along = (-1, *([1] * (x.ndim - 2)))
    sums = with_bias(sums, bias)
    factor = x_scale.reshape(()) * w_scale.reshape(along) / y_scale.reshape(())
    return _requantise(sums, factor, y_zero.reshape(()))


def _qlinear_conv_expr(b: ExprBuilder, attrs: ConvAttrs, *types: TensorType) -> StageRef:
    y = _qlinear_conv_infer(attrs, *types)
    sums = _conv_sum(b, types[0], types[3], attrs, (0, 2, 3, 5))
    i = b.point(y)
    accumulator: Scalar = b.read(sums, *i)
    if optional(types, 8) is not None:
        accumulator += b.read(8, i[1])
    return b.stage(i, _requantised(b, accumulator, None, i[1]))


# ---- rows of the op table ------------------------------------------------------------------------

_SUMS = Trait.CONTRACTION
_WINDOWS = Trait.CONTRACTION | Trait.WINDOW

OPS = (
    op_row(
        "matmul_integer", NoAttrs, _matmul_integer_infer, _matmul_integer_reference,
        _BYTES,
        "Matrix product of bytes less their zero points; operands (a, b, a zero, b zero).",
        expr=_matmul_integer_expr, traits=_SUMS, onnx=OnnxBinding("MatMulInteger", since=10),
    ),
    op_row(
        "conv_integer", ConvIntegerAttrs, _conv_integer_infer, _conv_integer_reference,
        _BYTES,
        "Convolution of bytes less their zero points; operands (x, w, x zero, w zero).",
        expr=_conv_integer_expr, traits=_WINDOWS,
    ),
    op_row(
        "qlinear_matmul", NoAttrs, _qlinear_matmul_infer, _qlinear_matmul_reference,
        _BYTES,
        "Requantised matrix product; operands a, b and y each with scale and zero point.",
        expr=_qlinear_matmul_expr, traits=_SUMS, onnx=OnnxBinding("QLinearMatMul", since=10),
    ),
    op_row(
        "qlinear_conv", ConvAttrs, _qlinear_conv_infer, _qlinear_conv_reference,
        _BYTES,
        "Requantised convolution; operands x, w and y each with scale and zero point, then bias.",
        expr=_qlinear_conv_expr, traits=_WINDOWS,
    ),
)  # fmt: skip
