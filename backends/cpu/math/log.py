"""Logarithms of f32 vectors.

x = 2**e * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); the polynomial is a minimax fit of
(log(1 + f) - f + f**2 / 2) / f**3.
"""

import math

from tcc.backends.cpu.llvm.text import Code, Reg, number
from tcc.backends.cpu.math.code import polynomial, shared

_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2) - _LN2_HIGH
_LOG = (
    0.33333313,
    -0.25000009,
    0.20002119,
    -0.16667996,
    0.14219552,
    -0.12405589,
    0.11888162,
    -0.11675652,
    0.067466408,
)
_SQRT_HALF_BITS = 0x3F3504F3
_MIN_NORMAL = 2.0**-126


def _split(code: Code, x: Reg) -> tuple[Reg, Reg]:
    """Returns `e` and `f` of a positive finite x, which may be denormal."""

    denormal = code.compare("fcmp olt", x, _MIN_NORMAL)
    normal = code.select(denormal, code.op("fmul", x, 2.0**23), x)
    bits = code.bitcast(normal, "i32")
    above = code.op("sub", bits, _SQRT_HALF_BITS)
    exponent = code.op("ashr", above, 23)
    significand = code.op("sub", bits, code.op("shl", exponent, 23))
    f = code.op("fsub", code.bitcast(significand, "float"), 1.0)
    shift = code.select(denormal, number(bits, 23), 0)
    e = code.convert("sitofp", code.op("sub", exponent, shift), "float")
    return e, f


@shared
def log(code: Code, x: Reg) -> Reg:
    """Returns log(x) with an error of at most 1 ULP (measured: 0.79).

    A zero gives -inf, a negative x gives NaN.
    """
    e, f = _split(code, x)
    square = code.op("fmul", f, f)
    cube = code.op("fmul", square, f)
    tail = code.op("fmul", polynomial(code, f, _LOG), cube)
    tail = code.fma(e, _LN2_LOW, tail)
    tail = code.fma(square, -0.5, tail)
    value = code.fma(e, _LN2_HIGH, code.op("fadd", f, tail))
    infinite = code.compare("fcmp oeq", x, math.inf)
    value = code.select(infinite, x, value)
    zero = code.compare("fcmp oeq", x, 0.0)
    value = code.select(zero, -math.inf, value)
    # The comparison is false for NaN, so NaN gives NaN as negative numbers do.
    valid = code.compare("fcmp oge", x, 0.0)
    return code.select(valid, value, math.nan)


@shared
def log1p(code: Code, x: Reg) -> Reg:
    """Returns log(1 + x) with an error of at most 2 ULP (measured: 1.44).

    It is log(u) with u = 1 + x, minus the error from rounding u.
    """
    u = code.op("fadd", x, 1.0)
    lost = code.op("fsub", code.op("fsub", u, 1.0), x)
    corrected = code.op("fsub", log(code, u), code.op("fdiv", lost, u))
    infinite = code.compare("fcmp oeq", x, math.inf)
    value = code.select(infinite, x, corrected)
    end = code.compare("fcmp oeq", x, -1.0)
    value = code.select(end, -math.inf, value)
    zero = code.compare("fcmp oeq", x, 0.0)
    return code.select(zero, x, value)
