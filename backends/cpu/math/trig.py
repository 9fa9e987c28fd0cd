"""Sine, cosine and tangent of f32 vectors.

The argument is reduced in f64: x - n pi/2, with pi/2 in two parts. For |x| up to 1e9 the error is
below 1e-17, which is enough for any f32, however close to a multiple of pi/2. If a lane is larger,
the C library's function computes all lanes.
"""

import math

from tcc.backends.cpu.llvm.values import LlvmValue
from tcc.backends.cpu.math.code import MathFunction, lane_by_lane, polynomial, shared

_LIMIT = 1e9
_HALF_PI = math.pi / 2
_HALF_PI_LOW = 6.123233995736766e-17
_SIN = (-0.16666667, 0.0083333291, -0.00019839303, 2.7180258e-06)
_COS = (0.041666646, -0.001388736, 2.4437534e-05)


def _reduced(x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Returns the number of quarter turns in x, and the remaining angle in [-pi/4, pi/4]."""
    wide = x.convert("fpext", "double")
    n = (wide * (1 / _HALF_PI)).intrinsic("roundeven")
    r = n.fma(-_HALF_PI_LOW, n.fma(-_HALF_PI, wide))
    return n.to_integer("i32"), r.convert("fptrunc", "float")


def _sin_cos(r: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    square = r * r
    sine = polynomial(square, _SIN).fma(square * r, r)
    fourth = square * square
    near_one = square.fma(-0.5, 1.0)
    return sine, polynomial(square, _COS).fma(fourth, near_one)


def _flip(value: LlvmValue, quarter: LlvmValue) -> LlvmValue:
    """Returns `value` negated in the lanes where bit 1 of `quarter` is set."""
    sign = (quarter & 2) << 30
    return (value.bitcast("i32") ^ sign).bitcast("float")


def _odd(quarter: LlvmValue) -> LlvmValue:
    return (quarter & 1).ne(0)


def _with_large(symbol: str, x: LlvmValue, fast: MathFunction) -> LlvmValue:
    """Returns `fast(x)`; if any lane is too large, the C library's function computes all lanes."""
    code, reg = x.code, x.reg
    large = abs(x) > _LIMIT
    code.branch(code.any_lane(large.reg), "large", "usual")
    code.place("usual")
    with code.scope():
        usual = fast(x).reg.text
    code.jump("both")
    code.place("large")
    with code.scope():
        exact = lane_by_lane(symbol, (x,)).reg.text
    code.jump("both")
    code.place("both")
    text = f"phi {reg.type} [ {usual}, %usual ], [ {exact}, %large ]"
    return LlvmValue(code, code.emit(reg.elem, reg.width, text))


@shared
def sin(x: LlvmValue) -> LlvmValue:
    """Returns sin(x) with an error of at most 2 ULP (measured: 1.51)."""
    return _with_large("sinf", x, _sin)


@shared
def cos(x: LlvmValue) -> LlvmValue:
    """Returns cos(x) with an error of at most 2 ULP (measured: 1.54)."""
    return _with_large("cosf", x, _cos)


@shared
def tan(x: LlvmValue) -> LlvmValue:
    """Returns tan(x) with an error of at most 4 ULP (measured: 3.38)."""
    return _with_large("tanf", x, _tan)


def _sin(x: LlvmValue) -> LlvmValue:
    quarter, r = _reduced(x)
    sine, cosine = _sin_cos(r)
    value = _flip(_odd(quarter).select(cosine, sine), quarter)
    return x.eq(0.0).select(x, value)


def _cos(x: LlvmValue) -> LlvmValue:
    quarter, r = _reduced(x)
    sine, cosine = _sin_cos(r)
    next_quarter = quarter + 1
    return _flip(_odd(quarter).select(sine, cosine), next_quarter)


def _tan(x: LlvmValue) -> LlvmValue:
    quarter, r = _reduced(x)
    sine, cosine = _sin_cos(r)
    odd = _odd(quarter)
    minus = -cosine
    ratio = odd.select(minus, sine) / odd.select(sine, cosine)
    return x.eq(0.0).select(x, ratio)
