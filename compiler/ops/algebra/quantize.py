"""Quantisation of floats to narrow integers and back, per tensor, per axis or per block."""

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast
from tcc.ir.graph import carrier
from tcc.ir.index import IndexLike, const
from tcc.ir.narrow import FORMATS
from tcc.ir.op import (
    Array,
    NoAttrs,
    OnnxBinding,
    OutArrays,
    OutTypes,
    Tolerance,
    Trait,
)
from tcc.ir.types import (
    BF16,
    F8E8M0,
    F16,
    F32,
    I2,
    I4,
    I8,
    I16,
    I32,
    U2,
    U4,
    U8,
    U16,
    DType,
    TensorType,
    integer_limits,
    tensor,
)
from tcc.ops.algebra.narrow import NarrowAttrs, narrow_reference, narrowed
from tcc.ops.formula import choose, fn
from tcc.ops.rows import op_row
from tcc.ops.shapes import (
    Point,
    UnequalDimsError,
    agree_shapes,
    check_axis,
    check_dtype,
    replaced,
)

_NARROW = (I8, U8, I16, U16)
_PACKED = (I2, I4, U2, U4)
_LEVELS = (*_NARROW, *_PACKED, *FORMATS)  # the types of quantised values
_SCALES = (F32, F16, BF16)


@frozen
class QuantizeAttrs:
    """`to` is the integer or narrow float type.

    With `saturate`, values beyond its range become the nearest value of the type.

    The quotient by the scale is rounded to `precision`. A scale of rank 1 has an element for each
    position along `axis`. With a `block_size` above 0, the scale has x's rank, and each of its
    elements applies to `block_size` elements along `axis`.
    """

    to: DType
    axis: int = 1
    block_size: int = 0
    saturate: bool = True
    precision: DType = F32


@frozen
class DequantizeAttrs:
    """`to` is the result's type, or None for the scale's type.

    A scale of rank 1 has an element for each position along `axis`. With a `block_size` above 0,
    the scale has x's rank, and each of its elements applies to `block_size` elements along `axis`.
    """

    axis: int = 1
    block_size: int = 0
    to: DType | None = None


QuantAttrs = QuantizeAttrs | DequantizeAttrs


def _check_scale(
    attrs: QuantAttrs, x: TensorType, scale: TensorType, zero: TensorType | None
) -> None:
    check_dtype(scale.dtype, (*_SCALES, F8E8M0), "the scale")
    if zero is not None:
        agree_shapes(scale.shape, zero.shape, "scale and zero point")
    if attrs.block_size < 0:
        raise ValueError(f"block size {attrs.block_size} is negative")
    if attrs.block_size:
        check_axis(attrs.axis, x.rank)
        blocks = -(-x.shape[attrs.axis] // attrs.block_size)
        due_shape = replaced(x.shape, attrs.axis, blocks)
        agree_shapes(scale.shape, due_shape, "blocks of the scale")
    elif scale.rank == 1 and scale.shape[0] is not const(1):
        check_axis(attrs.axis, x.rank)
        size, due = scale.shape[0], x.shape[attrs.axis]
        if size is not due:
            last = dict.fromkeys(range(1, 2 if zero is None else 3), (-1,))
            raise UnequalDimsError(size, due, "scales along the axis", last, narrow=True)
    elif scale.rank > 1:
        raise ValueError(f"the scale has rank {scale.rank} and there is no block size")


def _scale_at(scale: TensorType, attrs: QuantAttrs, at: Point) -> tuple[IndexLike, ...]:
    if attrs.block_size:
        return replaced(at, attrs.axis, at[attrs.axis] // attrs.block_size)
    if scale.rank == 0:
        return ()
    return (0,) if scale.shape[0] is const(1) else (at[attrs.axis],)


def _spread(values: Array, x: Array, attrs: QuantAttrs) -> Array:
    """Returns the scales or zero points `values` in a shape that broadcasts to the shape of `x`."""
    if attrs.block_size:
        repeated = np.repeat(values, attrs.block_size, attrs.axis)
        return np.take(repeated, np.arange(x.shape[attrs.axis]), attrs.axis)
    if values.size == 1:
        return values.reshape(())
    return values.reshape(-1, *[1] * (x.ndim - attrs.axis - 1))


# ---- quantize_linear ----------------------------------------------------------------------------


def _quantize_infer(
    attrs: QuantizeAttrs, x: TensorType, scale: TensorType, zero: TensorType | None = None
) -> TensorType:
    check_dtype(x.dtype, (*_SCALES, I32))
    check_dtype(attrs.to, _LEVELS, "the result")
    check_dtype(attrs.precision, _SCALES, "the precision")
    if zero is not None:
        check_dtype(zero.dtype, (attrs.to,), "the zero point")
    _check_scale(attrs, x, scale, zero)
    return TensorType(attrs.to, x.shape)


def _quantize_element(
    b: ExprBuilder,
    at: Point,
    attrs: QuantizeAttrs,
    x: TensorType,
    scale: TensorType,
    zero: TensorType | None,
) -> Scalar:
    where = _scale_at(scale, attrs, at)
    ratio = cast(b.read(0, *at), F32) / cast(b.read(1, *where), F32)
    ratio = cast(cast(ratio, attrs.precision), F32)
    level = ratio if attrs.to.is_float else fn("round", ratio)
    if zero is not None:
        shift = cast(b.read(2, *where), F32)
        # Where the zero point is 0, subtracting (0.0 - shift) keeps negative zeros; adding it would
        # not.
        level = level - (0.0 - shift) if attrs.to.is_float else level + shift
    if attrs.to.is_float:
        return narrowed(level, NarrowAttrs(attrs.to, attrs.saturate))
    low = float(integer_limits(attrs.to)[0])
    # The cast saturates and turns NaN into 0, but NaN must become the lowest level.
    return choose(level > low, level, low) if low else level


def _quantize_reference(attrs: QuantizeAttrs, x: Array, scale: Array, zero: Array | None) -> Array:
    with np.errstate(all="ignore"):
        ratio = x.astype(np.float32) / _spread(scale, x, attrs).astype(np.float32)
        ratio = carrier(ratio.astype(attrs.precision.carrier), attrs.precision).astype(np.float32)
        level = ratio if attrs.to.is_float else np.rint(ratio)
    if zero is not None:
        level = level + _spread(zero, x, attrs).astype(np.float32)
    if attrs.to.is_float:
        return narrow_reference(NarrowAttrs(attrs.to, attrs.saturate), level)
    low, high = integer_limits(attrs.to)
    level = np.where(np.isnan(level), low, np.clip(level, low, high))
    return level.astype(attrs.to.carrier)


# ---- dequantize_linear --------------------------------------------------------------------------


def _dequantize_infer(
    attrs: DequantizeAttrs, x: TensorType, scale: TensorType, zero: TensorType | None = None
) -> TensorType:
    check_dtype(x.dtype, (*_LEVELS, I32))
    if zero is not None:
        check_dtype(zero.dtype, (x.dtype,), "the zero point")
    _check_scale(attrs, x, scale, zero)
    to = attrs.to or scale.dtype
    check_dtype(to, _SCALES, "the result")
    return TensorType(to, x.shape)


def _dequantize_element(
    b: ExprBuilder,
    at: Point,
    attrs: DequantizeAttrs,
    x: TensorType,
    scale: TensorType,
    zero: TensorType | None,
) -> Scalar:
    where = _scale_at(scale, attrs, at)
    exact = F32 if x.dtype.is_float else I32
    level = cast(b.read(0, *at), exact)
    if zero is not None:
        level = level - cast(b.read(2, *where), exact)
    return cast(level, F32) * cast(b.read(1, *where), F32)


def _dequantize_reference(
    attrs: DequantizeAttrs, x: Array, scale: Array, zero: Array | None
) -> Array:
    exact = np.float32 if x.dtype.kind == "f" else np.int32
    level = x.astype(exact)
    if zero is not None:
        level = level - _spread(zero, x, attrs).astype(exact)
    value = level.astype(np.float32) * _spread(scale, x, attrs).astype(np.float32)
    return value.astype(scale.dtype if attrs.to is None else attrs.to.carrier)


# ---- dynamic_quantize_linear --------------------------------------------------------------------


def _dynamic_infer(_: NoAttrs, x: TensorType) -> OutTypes:
    check_dtype(x.dtype, (F32,))
    return TensorType(U8, x.shape), tensor(F32), tensor(U8)


def _dynamic_expr(b: ExprBuilder, _: NoAttrs, x: TensorType) -> tuple[StageRef, ...]:
    def extreme(monoid: str) -> StageRef:
        over = b.point(x)
        return b.stage((), b.read(0, *over), over=over, monoid=monoid)

    top, bottom = extreme("max"), extreme("min")
    high, low = fn("max", b.read(top), 0.0), fn("min", b.read(bottom), 0.0)
    width = high - low
    flat = fn("eq", width, 0.0)
    scale = b.stage((), choose(flat, 1.0, width / 255.0))
    shift = -low / b.read(scale)
    zero = b.stage((), cast(fn("round", shift), U8))
    at = b.point(x)
    level = fn("round", b.read(0, *at) / b.read(scale))
    return b.stage(at, cast(level + cast(b.read(zero), F32), U8)), scale, zero


def _dynamic_reference(_: NoAttrs, x: Array) -> OutArrays:
    high, low = np.max(x, initial=np.float32(0)), np.min(x, initial=np.float32(0))
    scale = np.float32(1) if high == low else (high - low) / np.float32(255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    y = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return y, np.asarray(scale, np.float32), np.asarray(zero).astype(np.uint8)


_ELEMENTWISE = Trait.ELEMENTWISE

OPS = (
    op_row(
        "quantize_linear", QuantizeAttrs, _quantize_infer, _quantize_reference,
        (*_SCALES, I32),
        "round(x / scale) + zero point, saturated to the result's type; NaN gives the least level.",
        element=_quantize_element, traits=_ELEMENTWISE,
    ),
    op_row(
        "dequantize_linear", DequantizeAttrs, _dequantize_infer, _dequantize_reference,
        (*_LEVELS, I32),
        "(x - zero point) * scale, in the type of the scale.",
        Tolerance.ELEMENTWISE,
        element=_dequantize_element, traits=_ELEMENTWISE,
    ),
    op_row(
        "dynamic_quantize_linear", NoAttrs, _dynamic_infer, _dynamic_reference,
        (F32,),
        "u8 levels, and the scale and zero point that cover 0 and the range of x.",
        Tolerance.ELEMENTWISE,
        _dynamic_expr, traits=Trait.REDUCTION,
        onnx=OnnxBinding("DynamicQuantizeLinear", since=11),
    ),
)  # fmt: skip
