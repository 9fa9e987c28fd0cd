"""Contractions of quantised integers.

Zero points are subtracted from the operands, and the sums are i32.
"""

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
from tcc.ir.types import I8, I32, I64, U8, TensorType, integer_limits
from tcc.ops.algebra.contract import matmul_shape, matmul_sum
from tcc.ops.algebra.window import (
    ConvAttrs,
    conv_indices,
    conv_shape,
    convolve,
    when,
    with_bias,
)
from tcc.ops.operands import inside, require
from tcc.ops.rows import op_row
from tcc.ops.shapes import check_broadcast, optional, required
from tcc.zipped import zip_equal

_BYTES = (U8, I8)


def _check_bytes(*types: TensorType) -> None:
    for x in types:
        require(x.dtype in _BYTES, f"quantised operands are u8 or i8, not {x}")


def _shifted(b: ExprBuilder, number: int, at: Any, row: Index | None) -> Scalar:
    """Returns operand `number` at the indices `at`, minus its zero point, in i32.

    If the zero point is a vector, `row` is its index.
    """
    value = cast(b.read(number, *at), I32)
    if optional(b.params, number + 2) is None:
        return value
    return value - cast(_zero_point(b, number + 2, row), I32)


def _zero_point(b: ExprBuilder, number: int, place: Index | None = None) -> Scalar:
    """Returns the zero point in operand `number`; of a vector, the element `place`."""
    type_ = required(b.params, number)
    if type_.rank == 0 or place is None or type_.static_shape == (1,):
        return b.read(number, *([0] * type_.rank))
    return b.read(number, place)


# ---- matmul_integer ------------------------------------------------------------------------------


def _matmul_integer_infer(
    _attrs: NoAttrs,
    a: TensorType,
    c: TensorType,
    a_zero: TensorType | None = None,
    c_zero: TensorType | None = None,
) -> TensorType:
    _check_bytes(a, c)
    _check_zero(a, a.shape[-2] if a.rank > 1 else const(1), 2, a_zero)
    _check_zero(c, c.shape[-1] if c.rank > 1 else const(1), 3, c_zero)
    return TensorType(I32, matmul_shape(a, c))


def _check_zero(x: TensorType, count: Index, number: int, zero: TensorType | None) -> None:
    """Checks operand `number`, the zero point of `x`, which has the type of `x`.

    It must have one element or `count` elements. Raises ValueError otherwise.
    """
    if zero is not None:
        require(zero.dtype is x.dtype and zero.rank < 2, f"{zero} is no zero point of {x}")
        check_broadcast(zero.shape, (count,), number)


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
    _attrs: NoAttrs, a: Array, c: Array, a_zero: Array | None, c_zero: Array | None
) -> Any:
    return np.matmul(_less_zero(a, a_zero, -2), _less_zero(c, c_zero, -1))


def _matmul_integer_expr(
    b: ExprBuilder, _attrs: NoAttrs, a: TensorType, c: TensorType, *_zeros: TensorType | None
) -> StageRef:
    return matmul_sum(
        b,
        a,
        c,
        lambda at_a, at_c: (
            _shifted(b, 0, at_a, at_a[-2] if a.rank > 1 else None)
            * _shifted(b, 1, at_c, at_c[-1] if c.rank > 1 else None)
        ),
    )


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
    _check_zero(x, const(1), 2, x_zero)
    _check_zero(w, w.shape[0], 3, w_zero)
    low, high = integer_limits(x.dtype)
    require(low <= attrs.border <= high, f"a border of {attrs.border} around {x}")
    require(x_zero is None or not attrs.border, "a border besides a zero point")
    return TensorType(I32, conv_shape(x, w, attrs))


def _conv_integer_reference(
    attrs: ConvIntegerAttrs,
    x: Array,
    w: Array,
    x_zero: Array | None,
    w_zero: Array | None,
) -> Array:
    x = _less_zero(x, x_zero, 0)
    w = _less_zero(w, w_zero, 0)
    # The padding's value is subtracted first, because `convolve` pads with zeros.
    sums = convolve(x - np.int32(attrs.border), w, attrs)
    return with_bias(sums, attrs.border * w.reshape(len(w), -1).sum(1, dtype=np.int32))


def _conv_integer_expr(
    b: ExprBuilder, attrs: ConvIntegerAttrs, x: TensorType, w: TensorType, *_zeros: object
) -> StageRef:
    """Returns the sums of (x - zero) * (w - zero).

    The padding holds x's zero point, so that it adds nothing.
    """
    i, over, at_x, at_w = conv_indices(b, x, w, attrs)
    fill = None if attrs.border_fill is None else attrs.border
    pixel = cast(b.read(0, *at_x, fill=fill), I32)
    has_zero = optional(b.params, 2) is not None
    if has_zero:
        pixel -= cast(_zero_point(b, 2), I32)
    if has_zero and fill is not None:
        # A read outside the image gives 0, from which the zero point must not be subtracted.
        image = zip_equal(at_x[2:], x.shape[2:])
        pixel = when([inside(index_value(k, I64), n) for k, n in image], pixel)
    weight = _shifted(b, 1, at_w, i[1])
    # The loop over channels is innermost, because channels are adjacent in memory and targets
    # multiply several at once.
    return b.sum(i, pixel * weight, over=(*over[1:], over[0]))


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
)  # fmt: skip
