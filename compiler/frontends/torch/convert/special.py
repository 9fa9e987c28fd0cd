"""Converters of special functions; they are computed in f64 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from operator import mul

import numpy as np
from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter
from tcc.frontends.torch.convert.scalar_functions import is_negative
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


def _special(function: Callable[[CallContext, Operand], Operand]) -> Converter:
    def convert(ctx: CallContext) -> Operand:
        x = ctx.operand(ctx.first(), ctx.result_dtype())
        return ctx.cast(function(ctx, ctx.cast(x, F64)), x.dtype)

    return convert


def _number(ctx: CallContext, value: float) -> Operand:
    return ctx.filled(value, F64)


def _affine(ctx: CallContext, x: Operand, factor: float, term: float) -> Operand:
    """factor * x + term."""
    return ctx.emit("add", ctx.emit("mul", x, _number(ctx, factor)), _number(ctx, term))


def _part(ctx: CallContext, x: Operand) -> Operand:
    """pi times what `x` is above the next integer below."""
    return ctx.emit("mul", ctx.emit("sub", x, ctx.emit("floor", x)), _number(ctx, math.pi))


def _lgamma(ctx: CallContext, x: Operand) -> Operand:
    """log |gamma(x)|; below 1/2 by reflection."""
    low = ctx.emit("less", x, _number(ctx, 0.5))
    turned = ctx.where(low, _affine(ctx, x, -1, 1), x)
    total = _number(ctx, _LANCZOS[0])
    for n, factor in enumerate(_LANCZOS[1:]):
        term = ctx.emit("div", _number(ctx, factor), _affine(ctx, turned, 1, n))
        total = ctx.emit("add", total, term)
    base = _affine(ctx, turned, 1, _LANCZOS_G - 0.5)
    power = ctx.emit("mul", _affine(ctx, turned, 1, -0.5), ctx.emit("log", base))
    rest = ctx.emit("log", ctx.emit("mul", total, _number(ctx, math.sqrt(2 * math.pi))))
    found = ctx.emit("add", ctx.emit("sub", power, base), rest)
    mirror = ctx.emit("div", _number(ctx, math.pi), ctx.emit("sin", _part(ctx, x)))
    found = ctx.where(low, ctx.emit("sub", ctx.emit("log", mirror), found), found)
    return ctx.where(ctx.emit("is_inf", x), _number(ctx, math.inf), found)


def _digamma(ctx: CallContext, x: Operand) -> Operand:
    """The derivative of log gamma: an asymptotic series after a shift, reflection below 1/2."""
    low = ctx.emit("less", x, _number(ctx, 0.5))
    turned = ctx.where(low, _affine(ctx, x, -1, 1), x)
    far = _affine(ctx, turned, 1, _SHIFT)
    inverse = ctx.emit("reciprocal", far)
    square = ctx.emit("mul", inverse, inverse)
    series = _number(ctx, 0.0)
    for factor in reversed(_BERNOULLI):
        series = ctx.emit("mul", ctx.emit("add", series, _number(ctx, factor)), square)
    half = ctx.emit("mul", inverse, _number(ctx, 0.5))
    found = ctx.emit("sub", ctx.emit("sub", ctx.emit("log", far), half), series)
    for n in range(_SHIFT):
        found = ctx.emit("sub", found, ctx.emit("reciprocal", _affine(ctx, turned, 1, n)))
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
    half = _affine(ctx, log, 0.5, 2 / (math.pi * a))
    inner = ctx.emit("sub", ctx.emit("mul", half, half), _affine(ctx, log, 1 / a, 0.0))
    size = ctx.emit("sqrt", ctx.emit("sub", ctx.emit("sqrt", inner), half))
    found = ctx.where(is_negative(ctx, x), ctx.emit("neg", size), size)
    for _ in range(_NEWTON):
        gap = ctx.emit("sub", ctx.emit("erf", found), x)
        slope = ctx.emit("exp", ctx.emit("neg", ctx.emit("mul", found, found)))
        step = ctx.emit("div", gap, _affine(ctx, slope, 2 / math.sqrt(math.pi), 0.0))
        found = ctx.emit("sub", found, step)
    ends = ctx.emit("equal", ctx.emit("abs", x), _number(ctx, 1.0))
    return ctx.where(ends, ctx.emit("mul", x, _number(ctx, math.inf)), found)


# The scaled erfc as a mean over nodes (Matta and Reichel 1971): sum of exp(-t^2) / (x^2 + t^2).
_STEP = 0.5
_NODES = tuple(_STEP * n for n in range(1, 13))


def _erfcx(ctx: CallContext, x: Operand) -> Operand:
    """exp(x^2) erfc(x); where 1 - erf(x) does not cancel, from that."""
    one, zero = _number(ctx, 1.0), _number(ctx, 0.0)
    size = ctx.emit("abs", x)
    growth = ctx.emit("exp", ctx.emit("mul", x, x))
    middle = ctx.emit("mul", growth, ctx.emit("sub", one, ctx.emit("erf", x)))
    large = ctx.emit("max", size, one)
    total = ctx.emit("reciprocal", large)
    for node in _NODES:
        base = ctx.emit("add", large, ctx.emit("div", _number(ctx, node**2), large))
        term = _affine(ctx, ctx.emit("reciprocal", base), 2 * math.exp(-(node**2)), 0.0)
        total = ctx.emit("add", total, term)
    found = _affine(ctx, total, _STEP / math.pi, 0.0)
    period = _affine(ctx, large, -2 * math.pi / _STEP, 0.0)
    # Of the poles between the nodes; past 6 it is less than the last digit.
    inner = ctx.emit("add", ctx.emit("mul", large, large), period)
    pole = ctx.emit("div", _affine(ctx, ctx.emit("exp", inner), 2.0, 0.0),
                    ctx.emit("sub", one, ctx.emit("exp", period)))  # fmt: skip
    pole = ctx.where(ctx.emit("less", large, _number(ctx, 6.0)), pole, zero)
    found = ctx.emit("sub", found, pole)
    left = ctx.emit("sub", _affine(ctx, growth, 2.0, 0.0), found)
    outer = ctx.where(ctx.emit("less", x, zero), left, found)
    return ctx.where(ctx.emit("less", size, one), middle, outer)


# Abramowitz and Stegun 26.2.23: the normal quantile to four digits.
_ABOVE, _BELOW = (2.515517, 0.802853, 0.010328), (1.0, 1.432788, 0.189269, 0.001308)


def _polynomial(ctx: CallContext, x: Operand, coefficients: tuple[float, ...]) -> Operand:
    total = _number(ctx, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = ctx.emit("add", ctx.emit("mul", total, x), _number(ctx, coefficient))
    return total


def _normal_quantile(ctx: CallContext, p: Operand) -> Operand:
    """The inverse of the normal distribution: an approximation, then Newton's method on the
    logarithm of the tail."""
    turned = _affine(ctx, p, -1.0, 1.0)
    tail = ctx.emit("min", p, turned)
    log = ctx.emit("log", tail)
    t = ctx.emit("sqrt", _affine(ctx, log, -2.0, 0.0))
    share = ctx.emit("div", _polynomial(ctx, t, _ABOVE), _polynomial(ctx, t, _BELOW))
    z = ctx.emit("sub", t, share)
    for _ in range(_NEWTON):
        scaled = _erfcx(ctx, _affine(ctx, z, math.sqrt(0.5), 0.0))
        bend = _affine(ctx, ctx.emit("mul", z, z), -0.5, 0.0)
        here = ctx.emit("add", ctx.emit("log", _affine(ctx, scaled, 0.5, 0.0)), bend)
        step = ctx.emit("mul", ctx.emit("sub", here, log), scaled)
        z = ctx.emit("add", z, _affine(ctx, step, math.sqrt(math.pi / 2), 0.0))
    z = ctx.where(ctx.emit("equal", tail, _number(ctx, 0.0)), _number(ctx, math.inf), z)
    return ctx.where(ctx.emit("less", p, turned), ctx.emit("neg", z), z)


# ---- Bessel's I ----------------------------------------------------------------------------------

# Up to 25 a mean over the nodes of a half circle, exact up to the function of order 64; from 25 on
# Hankel's expansion (Abramowitz and Stegun 9.7.1), whose eleven terms have 16 digits there.
_NODES_OF_I = 32
_COSINES = np.cos((np.arange(_NODES_OF_I) + 0.5) * math.pi / _NODES_OF_I)
_FAR = 25.0
_TERMS = 11


def _hankel(order: int) -> tuple[float, ...]:
    """The coefficients in 1 / x of the expansion."""
    steps = (((2 * k + 1) ** 2 - 4 * order**2) / (8 * (k + 1)) for k in range(_TERMS - 1))
    return tuple(accumulate(steps, mul, initial=1.0))


def _bessel_i(order: int, scaled: bool) -> Converter:
    """I(x), or exp(-|x|) I(x)."""
    weights = _COSINES**order / _NODES_OF_I

    def function(ctx: CallContext, x: Operand) -> Operand:
        size = ctx.emit("abs", x)
        near = ctx.unsqueeze(ctx.emit("min", size, _number(ctx, _FAR)), x.rank)
        terms = ctx.emit("exp", ctx.emit("mul", near, ctx.constant(_COSINES - 1)))
        terms = ctx.emit("mul", terms, ctx.constant(weights))
        found = ctx.emit("reduce_sum", terms, axes=(x.rank,), keepdims=False)
        inverse = ctx.emit("reciprocal", size)
        scale = ctx.emit("sqrt", _affine(ctx, inverse, 1 / (2 * math.pi), 0.0))
        far = ctx.emit("mul", scale, _polynomial(ctx, inverse, _hankel(order)))
        found = ctx.where(ctx.emit("greater", size, _number(ctx, _FAR)), far, found)
        if not scaled:  # exp of all of it may overflow
            half = ctx.emit("exp", _affine(ctx, size, 0.5, 0.0))
            found = ctx.emit("mul", ctx.emit("mul", found, half), half)
            found = ctx.where(ctx.emit("is_inf", x), size, found)
        return ctx.emit("mul", found, ctx.emit("sign", x)) if order else found

    return _special(function)


CONVERTERS: dict[str, Converter] = {
    "lgamma": _special(_lgamma),
    "digamma": _special(_digamma),
    "erfinv": _special(_erfinv),
    "special_erfcx": _special(_erfcx),
    "special_ndtri": _special(_normal_quantile),
    **{
        name: _bessel_i(order, scaled)
        for names, order, scaled in (
            ("i0 special_modified_bessel_i0", 0, False),
            ("special_i1 special_modified_bessel_i1", 1, False),
            ("special_i0e", 0, True),
            ("special_i1e", 1, True),
        )
        for name in names.split()
    },
}
