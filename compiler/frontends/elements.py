"""The elements of a tensor: how many there may be, and how files store them."""

import math
from collections.abc import Sequence

import numpy as np
from tcc.ir.narrow import bf16_values, decode, packed_size, unpack
from tcc.ir.op import Array
from tcc.ir.types import BF16, BOOL, DType

# The most elements of a tensor. Larger sizes in bytes would come near the limit of 64 bits.
LARGEST_TENSOR = 1 << 38


def elements_of(shape: Sequence[int]) -> int:
    """Returns the product of the sizes that are not zero.

    NumPy limits this product, even for arrays without elements.
    """
    return math.prod(size or 1 for size in shape)


def stored_size(count: int, dtype: DType) -> int:
    """Returns the bytes that `count` elements take in a file."""
    return packed_size(count, dtype) if dtype.is_packed else count * dtype.bytes


def decoded(raw: Array, count: int, dtype: DType) -> Array:
    """Returns `count` elements, decoded from their bytes in a file.

    The result has the dtype's carrier, the NumPy type that holds its values. It is a view of `raw`
    if the carrier has the same bits.
    """
    if dtype.is_narrow:
        return decode(unpack(raw, count, dtype) if dtype.is_packed else raw, dtype)
    if dtype is BF16:
        return bf16_values(raw.view(np.uint16))
    if dtype is BOOL:
        # A view would keep bytes from 2 to 255; the cast makes True of every nonzero byte.
        return raw.astype(np.bool_)
    return raw.view(dtype.carrier)
