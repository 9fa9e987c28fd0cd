"""Conversions of narrow types: 8- and 4-bit floats, 4- and 2-bit integers.

They convert between the bit patterns in memory (codes) and the values in registers. Integer
operations move the fields of a float (sign, exponent, fraction) to the fields of an f32. The code
creates no f32 denormals, because CPUs are slow with them. `tcc.ir.narrow` defines the formats.
"""

import math

from tcc.backends.cpu.llvm.values import LlvmValue
from tcc.ir.narrow import FORMATS, FloatFormat
from tcc.ir.types import F8E4M3FN, F8E5M2, DType, DTypeKind

_BIAS, _FRACTION = 127, 23  # f32's exponent bias, and the bits of its fraction
_INFINITY, _QUIET = 0x7F800000, 0x7FC00000


def narrow_value(bits: LlvmValue, dtype: DType) -> LlvmValue:
    """Returns the value that a code of type `dtype` stands for.

    `bits` is a byte with the code in its lowest bits; its other bits are ignored.
    """
    if not dtype.is_float:
        return wrapped(bits, dtype)
    if dtype in (F8E4M3FN, F8E5M2) and bits.profile.converts_half:
        return _half_value(bits, dtype)
    wide = bits.convert("zext", "i32")
    narrow = FORMATS.get(dtype)
    return _power(wide) if narrow is None else _float_value(wide, narrow)


def narrow_bits(value: LlvmValue, dtype: DType) -> LlvmValue:
    """Returns a byte with the code of `value` in type `dtype`.

    An f32 is rounded to the type. An integer loses its upper bits.
    """
    if not dtype.is_float:
        return value & ((1 << dtype.bits) - 1)
    bits = value.bitcast("i32")
    narrow = FORMATS.get(dtype)
    code = bits.op("lshr", _FRACTION) if narrow is None else _float_code(bits, narrow)
    return code.convert("trunc", "i8")


def wrapped(value: LlvmValue, dtype: DType) -> LlvmValue:
    """Returns the lowest `dtype.bits` bits of an integer as a value of `dtype`."""
    spare = 8 - dtype.bits
    return (value << spare).op("ashr" if dtype.kind is DTypeKind.INT else "lshr", spare)


def _power(wide: LlvmValue) -> LlvmValue:
    """Returns 2**(code - bias), with the bias of f32.

    The largest code stands for NaN; the result of code 0 is a denormal f32.
    """
    power = wide << _FRACTION
    power = wide.eq(0).select(1 << (_FRACTION - 1), power)
    return wide.eq(0xFF).select(_QUIET, power).bitcast("float")


def _half_value(bits: LlvmValue, dtype: DType) -> LlvmValue:
    """Returns the f32 value of an 8-bit float with the bit pattern `bits`.

    The bits are moved to the fields of an f16, which one instruction widens to f32. f8e5m2 is the
    upper byte of an f16. The exponent of f8e4m3fn has another bias than that of f16, so the f32 is
    multiplied by a power of two.
    """
    if dtype is F8E5M2:
        half = bits.convert("zext", "i16") << 8
        return half.bitcast("half").convert("fpext", "float")
    narrow = FORMATS[dtype]
    raised = bits.convert("sext", "i16") << (10 - narrow.fraction)
    half = raised & ~0x4000  # clears the second copy of the sign bit
    value = half.bitcast("half").convert("fpext", "float") * 2.0 ** (15 - narrow.bias)
    # The code of NaN has become a finite number, which no other code gives.
    return abs(value).eq(narrow.value(narrow.nan)).select(math.nan, value)


def _float_value(wide: LlvmValue, narrow: FloatFormat) -> LlvmValue:
    size = wide & (narrow.sign - 1)
    raised = size << (_FRACTION - narrow.fraction)
    normal = raised + ((_BIAS - narrow.bias) << _FRACTION)
    # A leading one is put before the fraction of a denormal and then subtracted as a float.
    least_normal = 2.0 ** (1 - narrow.bias)
    with_one = raised + ((_BIAS - narrow.bias + 1) << _FRACTION)
    denormal = with_one.bitcast("float") - least_normal
    is_small = size.compare("icmp ult", 1 << narrow.fraction)
    value = is_small.select(denormal.bitcast("i32"), normal)
    if narrow.top < narrow.over < narrow.nan:
        value = size.eq(narrow.over).select(_INFINITY, value)
    if not narrow.signless_nan and narrow.nan < narrow.sign:
        least_nan = narrow.over + (narrow.over < narrow.nan)
        value = size.compare("icmp uge", least_nan).select(_QUIET, value)
    value = value | ((wide & narrow.sign) << (32 - narrow.bits))
    if narrow.signless_nan:
        coded = wide & (2 * narrow.sign - 1)
        value = coded.eq(narrow.nan).select(_QUIET, value)
    return value.bitcast("float")


def _float_code(bits: LlvmValue, narrow: FloatFormat) -> LlvmValue:
    size = bits & 0x7FFFFFFF
    shift = _FRACTION - narrow.fraction
    odd = size.op("lshr", shift) & 1
    rounded = size + ((1 << (shift - 1)) - 1) + odd
    normal = (rounded - ((_BIAS - narrow.bias) << _FRACTION)).op("lshr", shift)
    # Around `spacing`, neighbouring floats differ by the smallest denormal, so the addition rounds
    # to denormals.
    exponent = 1 - narrow.bias - narrow.fraction + _FRACTION
    spacing, spacing_bits = 2.0**exponent, (exponent + _BIAS) << _FRACTION
    small = (size.bitcast("float") + spacing).bitcast("i32") - spacing_bits
    is_small = size.compare("icmp ult", (_BIAS - narrow.bias + 1) << _FRACTION)
    finite = is_small.select(small, normal)
    result = finite.compare("icmp ugt", narrow.top).select(narrow.over, finite)
    nan = size.compare("icmp ugt", _INFINITY)
    sign = bits.op("lshr", 32 - narrow.bits) & narrow.sign
    if narrow.nan < narrow.sign:
        return nan.select(narrow.nan, result) | sign
    if narrow.signless_nan:
        sign = result.eq(0).select(0, sign)
    return nan.select(narrow.nan, result | sign)
