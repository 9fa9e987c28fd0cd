"""Global memory: this process's memory, restricted to known allocations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.ma  # np.unique imports this in each child process otherwise.
import numpy.testing

from .faults import Fault

Array = np.ndarray[Any, np.dtype[Any]]
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_BASE, _END = 1 << 16, 1 << 47  # The range of user space pointers.


def _everything(width: int) -> Array:
    element = np.ctypeslib.as_ctypes_type(UNSIGNED[width])
    return np.ctypeslib.as_array((element * ((_END - _BASE) // width)).from_address(_BASE))


_VIEWS = {width: _everything(width) for width in UNSIGNED}


class GlobalMemory:
    """Global memory of fixed allocations: pairs of an address and a number of bytes."""

    def __init__(self, allocations: Iterable[tuple[int, int]]) -> None:
        rows = sorted(allocations)
        self._starts = np.array([a for a, _ in rows], np.int64)
        self._ends = np.array([a + n for a, n in rows], np.int64)

    def with_span(self, address: int, size: int) -> GlobalMemory:
        """Returns this memory with one more allocation."""
        sizes = (self._ends - self._starts).tolist()
        rows = zip(self._starts.tolist(), sizes, strict=True)
        return GlobalMemory([*rows, (address, size)])

    def check(self, addresses: Array, width: int, aligned: int) -> None:
        """Raises Fault if `width` bytes at an address are not allocated or not `aligned`."""
        if (addresses % aligned).any():
            wrong = int(addresses[addresses % aligned != 0][0])
            raise Fault(f"global address {wrong:#x} is not a multiple of {aligned}")
        owner = np.searchsorted(self._starts, addresses, "right") - 1
        outside = (owner < 0) | (addresses + width > self._ends[owner])
        if outside.any():
            raise Fault(self._place(int(addresses[outside][0]), width))

    def _place(self, address: int, width: int) -> str:
        text = f"{width} bytes at global address {address:#x} are not allocated"
        before = self._starts <= address
        if before.any():
            start, end = int(self._starts[before][-1]), int(self._ends[before][-1])
            text += f": byte {address - start} of {end - start} bytes at {start:#x}"
        return text

    def load(self, addresses: Array, width: int) -> Array:
        """Returns unsigned integers of `width` bytes."""
        self.check(addresses, width, width)
        return np.asarray(_VIEWS[width][(addresses - _BASE) // width])

    def store(self, addresses: Array, values: Array) -> None:
        width = values.dtype.itemsize
        self.check(addresses, width, width)
        _VIEWS[width][(addresses - _BASE) // width] = values
