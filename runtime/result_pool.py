"""Memory of large results, from the artifact's pool: it is used again once nobody holds the array.

The system takes large blocks back when they are freed and clears new ones page by page, at the
first touch: for a result that is written once, this costs more than writing it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tcc.runtime import abi
from tcc.runtime.arrays import Array

# Bytes from which memory comes from the pool.
_LEAST = 1 << 16
# Quicker than np.empty.
_NEW: Callable[..., Array] = np.ndarray


class ResultPool:
    """The results' memory of one artifact.  Thread-safe."""

    def __init__(self, api: abi.Api) -> None:
        """Raises MemoryError where there is no memory for the pool."""
        self.handle = ctypes.c_void_p()
        if api.result_pool(ctypes.byref(self.handle)):
            raise MemoryError(api.last_error().decode(errors="replace"))
        pools = api.pools.contents
        # Each look at a field would make a function of its own.
        self._take, self.give, self._last_error = pools.take, pools.give, api.last_error

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Array]:
        """Makes new row-major arrays of any contents.

        The memory of one comes back when it and all its views are gone.  Making one raises
        MemoryError and ValueError as NumPy does.
        """
        size = dtype.itemsize
        for n in shape:
            size *= n
        return (
            partial(_NEW, shape, dtype)
            if size < _LEAST
            else partial(self._lend, size, shape, dtype)
        )

    def _lend(self, size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        address = ctypes.c_void_p()
        if size > sys.maxsize:
            raise MemoryError(f"an array of {size} bytes")
        if self._take(self.handle, size, ctypes.byref(address)):
            raise MemoryError(self._last_error().decode(errors="replace"))
        return np.ndarray(shape, dtype, np.asarray(_Lease(self, address.value or 0, size)))


class _Lease:
    """What an array of the pool has as its base: gives the memory back when it dies."""

    __slots__ = ("__array_interface__", "_address", "_pool")

    def __init__(self, pool: ResultPool, address: int, size: int) -> None:
        self._pool, self._address = pool, address
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "shape": (size,), "data": (address, False),
        }  # fmt: skip

    def __del__(self) -> None:
        self._pool.give(self._pool.handle, self._address)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("the memory of a result has one owner; copy the array")
