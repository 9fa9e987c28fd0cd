"""Floats of 16, 8 and 4 bits and integers of 4 and 2: their values, codes and packed bytes.

The code of a narrow float has a sign, an exponent and a fraction: `FORMATS` has their widths and
the codes of infinity and NaN.  Rounding is to nearest, ties to the even code.  A value that is too
large becomes infinity, or NaN if the type has no infinity, or the largest value if it has neither.
f8e8m0 is a power of two without sign or fraction; values are rounded towards zero and lose their
sign, and infinities become NaN.
"""

from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.types import F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, DType

Array = np.ndarray[Any, np.dtype[Any]]

_EXPONENT = 127  # the exponent bias of f32 and of f8e8m0


@frozen
class FloatFormat:
    """A narrow float of `bits` bits, of which `fraction` bits are the fraction.

    Three fields are codes without the sign bit. `top` is the code of the largest value. `over` is
    the code that larger values round to, such as infinity. `nan` is the code of NaN. With
    `signless_nan`, NaN has one code and there is no negative zero.
    """

    bits: int
    fraction: int
    bias: int
    top: int
    over: int
    nan: int
    signless_nan: bool = False

    @property
    def sign(self) -> int:
        """The value of the sign bit in a code, such as 0x80."""
        return 1 << (self.bits - 1)

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return self.value(self.top)

    def value(self, code: int) -> float:
        """Returns the value of a code without the sign bit; the code is at most `top + 1`."""
        exponent, fraction = divmod(code, 1 << self.fraction)
        if exponent == 0:
            return fraction * 2.0 ** (1 - self.bias - self.fraction)
        return (1 + fraction / (1 << self.fraction)) * 2.0 ** (exponent - self.bias)


# f4e2m1 has no NaN: a NaN becomes the code 8, negative zero.
FORMATS = MappingProxyType(
    {
        F8E4M3FN: FloatFormat(8, 3, 7, 0x7E, 0x7F, 0x7F),
        F8E4M3FNUZ: FloatFormat(8, 3, 8, 0x7F, 0x80, 0x80, True),
        F8E5M2: FloatFormat(8, 2, 15, 0x7B, 0x7C, 0x7E),
        F8E5M2FNUZ: FloatFormat(8, 2, 16, 0x7F, 0x80, 0x80, True),
        F4E2M1: FloatFormat(4, 1, 1, 0x7, 0x7, 0x8),
    }
)


def _mask(dtype: DType) -> np.uint8:
    """Returns a byte in which the bits of the type's codes are 1."""
    return np.uint8((1 << dtype.bits) - 1)


def encode(values: Any, dtype: DType) -> Array:
    """Rounds values to a narrow type, and returns their codes (u8). Integers wrap.

    `values` have the type's carrier, which is the wider type that NumPy computes in.
    """
    data = np.asarray(values)
    if not dtype.is_float:
        return np.asarray(data.astype(np.uint8) & _mask(dtype))
    narrow = FORMATS.get(dtype)
    bits = np.ascontiguousarray(data, np.float32).reshape(data.shape).view(np.uint32)
    if narrow is None:
        return np.asarray((bits >> 23 & 0xFF).astype(np.uint8))
    with np.errstate(invalid="ignore"):  # NumPy would warn of a signalling NaN
        size = np.abs(data.astype(np.float64))
    code = np.searchsorted(_between(narrow), size, "left").astype(np.int64)
    ties = _between(narrow)[np.minimum(code, narrow.top)] == size
    code += ties & (code % 2 == 1)
    code = np.where(code > narrow.top, narrow.over, code)
    negative = bits >> 31 != 0
    if narrow.signless_nan:
        negative &= (code != 0) & (code <= narrow.top)
    code = np.where(negative, code | narrow.sign, code)
    nan = narrow.nan | np.where(negative & (narrow.nan < narrow.sign), narrow.sign, 0)
    return np.asarray(np.where(np.isnan(data), nan, code).astype(np.uint8))


@cache
def _between(narrow: FloatFormat) -> Array:
    """Returns the midpoints between neighbouring non-negative values, in ascending order.

    The last midpoint is above the largest value; values from it on are too large for the type.
    """
    values = np.array([narrow.value(code) for code in range(narrow.top + 2)])
    return np.asarray((values[1:] + values[:-1]) / 2)


def decode(codes: Array, dtype: DType) -> Array:
    """Returns the values of codes (u8) in the type's carrier; ignores bits above its width."""
    return np.asarray(_values(dtype)[codes & _mask(dtype)])


@cache
def _values(dtype: DType) -> Array:
    codes = np.arange(1 << dtype.bits)
    if not dtype.is_float:
        signed = dtype.carrier.kind == "i"
        half = 1 << (dtype.bits - 1)
        return np.asarray((codes + half) % (2 * half) - half if signed else codes).astype(
            dtype.carrier
        )
    narrow = FORMATS.get(dtype)
    if narrow is None:
        powers = np.ldexp(np.float64(1), codes - _EXPONENT)
        return np.append(powers[:-1], np.nan).astype(np.float32)
    return np.array([_value(narrow, int(code)) for code in codes], np.float32)


def _value(narrow: FloatFormat, code: int) -> float:
    size = code & (narrow.sign - 1)
    sign = -1.0 if code & narrow.sign else 1.0
    if narrow.signless_nan:
        return float("nan") if code == narrow.nan else sign * narrow.value(size)
    if size <= narrow.top:
        return sign * narrow.value(size)
    infinite = narrow.over != narrow.nan and size == narrow.over
    return float(np.copysign(np.inf if infinite else np.nan, sign))


def rounded(values: Any, dtype: DType) -> Array:
    """Returns values rounded to a narrow type, in the type's carrier.

    The carrier is the wider type that NumPy computes in. Integers wrap.
    """
    return decode(encode(values, dtype), dtype)


def bf16_values(bits: Array) -> Array:
    """Returns the values of bf16 bits (u16), in f32."""
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


def bf16_bits(values: Array) -> Array:
    """Returns the bits (u16) of bf16 values that an f32 array holds."""
    out = np.empty(values.shape, np.uint16)
    return np.right_shift(values.view(np.uint32), 16, out=out, casting="unsafe")


def packed_size(count: int, dtype: DType) -> int:
    """Returns the bytes of `count` packed elements."""
    return -(-count * dtype.bits // 8)


def pack(codes: Array, dtype: DType) -> Array:
    """Packs codes in row-major order into bytes, the first element in the lowest bits."""
    share = 8 // dtype.bits
    flat = np.zeros(packed_size(codes.size, dtype) * share, np.uint8)
    flat[: codes.size] = codes.reshape(-1) & _mask(dtype)
    shifts = np.arange(share, dtype=np.uint8) * np.uint8(dtype.bits)
    return np.asarray(np.bitwise_or.reduce(flat.reshape(-1, share) << shifts, axis=1))


def unpack(data: Array, count: int, dtype: DType) -> Array:
    """Returns the codes of `count` packed elements; `data` has their `packed_size` bytes."""
    shifts = np.arange(8 // dtype.bits, dtype=np.uint8) * np.uint8(dtype.bits)
    return np.asarray((data.reshape(-1, 1) >> shifts & _mask(dtype)).reshape(-1)[:count])
