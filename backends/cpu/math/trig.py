"""Sine, cosine and tangent of f32 vectors.

The argument is reduced in f64: x - n pi/2, with pi/2 in two parts. For |x| up to 1e9 the error is
below 1e-17, which is enough for any f32, however close to a multiple of pi/2. If a lane is larger,
the C library's function computes all lanes.
"""

import math

from tcc.backends.cpu.llvm.text import Code, Reg
from tcc.backends.cpu.math.code import (
    MathFunction,
    lane_by_lane,
    magnitude,
    polynomial,
    shared,
)

_LIMIT = 1e9
_HALF_PI = math.pi / 2
_HALF_PI_LOW = 6.123233995736766e-17
_SIN = (-0.16666667, 0.0083333291, -0.00019839303, 2.7180258e-06)
_COS = (0.041666646, -0.001388736, 2.4437534e-05)


def _reduced(code: Code, x: Reg) -> tuple[Reg, Reg]:
    """Returns the number of quarter turns in x, and the remaining angle in [-pi/4, pi/4]."""
    wide = code.convert("fpext", x, "double")
    turns = code.op("fmul", wide, 1 / _HALF_PI)
    n = code.intrinsic("roundeven", turns)
    r = code.fma(n, -_HALF_PI, wide)
    r = code.fma(n, -_HALF_PI_LOW, r)
    quarter = code.to_integer(n, "i32")
    return quarter, code.convert("fptrunc", r, "float")


def _sin_cos(code: Code, r: Reg) -> tuple[Reg, Reg]:
    square = code.op("fmul", r, r)
    sine = code.fma(polynomial(code, square, _SIN), code.op("fmul", square, r), r)
    fourth = code.op("fmul", square, square)
    near_one = code.fma(square, -0.5, 1.0)
    return sine, code.fma(polynomial(code, square, _COS), fourth, near_one)


def _flip(code: Code, value: Reg, quarter: Reg) -> Reg:
    """Returns `value` negated in the lanes where bit 1 of `quarter` is set."""
    sign = code.op("shl", code.op("and", quarter, 2), 30)
    bits = code.op("xor", code.bitcast(value, "i32"), sign)
    return code.bitcast(bits, "float")


def _odd(code: Code, quarter: Reg) -> Reg:
    return code.compare("icmp ne", code.op("and", quarter, 1), 0)


def _with_large(code: Code, symbol: str, x: Reg, fast: MathFunction) -> Reg:
    """Returns `fast(x)`; if any lane is too large, the C library's function computes all lanes."""
    large = code.compare("fcmp ogt", magnitude(code, x), _LIMIT)
    code.branch(code.any_lane(large), "large", "usual")
    code.place("usual")
    with code.scope():
        usual = fast(code, x)
    code.jump("both")
    code.place("large")
    with code.scope():
        exact = lane_by_lane(code, symbol, (x,))
    code.jump("both")
    code.place("both")
    return code.emit(
        x.elem, x.width, f"phi {x.type} [ {usual.text}, %usual ], [ {exact.text}, %large ]"
    )


@shared
def sin(code: Code, x: Reg) -> Reg:
    """Returns sin(x) with an error of at most 2 ULP (measured: 1.51)."""
    return _with_large(code, "sinf", x, _sin)


@shared
def cos(code: Code, x: Reg) -> Reg:
    """Returns cos(x) with an error of at most 2 ULP (measured: 1.54)."""
    return _with_large(code, "cosf", x, _cos)


@shared
def tan(code: Code, x: Reg) -> Reg:
    """Returns tan(x) with an error of at most 4 ULP (measured: 3.38)."""
    return _with_large(code, "tanf", x, _tan)


def _sin(code: Code, x: Reg) -> Reg:
    quarter, r = _reduced(code, x)
    sine, cosine = _sin_cos(code, r)
    value = _flip(code, code.select(_odd(code, quarter), cosine, sine), quarter)
    zero = code.compare("fcmp oeq", x, 0.0)
    return code.select(zero, x, value)


def _cos(code: Code, x: Reg) -> Reg:
    quarter, r = _reduced(code, x)
    sine, cosine = _sin_cos(code, r)
    next_quarter = code.op("add", quarter, 1)
    return _flip(code, code.select(_odd(code, quarter), sine, cosine), next_quarter)


def _tan(code: Code, x: Reg) -> Reg:
    quarter, r = _reduced(code, x)
    sine, cosine = _sin_cos(code, r)
    odd = _odd(code, quarter)
    minus = code.negate(cosine)
    ratio = code.op("fdiv", code.select(odd, minus, sine), code.select(odd, sine, cosine))
    zero = code.compare("fcmp oeq", x, 0.0)
    return code.select(zero, x, ratio)
