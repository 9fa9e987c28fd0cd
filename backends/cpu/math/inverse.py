"""Inverse sine, cosine and tangent of f32 vectors.

asin(x) = x + x**3 P(x**2) for x up to 1/2, and pi/2 - 2 asin(s) beyond, with s = sqrt((1 - x) / 2).
atan(x) = x + x**3 Q(x**2) for x up to 1, and pi/2 - atan(1 / x) beyond. P and Q are minimax fits.
"""

import math

from tcc.backends.cpu.llvm.text import Code, Reg
from tcc.backends.cpu.math.code import magnitude, polynomial, shared

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


def _odd(code: Code, x: Reg, square: Reg, coefficients: tuple[float, ...]) -> Reg:
    """Returns x + x * square * P(square), with the `coefficients` of P."""
    tail = code.op("fmul", polynomial(code, square, coefficients), square)
    return code.fma(tail, x, x)


def _from_half_pi(code: Code, factor: float, x: Reg) -> Reg:
    """Returns pi/2 + factor * x, with about one rounding."""
    low = code.fma(x, factor, _HALF_PI_LOW)
    return code.op("fadd", low, _HALF_PI)


def _arc(code: Code, x: Reg) -> tuple[Reg, Reg, Reg]:
    """Returns (|x|, condition, arc).

    The condition is |x| > 1/2. Where it holds, arc is asin(sqrt((1 - |x|) / 2)), else asin(|x|).
    """
    size = magnitude(code, x)
    outer = code.compare("fcmp ogt", size, 0.5)
    half_distance = code.fma(size, -0.5, 0.5)
    square = code.select(outer, half_distance, code.op("fmul", x, x))
    root = code.select(outer, code.intrinsic("sqrt", half_distance), size)
    return size, outer, _odd(code, root, square, _ASIN)


@shared
def asin(code: Code, x: Reg) -> Reg:
    """Returns asin(x) with an error of at most 3 ULP (measured: 2.19); NaN for |x| > 1."""
    _, outer, arc = _arc(code, x)
    value = code.select(outer, _from_half_pi(code, -2.0, arc), arc)
    return code.intrinsic("copysign", value, x)


@shared
def acos(code: Code, x: Reg) -> Reg:
    """Returns acos(x) with an error of at most 2 ULP (measured: 1.06); NaN for |x| > 1."""
    _, outer, arc = _arc(code, x)
    negative = code.compare("fcmp olt", x, 0.0)
    twice = code.op("fadd", arc, arc)
    minus = code.negate(arc)
    # For |x| up to 1/2, the result is pi/2 - asin(x). Beyond, it is 2 asin(s), or pi - 2 asin(s)
    # for negative x.
    inner = _from_half_pi(code, 1.0, code.select(negative, arc, minus))
    below = code.op("fsub", 2 * _HALF_PI_LOW, twice)
    below = code.op("fadd", below, 2 * _HALF_PI)
    return code.select(outer, code.select(negative, below, twice), inner)


@shared
def atan(code: Code, x: Reg) -> Reg:
    """Returns atan(x) with an error of at most 2 ULP (measured: 1.19)."""
    size = magnitude(code, x)
    outer = code.compare("fcmp ogt", size, 1.0)
    inverse = code.op("fdiv", 1.0, size)
    t = code.select(outer, inverse, size)
    arc = _odd(code, t, code.op("fmul", t, t), _ATAN)
    value = code.select(outer, _from_half_pi(code, -1.0, arc), arc)
    return code.intrinsic("copysign", value, x)
