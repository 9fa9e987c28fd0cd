"""Draws seeded arrays that are equal bit for bit on two machines; needs only NumPy.

The arrays use the raw words of the Philox generator, whose stream NumPy promises to keep, and exact
arithmetic. NumPy promises neither for its distributions.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ArrayDraw:
    """A float32 array to draw: elements are `offset` plus a uniform value in [-spread, spread)."""

    seed: int
    shape: tuple[int, ...]
    offset: float
    spread: float


def seed_of(text: str) -> int:
    """Returns a seed that depends on `text` only."""
    return zlib.crc32(text.encode())


def values(draw: ArrayDraw) -> Array:
    """Returns the array of `draw`; equal draws give equal bytes on every machine."""
    count = prod(draw.shape)
    words = np.random.Philox(key=draw.seed).random_raw((count + 1) // 2)
    halves = words.astype("<u8").view("<u4")[:count]
    array = (halves >> np.uint32(8)).astype(np.float32)  # 24 bits, which float32 holds exactly
    array *= np.float32(2.0**-23)
    array -= np.float32(1)
    array *= np.float32(draw.spread)
    array += np.float32(draw.offset)
    return array.reshape(draw.shape)


@cache
def cached_values(draw: ArrayDraw) -> Array:
    """Returns `values(draw)` from a cache of the process; callers must not write to it."""
    return values(draw)


def bits_of(array: Array, dtype: str) -> Array:
    """Returns the bits of a float32 array rounded to `dtype` (f32, bf16, f16), ties to even."""
    if dtype == "f32":
        return array.view(np.uint32)
    if dtype == "f16":
        return array.astype(np.float16).view(np.uint16)
    if dtype != "bf16":
        raise ValueError(f"{dtype!r} is none of f32, bf16, f16")
    bits = array.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def array_of(tensor: Mapping[str, Any]) -> Array:
    """Returns the array of a tensor in the JSON that `graphs.graph_json` writes.

    The tensor has either the fields of an `ArrayDraw` or compressed bytes.
    """
    if "draw" in tensor:
        return cached_values(
            ArrayDraw(**{**tensor["draw"], "shape": tuple(tensor["draw"]["shape"])})
        )
    data = zlib.decompress(base64.b64decode(tensor["data"]))
    return np.frombuffer(data, tensor["dtype"]).reshape(tensor["shape"]).copy()
