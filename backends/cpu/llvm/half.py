"""Conversions between the bits of f16 and f32, on CPUs with and without instructions for them."""

from tcc.backends.cpu.llvm.text import Code, Reg

_INFINITY = 0x7C00
_REBIAS = 112  # the bias of f32's exponent minus that of f16's


def half_value(code: Code, bits: Reg) -> Reg:
    """Returns, as f32, the f16 that has these bits."""
    if code.module.profile.converts_half:
        return code.convert("fpext", code.bitcast(bits, "half"), "float")
    code_bits = code.convert("zext", bits, "i32")
    size = code.op("and", code_bits, 0x7FFF)
    shifted = code.op("shl", size, 13)
    # Multiplication by a power of two is exact and makes denormals normal.
    value = code.bitcast(shifted, "float")
    scaled = code.op("fmul", value, 2.0**_REBIAS)
    finite = code.bitcast(scaled, "i32")
    special = code.op("or", shifted, 0x7F800000)
    is_special = code.compare("icmp uge", size, _INFINITY)
    sign = code.op("shl", code.op("and", code_bits, 0x8000), 16)
    result = code.op("or", code.select(is_special, special, finite), sign)
    return code.bitcast(result, "float")


def half_bits(code: Code, value: Reg) -> Reg:
    """Returns the bits of the f16 nearest to an f32; ties go to even."""
    if code.module.profile.converts_half:
        return code.bitcast(code.convert("fptrunc", value, "half"), "i16")
    bits = code.bitcast(value, "i32")
    size = code.op("and", bits, 0x7FFFFFFF)
    odd = code.op("and", code.op("lshr", size, 13), 1)
    up = code.op("add", code.op("add", size, 0xFFF), odd)
    rebiased = code.op("sub", up, _REBIAS << 23)
    normal = code.op("lshr", rebiased, 13)
    # Around 0.5, neighbouring f32 differ by f16's smallest denormal. So the addition rounds to a
    # multiple of it, as f16 denormals need.
    sum_ = code.op("fadd", code.bitcast(size, "float"), 0.5)
    small = code.op("sub", code.bitcast(sum_, "i32"), 0x3F000000)
    is_small = code.compare("icmp ult", size, (_REBIAS + 1) << 23)
    finite = code.select(is_small, small, normal)
    too_large = code.compare("icmp uge", size, 0x477FF000)
    bounded = code.select(too_large, _INFINITY, finite)
    nan = code.compare("icmp ugt", size, 0x7F800000)
    result = code.select(nan, 0x7E00, bounded)
    sign = code.op("and", code.op("lshr", bits, 16), 0x8000)
    return code.convert("trunc", code.op("or", result, sign), "i16")
