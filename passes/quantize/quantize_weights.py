"""Stores weights in fewer bits: as rounded floats, or as small integers with a scale for each
group.

    w f32[768, 3072]   ->   levels i8[768, 3072], scales bf16[24, 3072]     w[k, j] ~ levels * scale

Groups run along one axis.  Two four-bit levels share a byte, the earlier level in the low half.
Scales are rounded before the levels are computed, so that their rounding adds no error of its own.
"""

import numpy as np
from tcc.ir.graph import carrier
from tcc.ir.op import Array
from tcc.ir.types import BF16, DTYPES, F16, DType
from tcc.ops.shapes import replaced
from tcc.options import WEIGHTS

# The numbers of elements that may share a scale, best first; a length that none divides is one
# group.
_GROUPS = (32, 16)


def group_size(length: int) -> int:
    """Returns the number of neighbours along an axis of `length` that share a scale."""
    return next((g for g in _GROUPS if length % g == 0), length)


def rounded(array: Array, dtype: DType) -> Array | None:
    """Returns `array` (f32) rounded to nearest even in bf16 or f16, in the type's NumPy carrier.

    None where a finite value would become infinite.
    """
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float16) if dtype is F16 else carrier(array, dtype)
    fits = np.isfinite(narrow).all() or not np.any(np.isinf(narrow) & np.isfinite(array))
    return narrow if fits else None


def quantized(array: Array, axis: int, bits: int) -> tuple[Array, Array] | None:
    """Returns levels (i8, shape of `array`) and scales (bf16 in f32, one for each group along
    `axis`).

    A group's largest magnitude becomes the end of the levels' range: +-127, or for four bits -8,
    where the scale has the other sign.  None where a value is not finite.
    """
    if not np.isfinite(array).all():
        return None
    length = array.shape[axis]
    group = group_size(length)
    split = replaced(array.shape, axis, length // group, group)
    parts = array.reshape(split)
    low, high = parts.min(axis + 1), parts.max(axis + 1)
    if bits == 4:
        scales = np.where(high > -low, high, low) / np.float32(-8)
    else:
        scales = np.maximum(high, -low) / np.float32(127)
    scales = _away_from_zero(scales.astype(np.float32))
    divisors = np.where(scales == 0, np.float32(1), scales)
    levels = np.rint(parts / np.expand_dims(divisors, axis + 1))
    lowest, highest = (-8, 7) if bits == 4 else (-127, 127)
    return np.clip(levels, lowest, highest).astype(np.int8).reshape(array.shape), scales


def as_stored(array: Array, type: str, axis: int) -> Array:
    """Returns the value of `array` (f32) after it is stored in `type`, with groups of integers
    along `axis`; `array` itself where it cannot be stored so."""
    if type not in WEIGHTS:
        narrow = rounded(array, DTYPES[type])
        return array if narrow is None else narrow.astype(np.float32)
    axis %= array.ndim
    quantisation = quantized(array, axis, WEIGHTS[type])
    if quantisation is None:
        return array
    return quantisation[0] * quantisation[1].repeat(group_size(array.shape[axis]), axis)


def _away_from_zero(values: Array) -> Array:
    """Returns the nearest bf16 of no smaller magnitude, so that the largest weight of a group stays
    in range."""
    bits = values.view(np.uint32)
    return carrier(((bits + 0xFFFF) & 0xFFFF0000).astype(np.uint32).view(np.float32), BF16)
