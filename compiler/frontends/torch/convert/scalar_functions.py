"""Converters of pointwise functions that are composed of several ops."""

import math

from tcc.frontends.emit import family, full
from tcc.frontends.operand import Operand
from tcc.frontends.torch.context import CallContext, Computed, Converter, Converters, named, numbers
from tcc.frontends.torch.convert.pointwise import truncated
from tcc.ir.types import BOOL, F64


@family
def _rounding(op: str, x: Computed) -> Operand:
    """Rounds; integers are unchanged."""
    return x.emit(op) if x.dtype.is_float else x


def _round(x: Computed, decimals: int = 0) -> Operand:
    if not x.dtype.is_float:
        return x
    if decimals == 0:
        return x.round()
    factor = x.like(10.0 ** abs(decimals))
    up, down = ("mul", "div") if decimals > 0 else ("div", "mul")
    return x.emit(up, factor).round().emit(down, factor)


def _abs(x: Computed) -> Operand:
    return x if x.dtype is BOOL else abs(x)


def _sign(x: Computed) -> Operand:
    """Returns -1, 0 or 1; 0 for NaN."""
    if x.dtype is BOOL:
        return x
    sign = x.sign()
    if not x.dtype.is_float:
        return sign
    return x.is_nan().select(0, sign)


def _exp2(x: Computed) -> Operand:
    return x.like(2) ** x


def _expm1(x: Computed) -> Operand:
    """Returns 2 sinh(x/2) exp(x/2), which does not cancel near zero."""
    half = x * 0.5
    result = half.sinh() * half.exp() * 2
    return (x < -30).select(-1, result)


def _log1p(x: Computed) -> Operand:
    """Returns log(1 + x); near zero 2 atanh(x / (2 + x)), which does not cancel."""
    near_zero = 2 * (x / (x + 2)).atanh()
    elsewhere = (x + 1).log()
    return (abs(x) < 0.5).select(near_zero, elsewhere)


def _logarithm(base: float) -> Converter:
    return lambda ctx: ctx.input().log() * (1 / math.log(base))


def _erfc(x: Computed) -> Operand:
    """Returns 1 - erf(x), with the difference in f64."""
    return 1 - x.cast(F64).erf()


def is_negative(x: Operand) -> Operand:
    """True where the sign bit is set; the sign bit of NaN counts as unset."""
    below = x < 0
    if not x.dtype.is_float:
        return below
    has_negative_reciprocal = x.reciprocal() < 0
    return x.equals(0).select(has_negative_reciprocal, below)


def _copysign(x: Computed, other: Computed) -> Operand:
    size = abs(x)
    return is_negative(other).select(-size, size)


def angle_of(y: Operand, x: Operand) -> Operand:
    """Returns the angle of (x, y), from atan of y / x, the quadrant and the signs of zeros."""
    ends = y.is_inf() & x.is_inf()
    is_origin = y.equals(0) & x.equals(0)
    angle = is_origin.select(0, ends.select(1, abs(y) / abs(x))).atan()
    angle = is_negative(x).select(math.pi - angle, angle)
    return is_negative(y).select(-angle, angle)


def _angle(x: Computed) -> Operand:
    """Returns the angle of a real number: pi where it is negative."""
    angle = (x < 0).select(x.like(math.pi), 0)
    return x.is_nan().select(x, angle) if x.dtype.is_float else angle


@family
def _of_reals(op: str, x: Operand) -> Operand:
    """Applies a predicate of floats, such as isnan; it is false for integers."""
    return x.emit(op) if x.dtype.is_float else full(False, BOOL, x.shape)


def _hypot(ctx: CallContext) -> Operand:
    x, y = (part.cast(F64) for part in ctx.both())
    return (x * x + y * y).sqrt()


CONVERTERS: Converters = {
    **named(_round, _abs, _sign, _exp2, _expm1, _log1p, _erfc, _copysign, _angle, _hypot),
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "trunc": lambda ctx: truncated(ctx.input()),
    "rsqrt": lambda ctx: ctx.input().sqrt().reciprocal(),
    "log2": _logarithm(2),
    "log10": _logarithm(10),
    "signbit": lambda x: is_negative(numbers(x)),
    "atan2": lambda ctx: angle_of(*ctx.both()),
    "isinf": _of_reals("is_inf"),
    "isnan": _of_reals("is_nan"),
}
