"""Converters of pointwise functions that rows of the op table make up."""

from __future__ import annotations

import math

from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter
from tcc.frontends.torch.convert.pointwise import truncated
from tcc.ir.types import BOOL, F64, DTypeKind


def _input(ctx: CallContext) -> Operand:
    return ctx.operand(ctx.first(), ctx.result_dtype())


def _rounding(op: str) -> Converter:
    """Rounding, which leaves integers as they are."""

    def convert(ctx: CallContext) -> Operand:
        x = _input(ctx)
        return ctx.emit(op, x) if x.dtype.is_float else x

    return convert


def _round(ctx: CallContext) -> Operand:
    x = _input(ctx)
    places = ctx.integer("decimals") if ctx.has("decimals") else 0
    if not x.dtype.is_float:
        return x
    if places == 0:
        return ctx.emit("round", x)
    factor = ctx.scalar(10.0 ** abs(places), x)
    up, down = ("mul", "div") if places > 0 else ("div", "mul")
    return ctx.emit(down, ctx.emit("round", ctx.emit(up, x, factor)), factor)


def _trunc(ctx: CallContext) -> Operand:
    return truncated(ctx, _input(ctx))


def _abs(ctx: CallContext) -> Operand:
    x = _input(ctx)
    return x if x.dtype is BOOL else ctx.emit("abs", x)


def _sign(ctx: CallContext) -> Operand:
    """The sign; that of NaN is 0."""
    x = _input(ctx)
    if x.dtype is BOOL:
        return x
    found = ctx.emit("sign", x)
    if not x.dtype.is_float:
        return found
    return ctx.where(ctx.emit("is_nan", x), ctx.scalar(0, x), found)


def _rsqrt(ctx: CallContext) -> Operand:
    return ctx.emit("reciprocal", ctx.emit("sqrt", _input(ctx)))


def _exp2(ctx: CallContext) -> Operand:
    x = _input(ctx)
    return ctx.emit("pow", ctx.scalar(2, x), x)


def _expm1(ctx: CallContext) -> Operand:
    """2 sinh(x/2) exp(x/2), which does not cancel near zero."""
    x = _input(ctx)
    half = ctx.emit("mul", x, ctx.scalar(0.5, x))
    product = ctx.emit("mul", ctx.emit("sinh", half), ctx.emit("exp", half))
    found = ctx.emit("mul", product, ctx.scalar(2, x))
    low = ctx.emit("less", x, ctx.scalar(-30, x))
    return ctx.where(low, ctx.scalar(-1, x), found)


def log_1p(ctx: CallContext, x: Operand) -> Operand:
    """log(1 + x); near zero 2 atanh(x / (2 + x)), which does not cancel."""
    two = ctx.scalar(2, x)
    near = ctx.emit("mul", two, ctx.emit("atanh", ctx.emit("div", x, ctx.emit("add", x, two))))
    far = ctx.emit("log", ctx.emit("add", x, ctx.scalar(1, x)))
    is_near = ctx.emit("less", ctx.emit("abs", x), ctx.scalar(0.5, x))
    return ctx.where(is_near, near, far)


def _log1p(ctx: CallContext) -> Operand:
    return log_1p(ctx, _input(ctx))


def _logarithm(base: float) -> Converter:
    def convert(ctx: CallContext) -> Operand:
        x = _input(ctx)
        return ctx.emit("mul", ctx.emit("log", x), ctx.scalar(1 / math.log(base), x))

    return convert


def _erfc(ctx: CallContext) -> Operand:
    """1 - erf(x), the difference taken in f64."""
    x = _input(ctx)
    wide = ctx.cast(x, F64)
    return ctx.cast(ctx.emit("sub", ctx.scalar(1, wide), ctx.emit("erf", wide)), x.dtype)


def is_negative(ctx: CallContext, x: Operand) -> Operand:
    """Whether the sign bit is set; that of NaN counts as unset."""
    zero = ctx.scalar(0, x)
    below = ctx.emit("less", x, zero)
    if not x.dtype.is_float:
        return below
    turned = ctx.emit("less", ctx.emit("reciprocal", x), zero)
    return ctx.where(ctx.emit("equal", x, zero), turned, below)


def _signbit(ctx: CallContext) -> Operand:
    x = ctx.operand("self")
    if x.dtype.kind is DTypeKind.UINT:
        return ctx.expand(ctx.filled(False, BOOL), x.shape)
    return is_negative(ctx, x)


def _copysign(ctx: CallContext) -> Operand:
    dtype = ctx.result_dtype()
    size, sign = ctx.emit("abs", ctx.operand("self", dtype)), ctx.operand("other", dtype)
    return ctx.where(is_negative(ctx, sign), ctx.emit("neg", size), size)


def _atan2(ctx: CallContext) -> Operand:
    dtype = ctx.result_dtype()
    return angle_of(ctx, ctx.operand("self", dtype), ctx.operand("other", dtype))


def angle_of(ctx: CallContext, y: Operand, x: Operand) -> Operand:
    """The angle of (x, y), from atan of y / x, the quadrant and the signs of zeros."""
    zero = ctx.scalar(0, y)
    ends = ctx.emit("and", ctx.emit("is_inf", y), ctx.emit("is_inf", x))
    both = ctx.emit("and", ctx.emit("equal", y, zero), ctx.emit("equal", x, zero))
    steep = ctx.emit("div", ctx.emit("abs", y), ctx.emit("abs", x))
    one = ctx.scalar(1, y)
    slope = ctx.where(both, zero, ctx.where(ends, one, steep))
    angle = ctx.emit("atan", slope)
    straight = ctx.scalar(math.pi, y)
    angle = ctx.where(is_negative(ctx, x), ctx.emit("sub", straight, angle), angle)
    return ctx.where(is_negative(ctx, y), ctx.emit("neg", angle), angle)


def _angle(ctx: CallContext) -> Operand:
    """That of a real number: pi where it is negative."""
    x = _input(ctx)
    low = ctx.emit("less", x, ctx.scalar(0, x))
    found = ctx.where(low, ctx.scalar(math.pi, x), ctx.scalar(0, x))
    return ctx.where(ctx.emit("is_nan", x), x, found) if x.dtype.is_float else found


def _is_inf(positive: bool, negative: bool) -> Converter:
    def convert(ctx: CallContext) -> Operand:
        x = ctx.operand("self")
        if not x.dtype.is_float:
            return ctx.expand(ctx.filled(False, BOOL), x.shape)
        return ctx.emit("is_inf", x, detect_positive=positive, detect_negative=negative)

    return convert


def _is_nan(ctx: CallContext) -> Operand:
    x = ctx.operand("self")
    if not x.dtype.is_float:
        return ctx.expand(ctx.filled(False, BOOL), x.shape)
    return ctx.emit("is_nan", x)


def _hypot(ctx: CallContext) -> Operand:
    dtype = ctx.result_dtype()
    x, y = (ctx.cast(ctx.operand(name, dtype), F64) for name in ("self", "other"))
    total = ctx.emit("add", ctx.emit("mul", x, x), ctx.emit("mul", y, y))
    return ctx.cast(ctx.emit("sqrt", total), dtype)


CONVERTERS: dict[str, Converter] = {
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "round": _round,
    "trunc": _trunc,
    "abs": _abs,
    "sign": _sign,
    "rsqrt": _rsqrt,
    "exp2": _exp2,
    "expm1": _expm1,
    "log1p": _log1p,
    "log2": _logarithm(2),
    "log10": _logarithm(10),
    "erfc": _erfc,
    "signbit": _signbit,
    "copysign": _copysign,
    "atan2": _atan2,
    "angle": _angle,
    "isinf": _is_inf(True, True),
    "isnan": _is_nan,
    "hypot": _hypot,
}
