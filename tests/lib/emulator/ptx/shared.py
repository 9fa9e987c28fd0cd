"""Shared memory of some blocks: its bytes, which of them are initialised, and their history."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.lib.emulator.faults import Fault
from tests.lib.emulator.memory import UNSIGNED

from .order import History, Order

Array = np.ndarray[Any, np.dtype[Any]]
BASE = 1024  # Dynamic shared memory begins here, because the driver reserves the bytes below.


class Shared:
    """Shared memory; `grain` is the size in bytes of the words of its history."""

    def __init__(self, size: int, blocks: int, order: Order, grain: int) -> None:
        self.size, self.grain = size, grain
        self.stride = -(-size // 128) * 128 + 128
        self.bytes = np.full(self.stride * blocks, 0xA5, np.uint8)
        self.known = np.zeros(self.stride * blocks, np.bool_)
        self.history = History(self.stride * blocks // grain, order)

    def places(self, blocks: Array, addresses: Array, width: int, aligned: int) -> Array:
        """Returns positions in `bytes`; raises Fault for an address outside of the block's
        memory."""
        if (addresses % aligned).any():
            wrong = int(addresses[addresses % aligned != 0][0])
            raise Fault(f"shared address {wrong} is not a multiple of {aligned}")
        at = addresses - BASE
        outside = (at < 0) | (at + width > self.size)
        if outside.any():
            raise Fault(f"{width} bytes at shared address {int(at[outside][0])} of {self.size}")
        return np.asarray(blocks * self.stride + at)

    def words(self, places: Array, width: int) -> Array:
        """Returns the words of `width` bytes at each place."""
        spread = np.arange(0, max(width, self.grain), self.grain)
        return (places[:, None] + spread) // self.grain

    def words_of(self, places: Array) -> Array:
        """Returns the words that contain the places, unique and in ascending order."""
        words = places.ravel() // self.grain
        first = int(words.min())
        there = np.zeros(int(words.max()) - first + 1, np.bool_)
        there[words - first] = True
        return np.flatnonzero(there) + first

    def get(self, places: Array, width: int) -> Array:
        if not self.known[places[..., None] + np.arange(width)].all():
            raise Fault("shared memory is read that nobody has written")
        return np.asarray(self.bytes.view(UNSIGNED[width])[places // width])

    def put(self, places: Array, values: Array) -> None:
        width = values.dtype.itemsize
        self.bytes.view(UNSIGNED[width])[places // width] = values
        self.known[places[..., None] + np.arange(width)] = True
