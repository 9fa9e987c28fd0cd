"""Seeded arrays that two machines make alike, bit by bit.  NumPy only.

They use the raw words of the Philox generator, whose stream NumPy promises to keep, and exact
arithmetic; NumPy's distributions promise neither.
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
class Draw:
    """A float32 array: `offset` plus uniform values from [-spread, spread)."""

    seed: int
    shape: tuple[int, ...]
    offset: float
    spread: float


def seed_of(text: str) -> int:
    """A seed that depends on `text` only."""
    return zlib.crc32(text.encode())


def values(draw: Draw) -> Array:
    """The array of `draw`; equal draws give equal bytes on every machine."""
    count = prod(draw.shape)
    words = np.random.Philox(key=draw.seed).random_raw((count + 1) // 2)
    halves = words.astype("<u8").view("<u4")[:count]
    unit = (halves >> np.uint32(8)).astype(np.float32)  # 24 bits, so all of this is exact
    unit *= np.float32(2.0**-23)
    unit -= np.float32(1)
    unit *= np.float32(draw.spread)
    unit += np.float32(draw.offset)
    return unit.reshape(draw.shape)


@cache
def kept(draw: Draw) -> Array:
    """`values(draw)`, made once in a process: nobody writes to it."""
    return values(draw)


def stored(array: Array, dtype: str) -> Array:
    """The bit patterns of a float32 array in `dtype` (f32, bf16, f16), rounded to nearest even."""
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
    """A tensor of a graph as `graphs.py` writes it: a draw, or its compressed bytes."""
    if "draw" in tensor:
        return kept(Draw(**{**tensor["draw"], "shape": tuple(tensor["draw"]["shape"])}))
    data = zlib.decompress(base64.b64decode(tensor["data"]))
    return np.frombuffer(data, tensor["dtype"]).reshape(tensor["shape"]).copy()
