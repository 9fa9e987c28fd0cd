"""Converters of Hurwitz' zeta function and of the polygamma functions, computed in f64."""

from __future__ import annotations

import math

from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter
from tcc.frontends.torch.convert.special import affine, digamma
from tcc.ir.types import F64

_TERMS = 10  # that are summed before Euler and Maclaurin's expansion
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


def _number(ctx: CallContext, value: float) -> Operand:
    return ctx.filled(value, F64)


def _of_positive(ctx: CallContext, s: Operand, q: Operand) -> Operand:
    """The sum over k of (q + k)^-s for s above 1 and q above 0."""
    power = ctx.emit("neg", s)
    total = ctx.emit("pow", q, power)
    for k in range(1, _TERMS):
        total = ctx.emit("add", total, ctx.emit("pow", affine(ctx, q, 1.0, k), power))
    end = affine(ctx, q, 1.0, _TERMS)
    last = ctx.emit("pow", end, power)
    rest = ctx.emit("div", end, affine(ctx, s, 1.0, -1.0))
    factor = _number(ctx, 1.0)
    for j, bernoulli in enumerate(_BERNOULLI):
        step = ctx.emit("div", affine(ctx, s, 1.0, 2 * j - 1.0), end) if j else None
        factor = factor if step is None else ctx.emit("mul", factor, step)
        factor = ctx.emit("mul", factor, ctx.emit("div", affine(ctx, s, 1.0, 2.0 * j), end))
        rest = ctx.emit(
            "add", rest, affine(ctx, factor, bernoulli / math.factorial(2 * j + 2), 0.0)
        )
    rest = affine(ctx, rest, 1.0, 0.5)
    return ctx.emit("add", total, ctx.emit("mul", last, rest))


def _hurwitz(ctx: CallContext, s: Operand, q: Operand) -> Operand:
    """The zeta function as torch has it: infinite at poles, undefined below 1, and for negative q
    unless s is an integer."""
    zero, one = _number(ctx, 0.0), _number(ctx, 1.0)
    below = ctx.emit("less_or_equal", q, zero)
    # The terms with negative bases are those of two other sums, but for their sign.
    many = affine(ctx, ctx.emit("floor", q), -1.0, 0.0)
    first = ctx.where(below, ctx.emit("add", q, many), q)
    mirror = ctx.where(below, affine(ctx, ctx.emit("add", q, many), -1.0, 1.0), one)
    behind = ctx.where(below, affine(ctx, q, -1.0, 1.0), one)
    between = ctx.emit("sub", _of_positive(ctx, s, mirror), _of_positive(ctx, s, behind))
    odd = ctx.emit("equal", ctx.emit("mod", s, _number(ctx, 2.0), fmod=False), one)
    between = ctx.where(odd, ctx.emit("neg", between), between)
    found = _of_positive(ctx, s, first)
    found = ctx.where(below, ctx.emit("add", found, between), found)
    whole = ctx.emit("equal", s, ctx.emit("floor", s))
    undefined = ctx.emit("and", below, ctx.emit("not", whole))
    found = ctx.where(undefined, _number(ctx, math.nan), found)
    pole = ctx.emit("and", below, ctx.emit("equal", q, ctx.emit("floor", q)))
    found = ctx.where(pole, _number(ctx, math.inf), found)
    found = ctx.where(ctx.emit("less", s, one), _number(ctx, math.nan), found)
    return ctx.where(ctx.emit("equal", s, one), _number(ctx, math.inf), found)


def _zeta(ctx: CallContext) -> Operand:
    dtype = ctx.result_dtype()
    s, q = (ctx.cast(ctx.operand(name, dtype), F64) for name in list(ctx.arguments)[:2])
    return ctx.cast(_hurwitz(ctx, s, q), dtype)


def _polygamma(ctx: CallContext) -> Operand:
    """The derivatives of digamma: n! zeta(n + 1, x), of alternating sign."""
    n, dtype = ctx.integer("n"), ctx.result_dtype()
    x = ctx.cast(ctx.operand("self", dtype), F64)
    if n == 0:
        return ctx.cast(digamma(ctx, x), dtype)
    factor = math.factorial(n) * (1.0 if n % 2 else -1.0)
    found = _hurwitz(ctx, ctx.expand(_number(ctx, n + 1.0), x.shape), x)
    return ctx.cast(affine(ctx, found, factor, 0.0), dtype)


CONVERTERS: dict[str, Converter] = {
    "special_zeta": _zeta,
    "prims.zeta": _zeta,
    "polygamma": _polygamma,
}
