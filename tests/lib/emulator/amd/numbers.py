"""Functions on numbers that NumPy lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.lib.emulator.ptx.numbers import fused, fused_to_odd, to_integer

from .waves import Array

__all__ = ["fused"]
_LEAST = 2.0**-126  # The least normal number of f32.


def flushing(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Returns a transcendental instruction of f32: it rounds once and flushes denormals to zero.

    AMD's manuals say that "denormals are flushed", for arguments and for results.
    """

    def flushed(x: Array) -> Array:
        wide = function(_zeroed(x.astype(np.float64)))
        return _zeroed(wide).astype(np.float32)

    return flushed


def _zeroed(x: Array) -> Array:
    return np.where(np.abs(x) < _LEAST, np.copysign(0.0, x), x)


def greatest(a: Array, b: Array) -> Array:
    """Returns the larger number; a number wins over NaN, and +0 over -0."""
    return _ordered(a, b, a > b, np.signbit(b))


def least(a: Array, b: Array) -> Array:
    return _ordered(a, b, a < b, np.signbit(a))


def _ordered(a: Array, b: Array, first: Array, of_zeros: Array) -> Array:
    first = np.where(a == b, of_zeros, first)
    return np.where(np.isnan(b) | first & ~np.isnan(a), a, b)


def to_whole(dtype: Any) -> Callable[[Array], Array]:
    """Returns a conversion that truncates towards zero, saturates, and maps NaN to 0."""
    return lambda a: to_integer(np.trunc(a.astype(np.float64)), dtype)


def classes(bits: Array, wanted: Array, width: int) -> Array:
    """Returns true for each number whose class is in the bit mask `wanted`.

    The bits stand for signalling NaN, quiet NaN, -inf, -normal, -denormal, -0, +0, +denormal,
    +normal and +inf, from bit 0 on.
    """
    mantissa_bits = {4: 23, 8: 52}[width]
    kind = bits.dtype.type
    mantissa = bits & kind((1 << mantissa_bits) - 1)
    sign = (bits >> kind(8 * width - 1)).astype(np.bool_)
    exponent = bits << kind(1) >> kind(mantissa_bits + 1)
    top = exponent == (1 << 8 * width - 1 - mantissa_bits) - 1
    size = np.where(top, 3, np.where(exponent != 0, 2, np.where(mantissa != 0, 1, 0)))
    number = np.where(sign, 5 - size, 6 + size)
    quiet = (mantissa >> kind(mantissa_bits - 1)).astype(np.bool_)
    number = np.where(top & (mantissa != 0), quiet, number)
    return (wanted.astype(np.int64) >> number & 1).astype(np.bool_)


def leading(bits: Array) -> Array:
    """Returns the number of equal bits at the top, or -1 if all are equal (`v_cls_i32`)."""
    signed = bits.view(np.int32).astype(np.int64)
    size = np.where(signed < 0, ~signed, signed)
    exponent = np.frexp(size.astype(np.float64))[1]
    return np.where(size == 0, -1, 32 - exponent).astype(np.int32)


def reversed_bits(bits: Array) -> Array:
    octets = np.ascontiguousarray(bits, np.uint32).view(np.uint8).reshape(*np.shape(bits), 4)
    reversed_octets = np.packbits(np.unpackbits(octets, axis=-1), axis=-1, bitorder="little")
    return np.ascontiguousarray(reversed_octets[..., ::-1]).view(np.uint32)[..., 0]


def permuted_bytes(a: Array, b: Array, chosen: Array) -> Array:
    """Picks bytes as `v_perm_b32` does.

    `b` is the lower half of the pair; selector 12 gives 0, a larger selector 255.
    """
    pair = a.astype(np.uint64) << np.uint64(32) | b.astype(np.uint64)
    result = np.zeros((), np.uint32)
    for n in range(0, 32, 8):
        which = chosen >> np.uint32(n) & np.uint32(255)
        if ((which >= 8) & (which < 12)).any():
            raise NotImplementedError("signs of v_perm_b32")
        byte = pair >> (np.minimum(which, 7).astype(np.uint64) * np.uint64(8)) & np.uint64(255)
        byte = np.where(which == 12, 0, np.where(which > 12, 255, byte)).astype(np.uint32)
        result = result | byte << np.uint32(n)
    return result


# ---- division -----------------------------------------------------------------------------------


def division_scale(scaled: Array, below: Array, above: Array) -> tuple[Array, Array]:
    """Returns `v_div_scale_f32`: a scaled number, and the flag to scale the quotient back.

    `scaled` is the numerator or the denominator. The factor is 2**64 or 2**-64 where the quotient
    or its steps would leave the normal numbers.

    Where the inverse and the quotient are too small, the denominator shrinks. The manual's text
    enlarges it, which leaves the normal numbers.
    """
    s, d, n = (x.astype(np.float64) for x in np.broadcast_arrays(scaled, below, above))
    exponents = [np.frexp(np.abs(x))[1] for x in (n, d)]
    quotient, inverse = np.abs(n / d), np.abs(1 / d)
    is_below, is_above = s == d, s == n
    underflows = exponents[0] - exponents[1] >= 96
    denormal = (np.abs(d) < _LEAST) & (d != 0)
    large = inverse < _LEAST
    small = quotient < _LEAST
    tiny = exponents[0] <= 24 - 127
    conditions = [underflows, denormal, large & small, large, small, tiny]
    up, down = 2.0**64, 2.0**-64
    factors = [np.where(is_below, up, 1), up, np.where(is_below, down, 1), down,
               np.where(is_above, up, 1), up]  # fmt: skip
    back = np.select(conditions, [True, False, True, False, True, False], default=False)
    factor = np.select(conditions, factors, default=1.0)
    bad = (n == 0) | (d == 0)
    return np.where(bad, np.nan, s * factor).astype(np.float32), back & ~bad


def division_end(a: Array, b: Array, c: Array, back: Array) -> Array:
    """Returns `v_div_fmas_f32`: a b + c, rounded once, scaled back where `v_div_scale_f32` said so.

    The manual's factor of 2**32 cannot undo 2**64; the direction follows from the quotient's size.
    """
    exact = fused_to_odd(a, b, c)
    large = np.abs(c.astype(np.float64)) >= 2.0
    factor = np.where(back, np.where(large, 2.0**64, 2.0**-64), 1.0)
    return np.asarray((exact * factor).astype(np.float32))


def division_fixup(quotient: Array, below: Array, above: Array) -> Array:
    """Returns `v_div_fixup_f32`: the special quotients, and the sign.

    The manual does not mention a NaN quotient of two numbers, which results from an overflow.
    Infinity makes OpenCL's division conform, which uses these instructions.
    """
    q, d, n = np.broadcast_arrays(quotient, below, above)
    plain = np.isfinite(n) & np.isfinite(d) & (n != 0) & (d != 0)
    size = np.where(np.isnan(q), np.float32(np.inf), np.abs(q))
    signed = np.copysign(size, np.copysign(1, n) * np.copysign(1, d)).astype(np.float32)
    return np.where(plain, signed, (n / d).astype(np.float32))
