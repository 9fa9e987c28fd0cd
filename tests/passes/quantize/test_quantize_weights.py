"""Weights in fewer bits agree with the definitions of rounding and of grouped scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcc.ir.types import BF16, F16
from tcc.ops.algebra.levels import nibbles
from tcc.passes.layout.weights import stored_bytes
from tcc.passes.quantize.quantize_weights import group_size, quantized, rounded

Array = np.ndarray[Any, np.dtype[Any]]

FLOATS = st.integers(0, 2**32 - 1).map(lambda n: np.uint32(n).view(np.float32))


def nearest_bf16(value: np.float32) -> np.float32:
    """Returns the nearer of the two bf16 around a finite value, or the even of two equally near."""
    bits = int(value.view(np.uint32))
    below, above = (np.uint32(b << 16).view(np.float32) for b in (bits >> 16, (bits >> 16) + 1))
    # The number after the largest finite bf16 counts as the next power of two.
    far = float(above) if np.isfinite(above) else float(np.copysign(2.0**128, value))
    down, up = abs(float(value) - float(below)), abs(far - float(value))
    even = bits >> 16 & 1 == 0
    return below if down < up or (down == up and even) else above


@settings(max_examples=300, deadline=None)
@given(FLOATS)
def test_bf16_is_rounded_to_nearest_even(value: np.float32) -> None:
    array = np.array([value])
    if np.isnan(value):
        found = rounded(array, BF16)
        assert found is not None
        stored = stored_bytes(found, BF16).view(np.uint16)
        assert np.isnan((stored.astype(np.uint32) << 16).view(np.float32)).all()
        return
    want = value if np.isinf(value) else nearest_bf16(value)
    found = rounded(array, BF16)
    if np.isfinite(value) and np.isinf(want):
        assert found is None
    else:
        assert found is not None
        np.testing.assert_array_equal(found.view(np.uint32), np.array([want]).view(np.uint32))


def test_ties_go_to_even_and_nothing_finite_becomes_infinite() -> None:
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    np.testing.assert_array_equal(rounded(ties, BF16), np.float32([1, 1 + 2**-6]))
    assert rounded(np.float32([3.4e38]), BF16) is None
    assert rounded(np.float32([70000]), F16) is None
    np.testing.assert_array_equal(rounded(np.float32([np.inf, 2049]), F16), [np.inf, 2048])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("spread", [1e-30, 1.0, 1e30])
def test_levels_times_scales_are_near_the_weights(bits: int, axis: int, spread: float) -> None:
    rng = np.random.default_rng(bits + axis)
    weights = (rng.standard_normal((96, 64)) * spread).astype(np.float32)
    found = quantized(weights, axis, bits)
    assert found is not None
    levels, scales = found
    group = group_size(weights.shape[axis])
    assert group == 32
    assert scales.shape[axis] * group == weights.shape[axis]
    np.testing.assert_array_equal(rounded(scales, BF16), scales)
    steps = np.repeat(scales.astype(np.float64), group, axis)
    error = np.abs(weights - levels * steps) / np.abs(steps)
    # The bound is half a level; with four bits, the end opposite to the largest weight lacks one
    # level.
    short = (levels == 7) if bits == 4 else np.zeros_like(levels, np.bool_)
    assert error[~short].max() <= 0.5 + 1e-6
    assert error.max() <= 1.0 + 1e-6
    assert levels.min() >= (-8 if bits == 4 else -127)
    # The levels use their range; a coarser scale than needed would pass the bound.
    assert np.abs(levels).max(axis).min() >= (5 if bits == 4 else 100)


def test_zeros_and_lengths_without_groups() -> None:
    levels, scales = quantized(np.zeros((32, 2), np.float32), 0, 8) or (None, None)
    np.testing.assert_array_equal(levels, 0)
    np.testing.assert_array_equal(scales, 0)
    assert group_size(48) == 16
    assert group_size(131) == 131
    assert quantized(np.float32([[1.0, np.inf]]), 1, 8) is None


@pytest.mark.parametrize("axis", [0, 1])
def test_nibbles_hold_the_earlier_level_in_the_low_half(axis: int) -> None:
    levels = np.random.default_rng(axis).integers(-8, 8, (6, 4)).astype(np.int8)
    packed = nibbles(levels, axis).astype(np.int32)
    early, late = (packed << 28) >> 28, packed >> 4
    assert packed.shape[axis] * 2 == levels.shape[axis]
    np.testing.assert_array_equal(early, np.take(levels, range(0, levels.shape[axis], 2), axis))
    np.testing.assert_array_equal(late, np.take(levels, range(1, levels.shape[axis], 2), axis))
