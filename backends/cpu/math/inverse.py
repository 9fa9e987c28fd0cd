"""Inverse sine, cosine and tangent of f32 vectors.

asin(x) = x + x**3 P(x**2) for x up to 1/2, and pi/2 - 2 asin(s) beyond, with s = sqrt((1 - x) / 2).
atan(x) = x + x**3 Q(x**2) for x up to 1, and pi/2 - atan(1 / x) beyond. P and Q are minimax fits.
"""

import math

from tcc.backends.cpu.llvm.values import LlvmValue
from tcc.backends.cpu.math.code import polynomial, shared

_ASIN = (0.166666597, 0.0750051066, 0.0445157215, 0.031817615, 0.0144025972, 0.0375652127)
_ATAN = (
    -0.333333284,
    0.199996933,
    -0.142801315,
    0.110602461,
    -0.0881885514,
    0.0675958693,
    -0.0449466631,
    0.0227605272,
    -0.00742272567,
    0.00113489607,
)
# pi/2 as a sum of two numbers, the first of which is an f32.
_HALF_PI = 1.57079637050628662109375
_HALF_PI_LOW = math.pi / 2 - _HALF_PI


def _odd(x: LlvmValue, square: LlvmValue, coefficients: tuple[float, ...]) -> LlvmValue:
    """Returns x + x * square * P(square), with the `coefficients` of P."""
    return (polynomial(square, coefficients) * square).fma(x, x)


def _from_half_pi(factor: float, x: LlvmValue) -> LlvmValue:
    """Returns pi/2 + factor * x, with about one rounding."""
    return x.fma(factor, _HALF_PI_LOW) + _HALF_PI


def _arc(x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Returns (condition, arc).

    The condition is |x| > 1/2. Where it holds, arc is asin(sqrt((1 - |x|) / 2)), else asin(|x|).
    """
    size = abs(x)
    outer = size > 0.5
    half_distance = size.fma(-0.5, 0.5)
    square = outer.select(half_distance, x * x)
    root = outer.select(half_distance.intrinsic("sqrt"), size)
    return outer, _odd(root, square, _ASIN)


@shared
def asin(x: LlvmValue) -> LlvmValue:
    """Returns asin(x) with an error of at most 3 ULP (measured: 2.19); NaN for |x| > 1."""
    outer, arc = _arc(x)
    return outer.select(_from_half_pi(-2.0, arc), arc).copysign(x)


@shared
def acos(x: LlvmValue) -> LlvmValue:
    """Returns acos(x) with an error of at most 2 ULP (measured: 1.06); NaN for |x| > 1."""
    outer, arc = _arc(x)
    negative = x < 0.0
    twice = arc + arc
    minus = -arc
    # For |x| up to 1/2, the result is pi/2 - asin(x). Beyond, it is 2 asin(s), or pi - 2 asin(s)
    # for negative x.
    inner = _from_half_pi(1.0, negative.select(arc, minus))
    below = (2 * _HALF_PI_LOW - twice) + 2 * _HALF_PI
    return outer.select(negative.select(below, twice), inner)


@shared
def atan(x: LlvmValue) -> LlvmValue:
    """Returns atan(x) with an error of at most 2 ULP (measured: 1.19)."""
    size = abs(x)
    outer = size > 1.0
    t = outer.select(1.0 / size, size)
    arc = _odd(t, t * t, _ATAN)
    return outer.select(_from_half_pi(-1.0, arc), arc).copysign(x)
