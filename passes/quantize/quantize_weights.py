"""Stores weights in fewer bits: as rounded floats, or as integer levels with scales.

    w f32[768, 3072]   ->   levels i8[768, 3072], scales bf16[24, 3072]     w[k, j] ~ levels * scale

Consecutive elements along an axis form groups; a group shares a scale.  Two four-bit levels share a
byte, with the earlier level in the low half.  Scales are rounded to bf16 before levels are
computed: level = round(w / rounded scale).  So the rounding of scales adds no error.
"""

import numpy as np
from tcc.ir.graph import carrier
from tcc.ir.op import Array
from tcc.ir.types import BF16, DTYPES, F16, DType
from tcc.ops.algebra.levels import nibbles
from tcc.ops.shapes import replaced
from tcc.options import WEIGHTS

# The numbers of elements that may share a scale, best first. If none divides an axis, the whole
# axis is one group.
_GROUPS = (32, 16)


def group_size(length: int) -> int:
    """Returns the number of neighbours that share a scale, along an axis of length `length`."""
    return next((g for g in _GROUPS if length % g == 0), length)


def rounded(array: Array, dtype: DType) -> Array | None:
    """Returns `array` (f32) rounded to bf16 or f16, ties to even, in the type's NumPy carrier.

    Returns None if a finite value would become infinite.
    """
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float16) if dtype is F16 else carrier(array, dtype)
    fits = np.isfinite(narrow).all() or not np.any(np.isinf(narrow) & np.isfinite(array))
    return narrow if fits else None


def quantized(array: Array, axis: int, bits: int) -> tuple[Array, Array] | None:
    """Returns the levels and the scales of an f32 array; None if a value is not finite."""
    if not np.isfinite(array).all():
        return None
    scales = scales_of(array, axis, bits)
    return levels_of(array, scales, axis, bits), scales


def scales_of(array: Array, axis: int, bits: int) -> Array:
    """Returns the scales of a finite f32 array: bf16 values stored as f32, one for each group along
    `axis`.

    The element of largest magnitude in a group gets a level at the end of the levels' range, up to
    the rounding of the scale.  The end is 127 or -127 for eight bits.  For four bits it is always
    -8: the scale is negative if the element is positive.
    """
    parts = _groups(array, axis)
    low, high = parts.min(axis + 1), parts.max(axis + 1)
    if bits == 4:
        scales = np.where(high > -low, high, low) / np.float32(-8)
    else:
        scales = np.maximum(high, -low) / np.float32(127)
    return _away_from_zero(scales.astype(np.float32))


def levels_of(array: Array, scales: Array, axis: int, bits: int) -> Array:
    """Returns the levels (i8) of an array with its scales, in the shape of the array."""
    divisors = np.where(scales == 0, np.float32(1), scales)
    levels: Array = np.rint(_groups(array, axis) / np.expand_dims(divisors, axis + 1))
    lowest, highest = (-8, 7) if bits == 4 else (-127, 127)
    return np.clip(levels, lowest, highest).astype(np.int8).reshape(array.shape)


def stored_levels(array: Array, scales: Array, axis: int, bits: int) -> Array:
    """Returns the levels of an array with its scales as they are stored: four bits in pairs."""
    levels = levels_of(array, scales, axis, bits)
    return nibbles(levels, axis) if bits == 4 else levels


def _groups(array: Array, axis: int) -> Array:
    """Returns an array with an axis of groups, and one of their elements, in place of `axis`."""
    length = array.shape[axis]
    group = group_size(length)
    groups: Array = array.reshape(replaced(array.shape, axis, length // group, group))
    return groups


def as_stored(array: Array, type: str, axis: int) -> Array:
    """Returns the f32 values that `array` (f32) has after it is stored in `type` and read again.

    If `type` is an integer type, groups of neighbours along `axis` share a scale.  Returns `array`
    itself if it cannot be stored in `type`.
    """
    if type not in WEIGHTS:
        narrow = rounded(array, DTYPES[type])
        return array if narrow is None else narrow.astype(np.float32)
    axis %= array.ndim
    quantisation = quantized(array, axis, WEIGHTS[type])
    if quantisation is None:
        return array
    return quantisation[0] * quantisation[1].repeat(group_size(array.shape[axis]), axis)


def _away_from_zero(values: Array) -> Array:
    """Returns the f32 values rounded away from zero to values that bf16 has, as f32.

    Rounding a scale towards zero would take the largest weight of its group out of range.
    """
    bits = values.view(np.uint32)
    return carrier(((bits + 0xFFFF) & 0xFFFF0000).astype(np.uint32).view(np.float32), BF16)
