"""Memory of results, used again once nobody holds the array that lay in it.

The system takes large blocks back when they are freed and clears new ones page by page, at the
first touch: for a result that is written once, this costs more than writing it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tcc.runtime.arrays import Array

# Bytes from which a block is kept, and where it begins: as whole cache lines and vectors do.
_LEAST = 1 << 16
_ALIGNMENT = 64
# Quicker than np.empty.
_NEW: Callable[..., Array] = np.ndarray


@dataclass(frozen=True, slots=True)
class _Block:
    """Memory of `size` bytes."""

    memory: Array
    size: int
    interface: dict[str, Any]


class ResultPool:
    """The blocks of one module's results; at most `most` of them lie free.  Thread-safe."""

    def __init__(self, most: int) -> None:
        # Arrays may die in any thread and at any step, in this class's own too: a deque needs no
        # lock.
        self._free: deque[_Block] = deque(maxlen=most)

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Array]:
        """Makes new row-major arrays of any contents.

        The memory of one comes back when it and all its views are gone.  Making one raises
        MemoryError and ValueError as NumPy does.
        """
        size = dtype.itemsize
        for n in shape:
            size *= n
        if size < _LEAST:
            return partial(_NEW, shape, dtype)
        return partial(self._lend, _rounded(size), shape, dtype)

    def _lend(self, size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        lent = np.asarray(_Lease(self._take(size), self._free))
        return np.ndarray(shape, dtype, lent)

    def _take(self, size: int) -> _Block:
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread was faster
                break
            if block.size == size:
                return block
            self._free.append(block)
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
    return _Block(part, size, part.__array_interface__)


def _rounded(size: int) -> int:
    """Sizes in steps of an eighth, so that results that grow from run to run find blocks too."""
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step
