"""Memory of results, used again once nobody holds the array that lay in it.

The system takes large blocks back when they are freed and clears new ones page by page, at the
first touch: for a result that is written once, this costs more than writing it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from tcc.runtime.arrays import Array, address_of

# Bytes from which a block is kept, and where it begins: as whole cache lines and vectors do.
_LEAST = 1 << 16
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class _Block:
    """Memory as `size` bytes from `address`."""

    memory: Array
    size: int
    address: int
    interface: dict[str, Any]


class ResultPool:
    """The blocks of one module's results; at most `most` of them lie free.  Thread-safe."""

    def __init__(self, most: int) -> None:
        # Arrays may die in any thread and at any step, in this class's own too: a deque needs no
        # lock.
        self._free: deque[_Block] = deque(maxlen=most)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, int]:
        """A new row-major array of any contents, and its address.

        The memory comes back when the array and all its views are gone.  Raises MemoryError and
        ValueError as NumPy does.
        """
        size = dtype.itemsize
        for n in shape:
            size *= n
        if size < _LEAST:
            small: Array = np.empty(shape, dtype)
            return small, address_of(small) or int(small.ctypes.data)
        block = self._take(_rounded(size))
        lent = np.asarray(_Lease(block, self._free))
        return np.ndarray(shape, dtype, lent), block.address

    def _take(self, size: int) -> _Block:
        """The block of `size` that came back last, which the caches may hold, or a new one."""
        for _ in range(len(self._free)):
            try:
                block = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if block.size == size:
                return block
            self._free.appendleft(block)
        return _make(size)


class _Lease:
    """What an array in a block has as its base: gives the block back when it dies."""

    __slots__ = ("__array_interface__", "_block", "_free")

    def __init__(self, block: _Block, free: deque[_Block]) -> None:
        self._block, self._free = block, free
        self.__array_interface__ = block.interface

    def __del__(self) -> None:
        self._free.append(self._block)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("the memory of a result has one owner; copy the array")


def _make(size: int) -> _Block:
    memory: Array = np.empty(size + _ALIGNMENT, np.uint8)
    start = -int(memory.ctypes.data) % _ALIGNMENT
    part = memory[start : start + size]
    return _Block(part, size, int(part.ctypes.data), part.__array_interface__)


def _rounded(size: int) -> int:
    """Sizes in steps of an eighth, so that results that grow from run to run find blocks too."""
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step
