"""Conversions between the bits of f16 and f32, on CPUs with and without instructions for them."""

from tcc.backends.cpu.llvm.values import LlvmValue

_INFINITY = 0x7C00
_REBIAS = 112  # the bias of f32's exponent minus that of f16's


def half_value(bits: LlvmValue) -> LlvmValue:
    """Returns, as f32, the f16 that has these bits."""
    if bits.profile.converts_half:
        return bits.bitcast("half").convert("fpext", "float")
    code_bits = bits.convert("zext", "i32")
    size = code_bits & 0x7FFF
    shifted = size << 13
    # Multiplication by a power of two is exact and makes denormals normal.
    scaled = shifted.bitcast("float") * 2.0**_REBIAS
    finite = scaled.bitcast("i32")
    special = shifted | 0x7F800000
    is_special = size.compare("icmp uge", _INFINITY)
    sign = (code_bits & 0x8000) << 16
    return (is_special.select(special, finite) | sign).bitcast("float")


def half_bits(value: LlvmValue) -> LlvmValue:
    """Returns the bits of the f16 nearest to an f32; ties go to even."""
    if value.profile.converts_half:
        return value.convert("fptrunc", "half").bitcast("i16")
    bits = value.bitcast("i32")
    size = bits & 0x7FFFFFFF
    odd = size.op("lshr", 13) & 1
    up = size + 0xFFF + odd
    normal = (up - (_REBIAS << 23)).op("lshr", 13)
    # Around 0.5, neighbouring f32 differ by f16's smallest denormal. So the addition rounds to a
    # multiple of it, as f16 denormals need.
    small = (size.bitcast("float") + 0.5).bitcast("i32") - 0x3F000000
    is_small = size.compare("icmp ult", (_REBIAS + 1) << 23)
    finite = is_small.select(small, normal)
    too_large = size.compare("icmp uge", 0x477FF000)
    bounded = too_large.select(_INFINITY, finite)
    nan = size.compare("icmp ugt", 0x7F800000)
    result = nan.select(0x7E00, bounded)
    sign = bits.op("lshr", 16) & 0x8000
    return (result | sign).convert("trunc", "i16")
