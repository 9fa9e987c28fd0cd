"""Floats of 8 and 4 bits and integers of 4 and 2, as codes in memory and as values in registers.

Floats are converted by moving their fields to those of f32, in integers: no denormal f32 comes up,
which processors are slow with.  The formats are those of `tcc.ir.narrow`.
"""

import math

from tcc.backends.cpu.llvm.text import Code, Reg
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
        return code.op("and", value, (1 << dtype.bits) - 1)
    bits = code.bitcast(value, "i32")
    narrow = FORMATS.get(dtype)
    if narrow is None:
        exponent = code.op("lshr", bits, _FRACTION)
        return code.convert("trunc", exponent, "i8")
    return code.convert("trunc", _float_code(code, bits, narrow), "i8")


def wrapped(code: Code, value: Reg, dtype: DType) -> Reg:
    """An integer's lowest bits, as many as the type has, as its value."""
    spare = 8 - dtype.bits
    back = "ashr" if dtype.kind is DTypeKind.INT else "lshr"
    return code.op(back, code.op("shl", value, spare), spare)


def _power(code: Code, wide: Reg) -> Reg:
    """2 to the power of a code less f32's bias; the last code is NaN, the first a denormal."""
    power = code.op("shl", wide, _FRACTION)
    lowest = code.compare("icmp eq", wide, 0)
    power = code.select(lowest, 1 << (_FRACTION - 1), power)
    last = code.compare("icmp eq", wide, 0xFF)
    return code.bitcast(code.select(last, _QUIET, power), "float")


def _half_value(code: Code, bits: Reg, dtype: DType) -> Reg:
    """By way of f16, which an instruction widens: f8e5m2 is its upper half, and f8e4m3fn has its
    exponent less a bias, which a product makes up for."""
    if dtype is F8E5M2:
        moved = code.convert("zext", bits, "i16")
        half = code.op("shl", moved, 8)
        return code.convert("fpext", code.bitcast(half, "half"), "float")
    moved = code.convert("sext", bits, "i16")
    moved = code.op("shl", moved, 10 - FORMATS[dtype].fraction)
    half = code.op("and", moved, ~0x4000)  # of the two signs the first
    value = code.convert("fpext", code.bitcast(half, "half"), "float")
    scale = 2.0 ** (15 - FORMATS[dtype].bias)
    value = code.op("fmul", value, scale)
    # What the code of NaN would be worth, were it a number.
    size = code.intrinsic("fabs", value)
    last = FORMATS[dtype].value(FORMATS[dtype].nan)
    nan = code.compare("fcmp oeq", size, last)
    return code.select(nan, math.nan, value)


def _float_value(code: Code, wide: Reg, narrow: FloatFormat) -> Reg:
    size = code.op("and", wide, narrow.sign - 1)
    shift = _FRACTION - narrow.fraction
    moved = code.op("shl", size, shift)
    normal = code.op("add", moved, (_BIAS - narrow.bias) << _FRACTION)
    # A denormal's fraction behind a leading one, less that one.
    least = 2.0 ** (1 - narrow.bias)
    above = code.op("add", moved, (_BIAS - narrow.bias + 1) << _FRACTION)
    above = code.bitcast(above, "float")
    small = code.op("fsub", above, least)
    is_small = code.compare("icmp ult", size, 1 << narrow.fraction)
    value = code.select(is_small, code.bitcast(small, "i32"), normal)
    if narrow.top < narrow.over < narrow.nan:
        infinite = code.compare("icmp eq", size, narrow.over)
        value = code.select(infinite, _INFINITY, value)
    if not narrow.signless_nan and narrow.nan < narrow.sign:
        first = narrow.over + (narrow.over < narrow.nan)
        nan = code.compare("icmp uge", size, first)
        value = code.select(nan, _QUIET, value)
    signed = code.op("and", wide, narrow.sign)
    sign = code.op("shl", signed, 32 - narrow.bits)
    value = code.op("or", value, sign)
    if narrow.signless_nan:
        coded = code.op("and", wide, 2 * narrow.sign - 1)
        nan = code.compare("icmp eq", coded, narrow.nan)
        value = code.select(nan, _QUIET, value)
    return code.bitcast(value, "float")


def _float_code(code: Code, bits: Reg, narrow: FloatFormat) -> Reg:
    size = code.op("and", bits, 0x7FFFFFFF)
    shift = _FRACTION - narrow.fraction
    odd = code.op("and", code.op("lshr", size, shift), 1)
    up = code.op("add", code.op("add", size, (1 << (shift - 1)) - 1), odd)
    rebiased = code.op("sub", up, (_BIAS - narrow.bias) << _FRACTION)
    normal = code.op("lshr", rebiased, shift)
    # The unit of a float near this one is the smallest denormal: the addition rounds to it.
    unit = 2.0 ** (1 - narrow.bias - narrow.fraction + _FRACTION)
    unit_bits = (1 - narrow.bias - narrow.fraction + _FRACTION + _BIAS) << _FRACTION
    value = code.bitcast(size, "float")
    added = code.op("fadd", value, unit)
    small = code.op("sub", code.bitcast(added, "i32"), unit_bits)
    first = (_BIAS - narrow.bias + 1) << _FRACTION
    is_small = code.compare("icmp ult", size, first)
    finite = code.select(is_small, small, normal)
    beyond = code.compare("icmp ugt", finite, narrow.top)
    result = code.select(beyond, narrow.over, finite)
    nan = code.compare("icmp ugt", size, _INFINITY)
    sign = code.op("lshr", bits, 32 - narrow.bits)
    sign = code.op("and", sign, narrow.sign)
    if narrow.nan < narrow.sign:
        return code.op("or", code.select(nan, narrow.nan, result), sign)
    if narrow.signless_nan:
        zero = code.compare("icmp eq", result, 0)
        sign = code.select(zero, 0, sign)
    return code.select(nan, narrow.nan, code.op("or", result, sign))
