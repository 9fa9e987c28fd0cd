"""Floats of 8 and 4 bits and integers of 4 and 2, as codes in memory and as values in registers.

Floats are converted by moving their fields to those of f32, in integers: no denormal f32 comes up,
which processors are slow with.  The formats are those of `tcc.ir.narrow`.
"""

from __future__ import annotations

import math

from tcc.backends.cpu.llvm.text import Code, Reg, float_const, int_const
from tcc.ir.narrow import FORMATS, FloatFormat
from tcc.ir.types import F8E4M3FN, F8E5M2, DType, DTypeKind

_BIAS, _FRACTION = 127, 23  # of f32
_INFINITY, _QUIET = 0x7F800000, 0x7FC00000


def narrow_value(code: Code, bits: Reg, dtype: DType) -> Reg:
    """The register value of a code, which lies in a byte; bits above the type's do not count."""
    if not dtype.is_float:
        return wrapped(code, bits, dtype)
    if dtype in (F8E4M3FN, F8E5M2) and code.module.profile.converts_half:
        return _half_value(code, bits, dtype)
    wide = code.convert("zext", bits, "i32")
    narrow = FORMATS.get(dtype)
    return _power(code, wide) if narrow is None else _float_value(code, wide, narrow)


def narrow_bits(code: Code, value: Reg, dtype: DType) -> Reg:
    """The code, in a byte, of a register value: an f32 is rounded, an integer cut off."""
    if not dtype.is_float:
        return code.op("and", value, int_const((1 << dtype.bits) - 1, value.elem, value.width))
    bits = code.convert("bitcast", value, "i32")
    narrow = FORMATS.get(dtype)
    if narrow is None:
        exponent = code.op("lshr", bits, _number(_FRACTION, bits))
        return code.convert("trunc", exponent, "i8")
    return code.convert("trunc", _float_code(code, bits, narrow), "i8")


def wrapped(code: Code, value: Reg, dtype: DType) -> Reg:
    """An integer's lowest bits, as many as the type has, as its value."""
    spare = int_const(8 - dtype.bits, value.elem, value.width)
    back = "ashr" if dtype.kind is DTypeKind.INT else "lshr"
    return code.op(back, code.op("shl", value, spare), spare)


def _power(code: Code, wide: Reg) -> Reg:
    """2 to the power of a code less f32's bias; the last code is NaN, the first a denormal."""
    power = code.op("shl", wide, _number(_FRACTION, wide))
    lowest = code.compare("icmp eq", wide, _number(0, wide))
    power = code.select(lowest, _number(1 << (_FRACTION - 1), wide), power)
    last = code.compare("icmp eq", wide, _number(0xFF, wide))
    return code.convert("bitcast", code.select(last, _number(_QUIET, wide), power), "float")


def _half_value(code: Code, bits: Reg, dtype: DType) -> Reg:
    """By way of f16, which an instruction widens: f8e5m2 is its upper half, and f8e4m3fn has its
    exponent less a bias, which a product makes up for."""
    if dtype is F8E5M2:
        moved = code.convert("zext", bits, "i16")
        half = code.op("shl", moved, _number(8, moved))
        return code.convert("fpext", code.convert("bitcast", half, "half"), "float")
    moved = code.convert("sext", bits, "i16")
    moved = code.op("shl", moved, _number(10 - FORMATS[dtype].fraction, moved))
    half = code.op("and", moved, _number(~0x4000, moved))  # of the two signs the first
    value = code.convert("fpext", code.convert("bitcast", half, "half"), "float")
    scale = 2.0 ** (15 - FORMATS[dtype].bias)
    value = code.op("fmul", value, float_const(scale, "float", value.width))
    # What the code of NaN would be worth, were it a number.
    size = code.intrinsic("fabs", "float", value)
    last = FORMATS[dtype].value(FORMATS[dtype].nan)
    nan = code.compare("fcmp oeq", size, float_const(last, "float", value.width))
    return code.select(nan, float_const(math.nan, "float", value.width), value)


def _float_value(code: Code, wide: Reg, narrow: FloatFormat) -> Reg:
    size = code.op("and", wide, _number(narrow.sign - 1, wide))
    shift = _FRACTION - narrow.fraction
    moved = code.op("shl", size, _number(shift, wide))
    normal = code.op("add", moved, _number((_BIAS - narrow.bias) << _FRACTION, wide))
    # A denormal's fraction behind a leading one, less that one.
    least = 2.0 ** (1 - narrow.bias)
    above = code.op("add", moved, _number((_BIAS - narrow.bias + 1) << _FRACTION, wide))
    above = code.convert("bitcast", above, "float")
    small = code.op("fsub", above, float_const(least, "float", wide.width))
    is_small = code.compare("icmp ult", size, _number(1 << narrow.fraction, wide))
    value = code.select(is_small, code.convert("bitcast", small, "i32"), normal)
    if narrow.top < narrow.over < narrow.nan:
        infinite = code.compare("icmp eq", size, _number(narrow.over, wide))
        value = code.select(infinite, _number(_INFINITY, wide), value)
    if not narrow.signless_nan and narrow.nan < narrow.sign:
        first = narrow.over + (narrow.over < narrow.nan)
        nan = code.compare("icmp uge", size, _number(first, wide))
        value = code.select(nan, _number(_QUIET, wide), value)
    signed = code.op("and", wide, _number(narrow.sign, wide))
    sign = code.op("shl", signed, _number(32 - narrow.bits, wide))
    value = code.op("or", value, sign)
    if narrow.signless_nan:
        coded = code.op("and", wide, _number(2 * narrow.sign - 1, wide))
        nan = code.compare("icmp eq", coded, _number(narrow.nan, wide))
        value = code.select(nan, _number(_QUIET, wide), value)
    return code.convert("bitcast", value, "float")


def _float_code(code: Code, bits: Reg, narrow: FloatFormat) -> Reg:
    size = code.op("and", bits, _number(0x7FFFFFFF, bits))
    shift = _FRACTION - narrow.fraction
    odd = code.op("and", code.op("lshr", size, _number(shift, bits)), _number(1, bits))
    up = code.op("add", code.op("add", size, _number((1 << (shift - 1)) - 1, bits)), odd)
    rebiased = code.op("sub", up, _number((_BIAS - narrow.bias) << _FRACTION, bits))
    normal = code.op("lshr", rebiased, _number(shift, bits))
    # The unit of a float near this one is the smallest denormal: the addition rounds to it.
    unit = 2.0 ** (1 - narrow.bias - narrow.fraction + _FRACTION)
    unit_bits = (1 - narrow.bias - narrow.fraction + _FRACTION + _BIAS) << _FRACTION
    value = code.convert("bitcast", size, "float")
    added = code.op("fadd", value, float_const(unit, "float", bits.width))
    small = code.op("sub", code.convert("bitcast", added, "i32"), _number(unit_bits, bits))
    first = (_BIAS - narrow.bias + 1) << _FRACTION
    is_small = code.compare("icmp ult", size, _number(first, bits))
    finite = code.select(is_small, small, normal)
    beyond = code.compare("icmp ugt", finite, _number(narrow.top, bits))
    result = code.select(beyond, _number(narrow.over, bits), finite)
    nan = code.compare("icmp ugt", size, _number(_INFINITY, bits))
    sign = code.op("lshr", bits, _number(32 - narrow.bits, bits))
    sign = code.op("and", sign, _number(narrow.sign, bits))
    if narrow.nan < narrow.sign:
        return code.op("or", code.select(nan, _number(narrow.nan, bits), result), sign)
    if narrow.signless_nan:
        zero = code.compare("icmp eq", result, _number(0, bits))
        sign = code.select(zero, _number(0, bits), sign)
    return code.select(nan, _number(narrow.nan, bits), code.op("or", result, sign))


def _number(value: int, like: Reg) -> Reg:
    return int_const(value, like.elem, like.width)
