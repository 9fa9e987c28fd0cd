"""The f32 functions that have vector code of their own; others come from the C library."""

from __future__ import annotations

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
        "exp": exp,
        "expm1": expm1,
        "tanh": tanh,
        "log": log,
        "log1p": log1p,
        "erf": erf,
        "sin": sin,
        "cos": cos,
        "tan": tan,
        "asin": asin,
        "acos": acos,
        "atan": atan,
        "sinh": sinh,
        "cosh": cosh,
        "asinh": asinh,
        "acosh": acosh,
        "atanh": atanh,
        "pow": power,
    }
)
