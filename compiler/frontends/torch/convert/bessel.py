"""Converters of Bessel's functions, computed in f64 and rounded once.

Up to 25 they are means over nodes of a circle, which converge faster than any power of their
number: of cos(x sin t) for J, of exp(x cos t) for I.  Y and K are Neumann's series of these
(Abramowitz and Stegun 9.1.89, 9.6.54), their sums over the order done in the nodes' weights; K of
more than 2 is its integral over exp(-x cosh t) (9.6.24).  From 25 on they are Hankel's expansions
(9.2, 9.7).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter
from tcc.frontends.torch.convert.special import affine, special
from tcc.ir.types import F64

_NODES = 32  # exact up to the function of order 64, which is 1e-18 at 25
_FAR = 25.0
_TERMS = 11  # of each of Hankel's series: 1e-16 at 25
_STEP, _REACH = 0.1, 3.8  # of the integral of K, which has 15 digits from 2 to 25
_SMALL = 2.0
_HALF_CIRCLE = (np.arange(_NODES) + 0.5) * math.pi / _NODES
_QUARTER = _HALF_CIRCLE / 2
_EULER = float(np.euler_gamma)

Node = Callable[[CallContext, Operand], Operand]


def _number(ctx: CallContext, value: float) -> Operand:
    return ctx.filled(value, F64)


def _mean(
    ctx: CallContext, x: Operand, nodes: Any, weights: Any, function: Node, shift: bool = False
) -> Operand:
    """The sum over nodes of weight * function(x * node), or of x * node - |x| with `shift`."""
    wide = ctx.unsqueeze(x, x.rank)
    inner = ctx.emit("mul", wide, ctx.constant(nodes))
    if shift:
        inner = ctx.emit("sub", inner, ctx.emit("abs", wide))
    terms = ctx.emit("mul", function(ctx, inner), ctx.constant(weights))
    return ctx.emit("reduce_sum", terms, axes=(x.rank,), keepdims=False)


def _row(op: str) -> Node:
    return lambda ctx, x: ctx.emit(op, x)


def _orders(angles: Any, sign: int, count: int) -> Any:
    """What the sum over k of sign^k f(2k) / k takes from each node."""
    k = np.arange(1, count + 1)
    return (float(sign) ** k * np.cos(2 * np.outer(angles, k)) / k).sum(1)


def _hankel(order: int, sign: int, start: int, step: int) -> list[float]:
    """Coefficients of Hankel's series in 1 / x: each `step`th from `start` on, their signs turned
    by `sign` from one to the next."""
    found: list[float] = []
    term = 1.0
    for k in range(start + step * _TERMS):
        if k >= start and (k - start) % step == 0:
            found.append(term * float(sign) ** len(found))
        term *= (4 * order**2 - (2 * k + 1) ** 2) / (8 * (k + 1))
    return found


def _polynomial(ctx: CallContext, x: Operand, coefficients: list[float]) -> Operand:
    total = _number(ctx, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = ctx.emit("add", ctx.emit("mul", total, x), _number(ctx, coefficient))
    return total


def _is_far(ctx: CallContext, size: Operand) -> Operand:
    return ctx.emit("greater", size, _number(ctx, _FAR))


def _near(ctx: CallContext, size: Operand) -> Operand:
    """|x| where that is near, else some near number."""
    return ctx.emit("min", size, _number(ctx, _FAR))


def _log_half(ctx: CallContext, x: Operand) -> Operand:
    """log(x / 2) + Euler's constant."""
    half = affine(ctx, x, 0.5, 0.0)
    return ctx.emit("add", ctx.emit("log", half), _number(ctx, _EULER))


# ---- J and Y -------------------------------------------------------------------------------------


def _waves(ctx: CallContext, size: Operand, order: int) -> tuple[Operand, Operand]:
    """J and Y far away: by an amplitude and a phase."""
    inverse = ctx.emit("reciprocal", size)
    square = ctx.emit("mul", inverse, inverse)
    p = _polynomial(ctx, square, _hankel(order, -1, 0, 2))
    q = ctx.emit("mul", inverse, _polynomial(ctx, square, _hankel(order, -1, 1, 2)))
    phase = affine(ctx, size, 1.0, -(order / 2 + 0.25) * math.pi)
    sine, cosine = ctx.emit("sin", phase), ctx.emit("cos", phase)
    scale = ctx.emit("sqrt", affine(ctx, inverse, 2 / math.pi, 0.0))
    j = ctx.emit("sub", ctx.emit("mul", p, cosine), ctx.emit("mul", q, sine))
    y = ctx.emit("add", ctx.emit("mul", p, sine), ctx.emit("mul", q, cosine))
    end = ctx.emit("is_inf", size)
    zero = _number(ctx, 0.0)
    return ctx.where(end, zero, ctx.emit("mul", scale, j)), ctx.where(
        end, zero, ctx.emit("mul", scale, y)
    )


def _near_j(ctx: CallContext, near: Operand, order: int) -> Operand:
    sines = np.sin(_QUARTER)
    weights = (sines if order else np.ones(_NODES)) / _NODES
    return _mean(ctx, near, sines, weights, _row("sin" if order else "cos"))


def _bessel_j(order: int) -> Node:
    def function(ctx: CallContext, x: Operand) -> Operand:
        size = ctx.emit("abs", x)
        near = _near_j(ctx, _near(ctx, size), order)
        found = ctx.where(_is_far(ctx, size), _waves(ctx, size, order)[0], near)
        if not order:
            return found
        negative = ctx.emit("less", x, _number(ctx, 0.0))
        return ctx.where(negative, ctx.emit("neg", found), found)

    return function


def _bessel_y(order: int) -> Node:
    """Y: minus infinity at 0, undefined below."""

    def function(ctx: CallContext, x: Operand) -> Operand:
        near, sines = _near(ctx, x), np.sin(_QUARTER)
        weights = _orders(_QUARTER, -1, _NODES - 1) / _NODES * (sines if order else 1)
        series = _mean(ctx, near, sines, weights, _row("sin" if order else "cos"))
        logs = ctx.emit("mul", _log_half(ctx, near), _near_j(ctx, near, order))
        found = affine(ctx, logs, 2 / math.pi, 0.0)
        found = ctx.emit("sub", found, affine(ctx, series, 4 / math.pi, 0.0))
        if order:
            pole = ctx.emit("div", _near_j(ctx, near, 0), near)
            found = ctx.emit("sub", found, affine(ctx, pole, 2 / math.pi, 0.0))
        found = ctx.where(_is_far(ctx, x), _waves(ctx, x, order)[1], found)
        zero = ctx.emit("equal", x, _number(ctx, 0.0))
        return ctx.where(zero, _number(ctx, -math.inf), found)

    return function


# ---- I and K -------------------------------------------------------------------------------------


def _near_i(ctx: CallContext, near: Operand, order: int, weights: Any = 1.0) -> Operand:
    """exp(-|x|) I(x), or what the weights make of I."""
    cosines = np.cos(_HALF_CIRCLE)
    each = (cosines if order else np.ones(_NODES)) * weights / _NODES
    return _mean(ctx, near, cosines, each, _row("exp"), shift=True)


def _scaled_i(order: int) -> Node:
    """exp(-|x|) I(x)."""

    def function(ctx: CallContext, x: Operand) -> Operand:
        size = ctx.emit("abs", x)
        inverse = ctx.emit("reciprocal", size)
        series = _polynomial(ctx, inverse, _hankel(order, -1, 0, 1))
        scale = ctx.emit("sqrt", affine(ctx, inverse, 1 / (2 * math.pi), 0.0))
        near = _near_i(ctx, _near(ctx, size), order)
        found = ctx.where(_is_far(ctx, size), ctx.emit("mul", scale, series), near)
        if not order:
            return found
        negative = ctx.emit("less", x, _number(ctx, 0.0))
        return ctx.where(negative, ctx.emit("neg", found), found)

    return function


def _bessel_i(order: int) -> Node:
    def function(ctx: CallContext, x: Operand) -> Operand:
        size = ctx.emit("abs", x)
        half = ctx.emit("exp", affine(ctx, size, 0.5, 0.0))  # exp of all of it may overflow
        found = ctx.emit("mul", ctx.emit("mul", _scaled_i(order)(ctx, x), half), half)
        end = ctx.emit("is_inf", x)
        return ctx.where(end, x if order else size, found)

    return function


def _small_k(ctx: CallContext, x: Operand, order: int) -> Operand:
    """exp(x) K(x) up to 2."""
    weights = _orders(_HALF_CIRCLE, 1, 12)
    logs = ctx.emit("mul", _log_half(ctx, x), _near_i(ctx, x, order))
    series = affine(ctx, _near_i(ctx, x, order, weights), 2.0, 0.0)
    found = ctx.emit("sub", series, logs)
    if order:
        pole = ctx.emit("div", _near_i(ctx, x, 0), x)
        found = ctx.emit("add", ctx.emit("neg", found), pole)
    return ctx.emit("mul", found, ctx.emit("exp", affine(ctx, x, 2.0, 0.0)))


def _scaled_k(order: int) -> Node:
    """exp(x) K(x): infinite at 0, undefined below."""

    def function(ctx: CallContext, x: Operand) -> Operand:
        small = ctx.emit("min", x, _number(ctx, _SMALL))
        points = np.arange(0.0, _REACH, _STEP)
        weights = np.where(points == 0, 0.5, 1.0) * _STEP * np.cosh(order * points)
        middle = ctx.emit("max", _near(ctx, x), _number(ctx, _SMALL))
        found = _mean(ctx, middle, 1 - np.cosh(points), weights, _row("exp"))
        found = ctx.where(
            ctx.emit("less_or_equal", x, _number(ctx, _SMALL)), _small_k(ctx, small, order), found
        )
        inverse = ctx.emit("reciprocal", x)
        series = _polynomial(ctx, inverse, _hankel(order, 1, 0, 1))
        scale = ctx.emit("sqrt", affine(ctx, inverse, math.pi / 2, 0.0))
        found = ctx.where(_is_far(ctx, x), ctx.emit("mul", scale, series), found)
        zero = ctx.emit("equal", x, _number(ctx, 0.0))
        return ctx.where(zero, _number(ctx, math.inf), found)

    return function


def _bessel_k(order: int) -> Node:
    def function(ctx: CallContext, x: Operand) -> Operand:
        falling = ctx.emit("exp", ctx.emit("neg", x))
        found = ctx.emit("mul", _scaled_k(order)(ctx, x), falling)
        return ctx.where(ctx.emit("less", x, _number(ctx, 0.0)), _number(ctx, math.nan), found)

    return function


def _spherical(ctx: CallContext, x: Operand) -> Operand:
    """sin(x) / x."""
    zero = ctx.emit("equal", x, _number(ctx, 0.0))
    found = ctx.where(zero, _number(ctx, 1.0), ctx.emit("div", ctx.emit("sin", x), x))
    return ctx.where(ctx.emit("is_inf", x), _number(ctx, 0.0), found)


CONVERTERS: dict[str, Converter] = {
    name: special(function)
    for names, function in (
        ("special_bessel_j0 prims.bessel_j0", _bessel_j(0)),
        ("special_bessel_j1 prims.bessel_j1", _bessel_j(1)),
        ("special_bessel_y0", _bessel_y(0)),
        ("special_bessel_y1", _bessel_y(1)),
        ("i0 special_modified_bessel_i0 prims.bessel_i0", _bessel_i(0)),
        ("special_i1 special_modified_bessel_i1 prims.bessel_i1", _bessel_i(1)),
        ("special_i0e prims.bessel_i0e", _scaled_i(0)),
        ("special_i1e prims.bessel_i1e", _scaled_i(1)),
        ("special_modified_bessel_k0", _bessel_k(0)),
        ("special_modified_bessel_k1", _bessel_k(1)),
        ("special_scaled_modified_bessel_k0", _scaled_k(0)),
        ("special_scaled_modified_bessel_k1", _scaled_k(1)),
        ("special_spherical_bessel_j0 prims.spherical_bessel_j0", _spherical),
    )
    for name in names.split()
}
