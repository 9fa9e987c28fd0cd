"""Converters of special functions; they are computed in f64 and rounded once."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

import numpy as np
from tcc.frontends.emit import constant, family
from tcc.frontends.operand import Operand
from tcc.frontends.torch.context import Computed, Converter, Converters
from tcc.frontends.torch.convert.scalar_functions import is_negative
from tcc.ir.types import F64

# Lanczos' approximation with g = 7: 15 digits for arguments from 1/2 on.
_LANCZOS_G = 7.0
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
    -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
    1.5056327351493116e-7,
)  # fmt: skip
# The coefficients B(2k) / 2k of the digamma function's asymptotic series, with Bernoulli numbers B.
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760)
_SHIFT = 8  # the shift of arguments: from 8 on, this series has 15 digits
_NEWTON = 3


@family
def _special(function: Callable[[Operand], Operand], x: Computed) -> Operand:
    return function(x.cast(F64))


def _part(x: Operand) -> Operand:
    """Returns pi times the fractional part of `x`, its distance from the integer below."""
    return (x - x.floor()) * math.pi


def _lgamma(x: Operand) -> Operand:
    """Returns log |gamma(x)|; below 1/2 by reflection."""
    low = x < 0.5
    reflected = low.select(1 - x, x)
    series = _LANCZOS[1] / reflected + _LANCZOS[0]
    for n, factor in enumerate(_LANCZOS[2:], 1):
        series = series + factor / (reflected + n)
    base = reflected + (_LANCZOS_G - 0.5)
    power = (reflected - 0.5) * base.log()
    result = power - base + (series * math.sqrt(2 * math.pi)).log()
    mirror = math.pi / _part(x).sin()
    result = low.select(mirror.log() - result, result)
    return x.is_inf().select(math.inf, result)


def _digamma(x: Operand) -> Operand:
    """Returns the derivative of log gamma.

    The asymptotic series gives it for the argument plus `_SHIFT`; a recurrence steps back to the
    argument. Arguments below 1/2 are reflected.
    """
    low = x < 0.5
    reflected = low.select(1 - x, x)
    shifted = reflected + _SHIFT
    inverse = 1 / shifted
    square = inverse * inverse
    result = shifted.log() - inverse * 0.5
    result = result - square * _polynomial(square, _BERNOULLI)
    for n in range(_SHIFT):
        result = result - 1 / (reflected + n)
    result = low.select(result - math.pi / _part(x).tan(), result)
    result = (x.equals(x.floor()) & low).select(math.nan, result)
    pole = is_negative(x).select(x.like(math.inf), -math.inf)
    return x.equals(0).select(pole, result)


def _erfinv(x: Operand) -> Operand:
    """Returns the inverse of erf: Winitzki's approximation, then Newton's method."""
    a = 0.147
    log = (1 - x * x).log()
    half = log * 0.5 + 2 / (math.pi * a)
    size = ((half * half - log * (1 / a)).sqrt() - half).sqrt()
    estimate = is_negative(x).select(-size, size)
    for _ in range(_NEWTON):
        gap = estimate.erf() - x
        slope = (-(estimate * estimate)).exp() * (2 / math.sqrt(math.pi))
        estimate = estimate - gap / slope
    return abs(x).equals(1).select(x * math.inf, estimate)


# The scaled erfc as a trapezoidal sum (Matta and Reichel 1971) of exp(-t^2) / (x^2 + t^2) over
# nodes t.
_STEP = 0.5
_NODES = tuple(_STEP * n for n in range(1, 13))


def _erfcx(x: Operand) -> Operand:
    """Returns exp(x^2) erfc(x), by way of 1 - erf(x) where that does not cancel."""
    size, growth = abs(x), (x * x).exp()
    middle = growth * (1 - x.erf())
    large = size.maximum(1)
    node_sum = 1 / large
    for node in _NODES:
        node_sum = node_sum + 2 * math.exp(-(node**2)) / (large + node**2 / large)
    period = large * (-2 * math.pi / _STEP)
    # The sum's correction for the poles of its terms at t = i x; it is negligible beyond x = 6.
    pole = (large * large + period).exp() * 2 / (1 - period.exp())
    positive = node_sum * (_STEP / math.pi) - (large < 6).select(pole, 0)
    outer = (x < 0).select(growth * 2 - positive, positive)
    return (size < 1).select(middle, outer)


# Abramowitz and Stegun 26.2.23: the normal quantile to four digits.
_ABOVE, _BELOW = (2.515517, 0.802853, 0.010328), (1.0, 1.432788, 0.189269, 0.001308)


def _polynomial(x: Operand, coefficients: Sequence[float]) -> Operand:
    """Evaluates a polynomial by Horner's rule; the constant term comes first."""
    *lower, first, last = coefficients
    value = x * last + first
    for coefficient in reversed(lower):
        value = value * x + coefficient
    return value


def _normal_quantile(p: Operand) -> Operand:
    """Returns the inverse of the normal distribution: an approximation, then Newton's method on the
    logarithm of the tail."""
    reflected = 1 - p
    tail = p.minimum(reflected)
    log = tail.log()
    t = (log * -2).sqrt()
    z = t - _polynomial(t, _ABOVE) / _polynomial(t, _BELOW)
    for _ in range(_NEWTON):
        scaled = _erfcx(z * math.sqrt(0.5))
        here = (scaled * 0.5).log() - z * z * 0.5
        z = z + (here - log) * scaled * math.sqrt(math.pi / 2)
    z = tail.equals(0).select(math.inf, z)
    return (p < reflected).select(-z, z)


# ---- Bessel's I ----------------------------------------------------------------------------------

# Up to 25: the mean of exp(x cos t) cos(t)^order over `_NODES_OF_I` angles t of a half circle.  Its
# error is about the function of order 64, which is below the last digit.  From 25 on: Hankel's
# expansion (Abramowitz and Stegun 9.7.1), whose eleven terms give 16 digits there.
_NODES_OF_I = 32
_COSINES = np.cos((np.arange(_NODES_OF_I) + 0.5) * math.pi / _NODES_OF_I)
_FAR = 25.0
_TERMS = 11


def _hankel(order: int) -> tuple[float, ...]:
    """Returns the coefficients of the expansion in 1 / x."""
    steps = (((2 * k + 1) ** 2 - 4 * order**2) / (8 * (k + 1)) for k in range(_TERMS - 1))
    return tuple(accumulate(steps, mul, initial=1.0))


def _bessel_i(order: int, scaled: bool) -> Converter:
    """Returns a converter of I(x), or of exp(-|x|) I(x) if `scaled`."""
    weights = _COSINES**order / _NODES_OF_I

    def function(x: Operand) -> Operand:
        size = abs(x)
        near_size = size.minimum(_FAR).unsqueeze(x.rank)
        terms = (near_size * constant(_COSINES - 1)).exp() * constant(weights)
        result = terms.sum(x.rank)
        inverse = 1 / size
        far_result = (inverse * (1 / (2 * math.pi))).sqrt()
        far_result = far_result * _polynomial(inverse, _hankel(order))
        result = (size > _FAR).select(far_result, result)
        if not scaled:  # exp(size) alone may overflow
            half = (size * 0.5).exp()
            result = x.is_inf().select(size, result * half * half)
        return result * x.sign() if order else result

    return _special(function)


CONVERTERS: Converters = {
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
