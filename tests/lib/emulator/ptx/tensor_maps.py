"""Tensor maps in the fake driver's encoding: the arguments of `cuTensorMapEncodeTiled`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tests.lib.emulator.faults import Fault, Unknown
from tests.lib.emulator.memory import UNSIGNED, GlobalMemory

Array = np.ndarray[Any, np.dtype[Any]]
# Bytes of an element by CU_TENSOR_MAP_DATA_TYPE_: UINT8, FLOAT16, FLOAT32, BFLOAT16.
_SIZES = {0: 1, 6: 2, 7: 4, 9: 2}


def swizzled(addresses: Array, mode: int) -> Array:
    """Returns the swizzled addresses of a box's bytes.

    Modes 1 to 3 are swizzles of 32, 64 and 128 bytes. They mix the number of the 128-byte line into
    the number of the 16 bytes within it.
    """
    mask = (0, 1, 3, 7)[mode] << 4
    return np.asarray(addresses ^ (addresses >> 3 & mask))


@dataclass(frozen=True)
class Box:
    """A box of a tensor; sizes, strides in bytes and extents list the axes, innermost first.

    An element has `size` bytes.
    """

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    extents: tuple[int, ...]
    swizzle: int
    size: int

    @property
    def bytes(self) -> int:
        return self.size * prod(self.extents)

    def _addresses(self, corner: Sequence[int]) -> tuple[Array, Array]:
        """Returns the addresses of the box's elements, innermost axis fastest, and a mask of the
        tensor."""
        if len(corner) != len(self.sizes):
            raise Fault(f"{len(corner)} coordinates for a map of {len(self.sizes)} axes")
        address, inside = np.int64(self.address), np.True_
        for axis, begin in enumerate(corner):
            shape = [1] * len(corner)
            shape[-1 - axis] = -1
            line = (begin + np.arange(self.extents[axis], dtype=np.int64)).reshape(shape)
            address = address + line * self.strides[axis]
            inside = inside & (line >= 0) & (line < self.sizes[axis])
        return np.ravel(address), np.broadcast_to(inside, np.shape(address)).ravel()

    def load(self, memory: GlobalMemory, corner: Sequence[int]) -> Array:
        """Returns the bits of the elements; elements outside of the tensor are zero."""
        address, inside = self._addresses(corner)
        elements = np.zeros(len(address), UNSIGNED[self.size])
        elements[inside] = memory.load(address[inside], self.size)
        return elements

    def store(self, memory: GlobalMemory, corner: Sequence[int], values: Array) -> None:
        address, inside = self._addresses(corner)
        memory.store(address[inside], values[inside])


def decode(words: bytes) -> Box:
    """Decodes a map that `tests/lib/fake_gpu/fake_maps.h` wrote."""
    address, rank, kinds, *fields = struct.unpack("<16Q", words)
    rank &= 0xFF
    dtype, swizzle, interleave, outside = struct.unpack("<4H", struct.pack("<Q", kinds))
    if dtype not in _SIZES or interleave or outside:
        raise Unknown(f"a tensor map of type {dtype}, interleave {interleave}, fill {outside}")
    extents = struct.unpack("<6I", struct.pack("<3Q", *fields[9:12]))
    size = _SIZES[dtype]
    row = size * extents[0]
    if swizzle and row > 16 << swizzle:
        raise Fault(f"a box with rows of {row} bytes in a swizzle of {16 << swizzle}")
    if any(not 1 <= extent <= 256 for extent in extents[:rank]) or row % 16:
        raise Fault(f"a box of {extents[:rank]} elements")
    address &= (1 << 56) - 1
    strides = (size, *fields[5 : 4 + rank])
    return Box(address, tuple(fields[:rank]), strides, extents[:rank], swizzle, size)
