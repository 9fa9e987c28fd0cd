"""Converters of Chebyshev's polynomials, by their closed forms in f64.

With x = cos t, or cosh t beyond 1, the four kinds are quotients of cosines and sines of t.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter
from tcc.frontends.torch.convert.pointwise import truncated
from tcc.frontends.torch.convert.special import affine
from tcc.ir.types import F64

Kind = Callable[[CallContext, Operand, Operand, str, str], Operand]


def _one(ctx: CallContext) -> Operand:
    return ctx.filled(1.0, F64)


def _ratio(shift: float, base: float, sine: bool) -> Kind:
    """f((n + shift) t) / f(base t), f being the cosine or the sine; at t = 0 its limit."""

    def kind(ctx: CallContext, n: Operand, t: Operand, cosine: str, sine_row: str) -> Operand:
        row = sine_row if sine else cosine
        order = affine(ctx, n, 1.0, shift)
        top = ctx.emit(row, ctx.emit("mul", order, t))
        bottom = ctx.emit(row, affine(ctx, t, base, 0.0)) if base else _one(ctx)
        found = ctx.emit("div", top, bottom)
        if not sine:
            return found
        still = ctx.emit("equal", t, ctx.filled(0.0, F64))
        return ctx.where(still, affine(ctx, order, 1 / base, 0.0), found)

    return kind


_FIRST, _SECOND = _ratio(0, 0, False), _ratio(1, 1, True)
_THIRD, _FOURTH = _ratio(0.5, 0.5, False), _ratio(0.5, 0.5, True)


def _chebyshev(kind: Kind, mirrored: Kind, shifted: bool) -> Converter:
    """Order n; where x is negative, `mirrored` of -x, turned over if n is odd."""

    def convert(ctx: CallContext) -> Operand:
        dtype = ctx.result_dtype()
        x, given = (ctx.cast(ctx.operand(name, dtype), F64) for name in ("x", "n"))
        n = truncated(ctx, given)
        if shifted:
            x = affine(ctx, x, 2.0, -1.0)
        size, one = ctx.emit("abs", x), _one(ctx)
        turn, grow = (
            ctx.emit("acos", ctx.emit("min", size, one)),
            ctx.emit("acosh", ctx.emit("max", size, one)),
        )
        beyond = ctx.emit("greater", size, one)

        def found(of: Kind) -> Operand:
            return ctx.where(
                beyond, of(ctx, n, grow, "cosh", "sinh"), of(ctx, n, turn, "cos", "sin")
            )

        odd = ctx.emit("equal", ctx.emit("mod", n, ctx.filled(2.0, F64), fmod=False), one)
        right, left = found(kind), found(mirrored)
        left = ctx.where(odd, ctx.emit("neg", left), left)
        value = ctx.where(ctx.emit("less", x, ctx.filled(0.0, F64)), left, right)
        value = ctx.where(ctx.emit("is_nan", x), ctx.filled(math.nan, F64), value)
        zero = ctx.filled(0.0, F64)
        value = ctx.where(ctx.emit("equal", n, zero), one, value)
        return ctx.cast(ctx.where(ctx.emit("less", n, zero), zero, value), dtype)

    return convert


CONVERTERS: dict[str, Converter] = {
    f"special_{prefix}chebyshev_polynomial_{letter}": _chebyshev(kind, mirrored, bool(prefix))
    for prefix in ("", "shifted_")
    for letter, kind, mirrored in (
        ("t", _FIRST, _FIRST),
        ("u", _SECOND, _SECOND),
        ("v", _THIRD, _FOURTH),
        ("w", _FOURTH, _THIRD),
    )
}
