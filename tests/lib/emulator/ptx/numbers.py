"""PTX's types as NumPy's, and roundings that NumPy does not have."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# bf16 and packed pairs are their bits.
TYPES: dict[str, Any] = {
    "b8": np.uint8, "u8": np.uint8, "s8": np.int8, "b16": np.uint16, "u16": np.uint16,
    "s16": np.int16, "f16": np.float16, "bf16": np.uint16, "b32": np.uint32, "u32": np.uint32,
    "s32": np.int32, "f32": np.float32, "tf32": np.float32, "f16x2": np.uint32,
    "bf16x2": np.uint32, "b64": np.uint64, "u64": np.uint64, "s64": np.int64, "f64": np.float64,
    "e4m3x2": np.uint16, "e5m2x2": np.uint16, "pred": np.bool_,
}  # fmt: skip


def from_bf16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bf16(values: Array) -> Array:
    """To nearest, ties to even; all NaN are 0x7FFF."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + even) >> np.uint32(16)
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def to_tf32(values: Array) -> Array:
    """To nearest, ties away from zero (`cvt.rna`): ten bits behind the point."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(values), np.uint32(0x7FFFFFFF), rounded).astype(np.uint32)


def cut_tf32(bits: Array) -> Array:
    """What the matrix units read of a register: the low 13 bits are ignored."""
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def pairs(bits: Array, kind: str) -> tuple[Array, Array]:
    """The low and the high half of packed pairs, as f32."""
    low = (bits & np.uint32(0xFFFF)).astype(np.uint16)
    high = (bits >> np.uint32(16)).astype(np.uint16)
    if kind == "bf16":
        return from_bf16(low), from_bf16(high)
    return low.view(np.float16).astype(np.float32), high.view(np.float16).astype(np.float32)


def packed(low: Array, high: Array) -> Array:
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)


def halves(values: Array, kind: str) -> Array:
    """The 16 bits of each value, rounded to nearest even."""
    return to_bf16(values) if kind == "bf16" else values.astype(np.float16).view(np.uint16)


_FLOAT8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def from_float8(codes: Array, kind: str) -> Array:
    return codes.astype(np.uint8).view(_FLOAT8[kind]).astype(np.float32)


def fused(a: Array, b: Array, c: Array) -> Array:
    """a b + c, rounded once.

    For f32 and f16 the product is exact in f64, the sum is rounded to odd there (Boldo and
    Melquiond, "Emulation of FMA and correctly rounded sums", 2008) and then to the type.  For f64
    the error is below 0.51 units in the last place: the rest of the product and of the sum is
    added last.
    """
    if a.dtype == np.float64:
        return _fused_doubles(a, b, c)
    return np.asarray(fused_to_odd(a, b, c).astype(a.dtype))


def fused_to_odd(a: Array, b: Array, c: Array) -> Array:
    """a b + c of f32 or f16 in f64, rounded to odd: a second rounding makes it the nearest."""
    product = a.astype(np.float64) * b.astype(np.float64)
    total, rest = _two_sum(product, c.astype(np.float64))
    bits = np.atleast_1d(total).view(np.int64)
    inexact = (rest != 0) & np.isfinite(total) & (bits & 1 == 0)
    away = (rest > 0) == (total > 0)
    odd = np.where(inexact, bits + np.where(away, 1, -1), bits)
    return np.asarray(odd.view(np.float64))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _fused_doubles(a: Array, b: Array, c: Array) -> Array:
    product = a * b
    split = 134217729.0  # 2**27 + 1
    high_a, high_b = a * split - (a * split - a), b * split - (b * split - b)
    low_a, low_b = a - high_a, b - high_b
    rest = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    total, left = _two_sum(product, c)
    exact = total + (left + rest)
    return np.where(np.isfinite(exact), exact, product + c)


def to_integer(values: Array, dtype: Any) -> Array:
    """Of whole numbers: what does not fit becomes the nearest that does, NaN becomes 0."""
    facts = np.iinfo(dtype)
    low, high = float(facts.min), float(facts.max)
    inside = (values > low) & (values < high)
    whole = np.where(inside, values, 0).astype(dtype)
    whole = np.where(values >= high, facts.max, np.where(values <= low, facts.min, whole))
    return np.where(np.isnan(values), 0, whole).astype(dtype)
