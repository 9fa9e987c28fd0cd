"""f16 as bits against f32 values, on processors with and without instructions for it."""

from __future__ import annotations

from tcc.backends.cpu.llvm.text import Code, Reg, float_const, int_const

_INFINITY = 0x7C00
_REBIAS = 112  # what the exponents' biases differ by


def half_value(code: Code, bits: Reg) -> Reg:
    """The f32 that the f16 with these bits is."""
    if code.module.profile.converts_half:
        return code.convert("fpext", code.convert("bitcast", bits, "half"), "float")
    wide = code.convert("zext", bits, "i32")
    size = code.op("and", wide, _number(0x7FFF, wide))
    moved = code.op("shl", size, _number(13, wide))
    # A product with a power of two is exact and makes denormals normal.
    value = code.convert("bitcast", moved, "float")
    scaled = code.op("fmul", value, float_const(2.0**_REBIAS, "float", bits.width))
    finite = code.convert("bitcast", scaled, "i32")
    special = code.op("or", moved, _number(0x7F800000, wide))
    is_special = code.compare("icmp uge", size, _number(_INFINITY, wide))
    sign = code.op("shl", code.op("and", wide, _number(0x8000, wide)), _number(16, wide))
    result = code.op("or", code.select(is_special, special, finite), sign)
    return code.convert("bitcast", result, "float")


def half_bits(code: Code, value: Reg) -> Reg:
    """The bits of the f16 nearest to an f32, ties to even."""
    if code.module.profile.converts_half:
        return code.convert("bitcast", code.convert("fptrunc", value, "half"), "i16")
    bits = code.convert("bitcast", value, "i32")
    size = code.op("and", bits, _number(0x7FFFFFFF, bits))
    odd = code.op("and", code.op("lshr", size, _number(13, bits)), _number(1, bits))
    up = code.op("add", code.op("add", size, _number(0xFFF, bits)), odd)
    rebiased = code.op("sub", up, _number(_REBIAS << 23, bits))
    normal = code.op("lshr", rebiased, _number(13, bits))
    # The unit of a float near one half is f16's smallest denormal: the addition rounds to it.
    half = float_const(0.5, "float", value.width)
    added = code.op("fadd", code.convert("bitcast", size, "float"), half)
    small = code.op("sub", code.convert("bitcast", added, "i32"), _number(0x3F000000, bits))
    is_small = code.compare("icmp ult", size, _number((_REBIAS + 1) << 23, bits))
    finite = code.select(is_small, small, normal)
    too_large = code.compare("icmp uge", size, _number(0x477FF000, bits))
    bounded = code.select(too_large, _number(_INFINITY, bits), finite)
    nan = code.compare("icmp ugt", size, _number(0x7F800000, bits))
    result = code.select(nan, _number(0x7E00, bits), bounded)
    sign = code.op("and", code.op("lshr", bits, _number(16, bits)), _number(0x8000, bits))
    return code.convert("trunc", code.op("or", result, sign), "i16")


def _number(value: int, like: Reg) -> Reg:
    return int_const(value, like.elem, like.width)
