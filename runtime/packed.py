"""Arrays whose elements have less than a byte.

In NumPy an element takes a byte; in the C interface elements are packed. The first element lies in
the lowest bits of the first byte. Unused bits of the last byte are zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tcc.runtime import abi

Array = np.ndarray[Any, Any]

LIMITS = {"i2": (-2, 1), "i4": (-8, 7), "u2": (0, 3), "u4": (0, 15), "f4e2m1": (0, 15)}


def is_packed(dtype: str) -> bool:
    """True if elements of type `dtype` share bytes in the C interface."""
    return dtype in LIMITS


def pack(array: Array, dtype: str) -> Array:
    """Returns the packed bytes of an array.

    The array has the type `abi.numpy_dtype(dtype)`, or `abi.plain_dtype(dtype)` with a byte for
    each value. Raises TypeError for another element type, and ValueError for values out of range.
    """
    if array.dtype != abi.numpy_dtype(dtype):
        if array.dtype != abi.plain_dtype(dtype):
            raise TypeError(f"expected element type {dtype}, got {array.dtype}")
        low, high = LIMITS[dtype]
        if array.size and not low <= int(array.min()) <= int(array.max()) <= high:
            raise ValueError(f"the values do not fit in {dtype}")
    bits = abi.DTYPE_CODES[dtype][1]
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    share = 8 // bits
    flat = np.zeros(-(-codes.size // share) * share, np.uint8)
    flat[: codes.size] = codes
    return np.asarray(np.bitwise_or.reduce(flat.reshape(-1, share) << _shifts(bits), axis=1))


def unpack(data: Array, shape: tuple[int, ...], dtype: str) -> Array:
    """Returns the array, of type `abi.numpy_dtype(dtype)`, that is packed in `data`."""
    code, bits = abi.DTYPE_CODES[dtype]
    codes = (data.reshape(-1, 1) >> _shifts(bits)).reshape(-1)[
        : int(np.prod(shape, dtype=np.int64))
    ]
    codes = codes & np.uint8((1 << bits) - 1)
    if code == 0:
        half = 1 << (bits - 1)
        codes = ((codes.astype(np.int8) + np.int8(half)) & np.int8(2 * half - 1)) - np.int8(half)
        return codes.reshape(shape).astype(abi.numpy_dtype(dtype))
    return codes.reshape(shape).view(abi.numpy_dtype(dtype))


def packed_size(shape: tuple[int, ...], dtype: str) -> int:
    """Returns how many bytes a packed array of `shape` has."""
    return -(-int(np.prod(shape, dtype=np.int64)) * abi.DTYPE_CODES[dtype][1] // 8)


def _shifts(bits: int) -> Array:
    return np.arange(0, 8, bits, dtype=np.uint8)
