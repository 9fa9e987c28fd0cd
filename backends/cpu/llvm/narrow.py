"""Conversions of narrow types: 8- and 4-bit floats, 4- and 2-bit integers.

They convert between the bit patterns in memory (codes) and the values in registers. Integer
operations move the fields of a float (sign, exponent, fraction) to the fields of an f32. The code
creates no f32 denormals, because CPUs are slow with them. `tcc.ir.narrow` defines the formats.
"""

import math

from tcc.backends.cpu.llvm.text import Code, Reg
from tcc.ir.narrow import FORMATS, FloatFormat
from tcc.ir.types import F8E4M3FN, F8E5M2, DType, DTypeKind

_BIAS, _FRACTION = 127, 23  # f32's exponent bias, and the bits of its fraction
_INFINITY, _QUIET = 0x7F800000, 0x7FC00000


def narrow_value(code: Code, bits: Reg, dtype: DType) -> Reg:
    """Returns the value that a code of type `dtype` stands for.

    `bits` is a byte with the code in its lowest bits; its other bits are ignored.
    """
    if not dtype.is_float:
        return wrapped(code, bits, dtype)
    if dtype in (F8E4M3FN, F8E5M2) and code.module.profile.converts_half:
        return _half_value(code, bits, dtype)
    wide = code.convert("zext", bits, "i32")
    narrow = FORMATS.get(dtype)
    return _power(code, wide) if narrow is None else _float_value(code, wide, narrow)


def narrow_bits(code: Code, value: Reg, dtype: DType) -> Reg:
    """Returns a byte with the code of `value` in type `dtype`.

    An f32 is rounded to the type. An integer loses its upper bits.
    """
    if not dtype.is_float:
        return code.op("and", value, (1 << dtype.bits) - 1)
    bits = code.bitcast(value, "i32")
    narrow = FORMATS.get(dtype)
    if narrow is None:
        exponent = code.op("lshr", bits, _FRACTION)
        return code.convert("trunc", exponent, "i8")
    return code.convert("trunc", _float_code(code, bits, narrow), "i8")


def wrapped(code: Code, value: Reg, dtype: DType) -> Reg:
    """Returns the lowest `dtype.bits` bits of an integer as a value of `dtype`."""
    spare = 8 - dtype.bits
    right_shift = "ashr" if dtype.kind is DTypeKind.INT else "lshr"
    return code.op(right_shift, code.op("shl", value, spare), spare)


def _power(code: Code, wide: Reg) -> Reg:
    """Returns 2**(code - bias), with the bias of f32.

    The largest code stands for NaN; the result of code 0 is a denormal f32.
    """
    power = code.op("shl", wide, _FRACTION)
    lowest = code.compare("icmp eq", wide, 0)
    power = code.select(lowest, 1 << (_FRACTION - 1), power)
    last = code.compare("icmp eq", wide, 0xFF)
    return code.bitcast(code.select(last, _QUIET, power), "float")


def _half_value(code: Code, bits: Reg, dtype: DType) -> Reg:
    """Returns the f32 value of an 8-bit float with the bit pattern `bits`.

    The bits are moved to the fields of an f16, which one instruction widens to f32. f8e5m2 is the
    upper byte of an f16. The exponent of f8e4m3fn has another bias than that of f16, so the f32 is
    multiplied by a power of two.
    """
    if dtype is F8E5M2:
        raised = code.convert("zext", bits, "i16")
        half = code.op("shl", raised, 8)
        return code.convert("fpext", code.bitcast(half, "half"), "float")
    raised = code.convert("sext", bits, "i16")
    raised = code.op("shl", raised, 10 - FORMATS[dtype].fraction)
    half = code.op("and", raised, ~0x4000)  # clears the second copy of the sign bit
    value = code.convert("fpext", code.bitcast(half, "half"), "float")
    scale = 2.0 ** (15 - FORMATS[dtype].bias)
    value = code.op("fmul", value, scale)
    # The code of NaN has become a finite number, which no other code gives.
    size = code.intrinsic("fabs", value)
    last = FORMATS[dtype].value(FORMATS[dtype].nan)
    nan = code.compare("fcmp oeq", size, last)
    return code.select(nan, math.nan, value)


def _float_value(code: Code, wide: Reg, narrow: FloatFormat) -> Reg:
    size = code.op("and", wide, narrow.sign - 1)
    shift = _FRACTION - narrow.fraction
    raised = code.op("shl", size, shift)
    normal = code.op("add", raised, (_BIAS - narrow.bias) << _FRACTION)
    # A leading one is put before the fraction of a denormal and then subtracted as a float.
    least_normal = 2.0 ** (1 - narrow.bias)
    with_one = code.op("add", raised, (_BIAS - narrow.bias + 1) << _FRACTION)
    with_one = code.bitcast(with_one, "float")
    denormal = code.op("fsub", with_one, least_normal)
    is_small = code.compare("icmp ult", size, 1 << narrow.fraction)
    value = code.select(is_small, code.bitcast(denormal, "i32"), normal)
    if narrow.top < narrow.over < narrow.nan:
        infinite = code.compare("icmp eq", size, narrow.over)
        value = code.select(infinite, _INFINITY, value)
    if not narrow.signless_nan and narrow.nan < narrow.sign:
        least_nan = narrow.over + (narrow.over < narrow.nan)
        nan = code.compare("icmp uge", size, least_nan)
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
    rounded = code.op("add", code.op("add", size, (1 << (shift - 1)) - 1), odd)
    rebiased = code.op("sub", rounded, (_BIAS - narrow.bias) << _FRACTION)
    normal = code.op("lshr", rebiased, shift)
    # Around `spacing`, neighbouring floats differ by the smallest denormal, so the addition rounds
    # to denormals.
    spacing = 2.0 ** (1 - narrow.bias - narrow.fraction + _FRACTION)
    spacing_bits = (1 - narrow.bias - narrow.fraction + _FRACTION + _BIAS) << _FRACTION
    value = code.bitcast(size, "float")
    sum_ = code.op("fadd", value, spacing)
    small = code.op("sub", code.bitcast(sum_, "i32"), spacing_bits)
    first = (_BIAS - narrow.bias + 1) << _FRACTION
    is_small = code.compare("icmp ult", size, first)
    finite = code.select(is_small, small, normal)
    overflows = code.compare("icmp ugt", finite, narrow.top)
    result = code.select(overflows, narrow.over, finite)
    nan = code.compare("icmp ugt", size, _INFINITY)
    sign = code.op("lshr", bits, 32 - narrow.bits)
    sign = code.op("and", sign, narrow.sign)
    if narrow.nan < narrow.sign:
        return code.op("or", code.select(nan, narrow.nan, result), sign)
    if narrow.signless_nan:
        zero = code.compare("icmp eq", result, 0)
        sign = code.select(zero, 0, sign)
    return code.select(nan, narrow.nan, code.op("or", result, sign))
