"""The table of the f32 functions with vector code; the C library computes all others."""

from collections.abc import Mapping
from types import MappingProxyType

from tcc.backends.cpu.math.code import MathFunction
from tcc.backends.cpu.math.erf import erf
from tcc.backends.cpu.math.exp import exp, expm1, tanh
from tcc.backends.cpu.math.hyperbolic import acosh, asinh, atanh, cosh, sinh
from tcc.backends.cpu.math.inverse import acos, asin, atan
from tcc.backends.cpu.math.log import log, log1p
from tcc.backends.cpu.math.pow import power
from tcc.backends.cpu.math.trig import cos, sin, tan

MATH: Mapping[str, MathFunction] = MappingProxyType(
    {
        f.__name__: f
        for f in (
            *(exp, expm1, tanh, log, log1p, erf, sin, cos, tan, asin, acos, atan),
            *(sinh, cosh, asinh, acosh, atanh),
        )
    }
    | {"pow": power}
)
