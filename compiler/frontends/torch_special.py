"""Converters of special functions; they are computed in f64 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable

from tcc.frontends.onnx_scope import Operand
from tcc.frontends.torch_context import CallContext, Converter
from tcc.frontends.torch_scalar_functions import is_negative
from tcc.ir.types import F64

# Lanczos' approximation with g = 7: 15 digits for arguments from 1/2 on.
_LANCZOS_G = 7.0
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
    -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
    1.5056327351493116e-7,
)  # fmt: skip
# B(2k) / 2k: the asymptotic series of the digamma function.
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760)
_SHIFT = 8  # from here on that series has 15 digits
_NEWTON = 3


def special(function: Callable[[CallContext, Operand], Operand]) -> Converter:
    def convert(ctx: CallContext) -> Operand:
        x = ctx.operand(ctx.first(), ctx.result_dtype())
        return ctx.cast(function(ctx, ctx.cast(x, F64)), x.dtype)

    return convert


def _number(ctx: CallContext, value: float) -> Operand:
    return ctx.filled(value, F64)


def affine(ctx: CallContext, x: Operand, factor: float, term: float) -> Operand:
    """factor * x + term."""
    return ctx.emit("add", ctx.emit("mul", x, _number(ctx, factor)), _number(ctx, term))


def _part(ctx: CallContext, x: Operand) -> Operand:
    """pi times what `x` is above the next integer below."""
    return ctx.emit("mul", ctx.emit("sub", x, ctx.emit("floor", x)), _number(ctx, math.pi))


def _lgamma(ctx: CallContext, x: Operand) -> Operand:
    """log |gamma(x)|; below 1/2 by reflection."""
    low = ctx.emit("less", x, _number(ctx, 0.5))
    turned = ctx.where(low, affine(ctx, x, -1, 1), x)
    total = _number(ctx, _LANCZOS[0])
    for n, factor in enumerate(_LANCZOS[1:]):
        term = ctx.emit("div", _number(ctx, factor), affine(ctx, turned, 1, n))
        total = ctx.emit("add", total, term)
    base = affine(ctx, turned, 1, _LANCZOS_G - 0.5)
    power = ctx.emit("mul", affine(ctx, turned, 1, -0.5), ctx.emit("log", base))
    rest = ctx.emit("log", ctx.emit("mul", total, _number(ctx, math.sqrt(2 * math.pi))))
    found = ctx.emit("add", ctx.emit("sub", power, base), rest)
    mirror = ctx.emit("div", _number(ctx, math.pi), ctx.emit("sin", _part(ctx, x)))
    found = ctx.where(low, ctx.emit("sub", ctx.emit("log", mirror), found), found)
    return ctx.where(ctx.emit("is_inf", x), _number(ctx, math.inf), found)


def _digamma(ctx: CallContext, x: Operand) -> Operand:
    """The derivative of log gamma: an asymptotic series after a shift, reflection below 1/2."""
    low = ctx.emit("less", x, _number(ctx, 0.5))
    turned = ctx.where(low, affine(ctx, x, -1, 1), x)
    far = affine(ctx, turned, 1, _SHIFT)
    inverse = ctx.emit("reciprocal", far)
    square = ctx.emit("mul", inverse, inverse)
    series = _number(ctx, 0.0)
    for factor in reversed(_BERNOULLI):
        series = ctx.emit("mul", ctx.emit("add", series, _number(ctx, factor)), square)
    half = ctx.emit("mul", inverse, _number(ctx, 0.5))
    found = ctx.emit("sub", ctx.emit("sub", ctx.emit("log", far), half), series)
    for n in range(_SHIFT):
        found = ctx.emit("sub", found, ctx.emit("reciprocal", affine(ctx, turned, 1, n)))
    mirror = ctx.emit("div", _number(ctx, math.pi), ctx.emit("tan", _part(ctx, x)))
    found = ctx.where(low, ctx.emit("sub", found, mirror), found)
    zero = ctx.emit("equal", x, _number(ctx, 0.0))
    whole = ctx.emit("and", ctx.emit("equal", x, ctx.emit("floor", x)), low)
    found = ctx.where(whole, _number(ctx, math.nan), found)
    pole = ctx.where(is_negative(ctx, x), _number(ctx, math.inf), _number(ctx, -math.inf))
    return ctx.where(zero, pole, found)


def _erfinv(ctx: CallContext, x: Operand) -> Operand:
    """The inverse of erf: Winitzki's approximation, then Newton's method."""
    a = 0.147
    log = ctx.emit("log", ctx.emit("sub", _number(ctx, 1.0), ctx.emit("mul", x, x)))
    half = affine(ctx, log, 0.5, 2 / (math.pi * a))
    inner = ctx.emit("sub", ctx.emit("mul", half, half), affine(ctx, log, 1 / a, 0.0))
    size = ctx.emit("sqrt", ctx.emit("sub", ctx.emit("sqrt", inner), half))
    found = ctx.where(is_negative(ctx, x), ctx.emit("neg", size), size)
    for _ in range(_NEWTON):
        gap = ctx.emit("sub", ctx.emit("erf", found), x)
        slope = ctx.emit("exp", ctx.emit("neg", ctx.emit("mul", found, found)))
        step = ctx.emit("div", gap, affine(ctx, slope, 2 / math.sqrt(math.pi), 0.0))
        found = ctx.emit("sub", found, step)
    ends = ctx.emit("equal", ctx.emit("abs", x), _number(ctx, 1.0))
    return ctx.where(ends, ctx.emit("mul", x, _number(ctx, math.inf)), found)


CONVERTERS: dict[str, Converter] = {
    "lgamma": special(_lgamma),
    "digamma": special(_digamma),
    "erfinv": special(_erfinv),
    "special_gammaln": special(_lgamma),
    "special_digamma": special(_digamma),
    "special_erfinv": special(_erfinv),
}
