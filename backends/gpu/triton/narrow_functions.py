"""Conversions between narrow floats and f32 for devices, in Triton.

`library.py` reads this file as text, like functions.py. The parameters are the fields of
`tcc.ir.narrow.FloatFormat`. A code is the bit pattern of a narrow float, in a byte. Integer
operations move the fields of numbers, in the same way on all devices. `FLOAT8` is the kind of 8-bit
floats that the matrix units multiply: "ocp", "fnuz", or "" for none.
"""

import triton
import triton.language as tl
from tcc.backends.gpu.triton.functions import bits_of, float_of

FLOAT8 = tl.constexpr("")


@triton.jit
def narrow_value(
    code,
    bits: tl.constexpr,
    fraction: tl.constexpr,
    bias: tl.constexpr,
    top: tl.constexpr,
    over: tl.constexpr,
    nan: tl.constexpr,
    signless_nan: tl.constexpr,
):
    """The f32 that a code stands for."""
    wide = code.to(tl.uint32) & ((1 << bits) - 1)
    size = wide & ((1 << (bits - 1)) - 1)
    moved = size << (23 - fraction)
    # A denormal's fraction behind a leading one, less that one.
    leading = float_of(moved + ((128 - bias) << 23))
    least = float_of(moved * 0 + ((128 - bias) << 23))
    small = bits_of(leading - least)
    value = tl.where(size < (1 << fraction), small, moved + ((127 - bias) << 23))
    if top < over and over < nan:
        value = tl.where(size == over, 0x7F800000, value)
        value = tl.where(size > over, 0x7FC00000, value)
    elif top < over and not signless_nan:
        value = tl.where(size >= over, 0x7FC00000, value)
    value = value | ((wide >> (bits - 1)) << 31)
    if signless_nan:
        value = tl.where(wide == nan, 0x7FC00000, value)
    return float_of(value.to(tl.uint32))


@triton.jit
def narrow_code(
    x,
    bits: tl.constexpr,
    fraction: tl.constexpr,
    bias: tl.constexpr,
    top: tl.constexpr,
    over: tl.constexpr,
    nan: tl.constexpr,
    signless_nan: tl.constexpr,
):
    """The code of the value nearest to an f32, of the even one of two."""
    word = bits_of(x)
    size = word & 0x7FFFFFFF
    odd = (size >> (23 - fraction)) & 1
    up = size + ((1 << (22 - fraction)) - 1) + odd
    normal = (up - ((127 - bias) << 23)) >> (23 - fraction)
    # The unit of a float near this one is the smallest denormal: the addition rounds to it.
    one = ((151 - bias - fraction) << 23) + size * 0
    added = float_of(size) + float_of(one.to(tl.uint32))
    small = bits_of(added) - ((151 - bias - fraction) << 23)
    code = tl.where(size < ((128 - bias) << 23), small, normal)
    code = tl.where(code > top, over, code)
    negative = (word >> 31) << (bits - 1)
    if signless_nan:
        negative = tl.where(code == 0, 0, negative)
    if nan < (1 << (bits - 1)):
        code = tl.where(size > 0x7F800000, nan, code) | negative
    else:
        code = tl.where(size > 0x7F800000, nan, code | negative)
    return code.to(tl.uint8)


@triton.jit
def float8_dot(
    a,
    b,
    acc,
    native: tl.constexpr,
    kind: tl.constexpr,
    bits: tl.constexpr,
    fraction: tl.constexpr,
    bias: tl.constexpr,
    top: tl.constexpr,
    over: tl.constexpr,
    nan: tl.constexpr,
    signless_nan: tl.constexpr,
):
    """Products of codes, summed in f32; as f16, which holds all values, without units for them.

    Hopper's units keep fewer bits of their sums than f32: they are added up after each step.
    """
    if kind == FLOAT8:
        left, right = a.to(native, bitcast=True), b.to(native, bitcast=True)
        found = tl.dot(left, right, acc, max_num_imprecise_acc=32, out_dtype=tl.float32)
    else:
        left = narrow_value(a, bits, fraction, bias, top, over, nan, signless_nan)
        right = narrow_value(b, bits, fraction, bias, top, over, nan, signless_nan)
        found = tl.dot(left.to(tl.float16), right.to(tl.float16), acc, out_dtype=tl.float32)
    return found


@triton.jit
def power_value(code):
    """2 to the power of a code less 127; the last code is NaN."""
    wide = code.to(tl.uint32)
    word = tl.where(wide == 0, 0x400000, wide << 23)
    return float_of(tl.where(wide == 255, 0x7FC00000, word).to(tl.uint32))


@triton.jit
def power_code(x):
    """The exponent of an f32, which is NaN's where there is none."""
    return ((bits_of(x) >> 23) & 255).to(tl.uint8)


@triton.jit
def lowest_bits(x, dtype: tl.constexpr, bits: tl.constexpr):
    """The lowest bits of an integer, as a number of a type of a byte, with its sign."""
    byte = x.to(dtype)
    return ((byte << (8 - bits)).to(dtype) >> (8 - bits)).to(dtype)
