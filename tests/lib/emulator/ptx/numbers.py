"""PTX's types as NumPy's, and roundings that NumPy lacks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# Values of bf16 and of packed pairs are raw bits.
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
    """Rounds to nearest, ties to even; every NaN becomes 0x7FFF."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + even) >> np.uint32(16)
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def to_tf32(values: Array) -> Array:
    """Rounds to a 10-bit mantissa, ties away from zero (`cvt.rna`)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(values), np.uint32(0x7FFFFFFF), rounded).astype(np.uint32)


def cut_tf32(bits: Array) -> Array:
    """Returns the value that matrix units read from a register: they ignore the low 13 bits."""
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def pairs(bits: Array, kind: str) -> tuple[Array, Array]:
    """Returns the low and the high half of packed pairs as f32."""
    low = (bits & np.uint32(0xFFFF)).astype(np.uint16)
    high = (bits >> np.uint32(16)).astype(np.uint16)
    if kind == "bf16":
        return from_bf16(low), from_bf16(high)
    return low.view(np.float16).astype(np.float32), high.view(np.float16).astype(np.float32)


def packed(low: Array, high: Array) -> Array:
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)


def halves(values: Array, kind: str) -> Array:
    """Rounds each value to nearest even and returns its 16 bits."""
    return to_bf16(values) if kind == "bf16" else values.astype(np.float16).view(np.uint16)


_FLOAT8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def from_float8(codes: Array, kind: str) -> Array:
    return codes.astype(np.uint8).view(_FLOAT8[kind]).astype(np.float32)


def fused(a: Array, b: Array, c: Array) -> Array:
    """Returns a b + c, rounded once.

    For f32 and f16 the product is exact in f64. The sum is rounded to odd in f64 (Boldo and
    Melquiond, "Emulation of FMA and correctly rounded sums", 2008) and then to the type. For f64
    the error is below 0.51 units in the last place, because the remainders of the product and of
    the sum are added last.
    """
    if a.dtype == np.float64:
        return _fused_doubles(a, b, c)
    return np.asarray(fused_to_odd(a, b, c).astype(a.dtype))


def fused_to_odd(a: Array, b: Array, c: Array) -> Array:
    """Returns a b + c of f32 or f16, rounded to odd in f64, so that a second rounding is
    correct."""
    product = a.astype(np.float64) * b.astype(np.float64)
    total, error = _two_sum(product, c.astype(np.float64))
    bits = np.atleast_1d(total).view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
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
    products = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    total, error = _two_sum(product, c)
    exact = total + (error + products)
    return np.where(np.isfinite(exact), exact, product + c)


def to_integer(values: Array, dtype: Any) -> Array:
    """Converts whole numbers to integers that saturate; NaN becomes 0."""
    facts = np.iinfo(dtype)
    low, high = float(facts.min), float(facts.max)
    inside = (values > low) & (values < high)
    integers = np.where(inside, values, 0).astype(dtype)
    integers = np.where(values >= high, facts.max, np.where(values <= low, facts.min, integers))
    return np.where(np.isnan(values), 0, integers).astype(dtype)
