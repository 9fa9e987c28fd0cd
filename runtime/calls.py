"""Output arrays of a call.

An output gets its array when the call starts if its shape is known, else when the run asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tcc.runtime import abi
from tcc.runtime.devices import Maker
from tcc.runtime.packed import is_packed, packed_size, unpack
from tcc.runtime.ports import ModulePort
from tcc.runtime.values import is_value, make_block


@dataclass(frozen=True, slots=True)
class Result:
    """An output of a model; `shape` is None if a size is unknown before the run.

    `state` is the index of the input that the output updates in place, or -1.
    """

    dtype: str
    shape: tuple[int, ...] | None
    state: int


def result_of(port: ModulePort) -> Result:
    sizes = tuple(n for n in port.shape if n is not None)
    has_shape = len(sizes) == len(port.shape) and not is_value(port.dtype)
    return Result(port.dtype, sizes if has_shape else None, port.state)


class Outputs:
    """Makes the arrays of a module's outputs; it is thread-safe."""

    def __init__(self, ports: Sequence[Result], memory: Callable[[int], Any]) -> None:
        """`memory(bytes)` returns a buffer for an output; `abi.python_functions` makes it."""
        self.ports, self.memory = tuple(ports), memory
        self._kind: Any = abi.CTensor * max(1, len(ports))
        self.asks = any(port.state < 0 and port.shape is None for port in ports)

    def start(self, inputs: Any, maker: Maker | None = None) -> Results:
        """Returns the results of a call whose inputs have the descriptors `inputs`.

        Outputs of known shape get their arrays here, all other outputs during the run. `maker`
        makes arrays on a device; without it they are NumPy arrays.
        """
        results = Results(self, self._kind(), maker)
        for i, port in enumerate(self.ports):
            if port.state >= 0:
                results.tensors[i] = inputs[port.state]
                results.tensors[i].data = None
            elif port.shape is not None:
                results.describe(i, port.shape)
        return results


def is_plain(dtype: str) -> bool:
    """True if NumPy itself has the element type."""
    return dtype not in abi.EXTENSIONS and not is_value(dtype)


class Results:
    """The output arrays of a run, and their descriptors.

    Arrays of known shape exist from the start, all others after the run has asked for them.
    """

    def __init__(self, outputs: Outputs, tensors: Any, maker: Maker | None) -> None:
        self.arrays: list[Any] = [None] * len(outputs.ports)
        self.tensors = tensors
        self.failure: BaseException | None = None
        self._outputs, self._maker = outputs, maker
        self._owners: list[Any] = []  # objects that keep the memory of the descriptors alive
        self._packed: dict[int, tuple[int, ...]] = {}

    def allocator(self) -> abi.Allocator:
        """Returns the allocator that the run calls.

        The allocator refers to this object, but this object does not refer to the allocator. So no
        reference cycle keeps memory alive.
        """
        return abi.Allocator(None, abi.ALLOCATE(self._allocate))

    def describe(self, index: int, shape: tuple[int, ...]) -> None:
        """Makes the array and the descriptor of output `index`."""
        dtype = self._outputs.ports[index].dtype
        if self._maker:
            self.arrays[index], view = self._maker(shape, dtype)
            self._owners.append(view)
            self.tensors[index] = view.tensor
            return
        address = self._make(index, shape, dtype)
        tensor = abi.make_tensor(address, abi.DTYPE_CODES[dtype], shape, None)
        self._owners.append(tensor)
        self.tensors[index] = tensor

    def _make(self, index: int, shape: tuple[int, ...], dtype: str) -> int:
        if is_packed(dtype):
            self._packed[index] = shape
            array: Any = np.empty(max(1, packed_size(shape, dtype)), np.uint8)
        else:
            element = abi.numpy_dtype(dtype)
            memory = self._outputs.memory(prod(shape) * element.itemsize)
            array = np.ndarray(shape, element, memory)
        self.arrays[index] = array
        return int(array.ctypes.data)

    def unpack(self) -> None:
        """Unpacks results whose elements share bytes, to one byte per element; called after the
        run."""
        for index, shape in self._packed.items():
            data, dtype = self.arrays[index], self._outputs.ports[index].dtype
            self.arrays[index] = unpack(data[: packed_size(shape, dtype)], shape, dtype)

    def _allocate(self, _context: Any, index: int, request: Any, out_data: Any) -> int:
        try:
            self._make_requested(index, request.contents, out_data)
        # ctypes would ignore an exception, even that of a signal handler
        except BaseException as failure:
            self.failure = failure
            return 1
        return 0

    def _make_requested(self, index: int, request: abi.CTensor, out_data: Any) -> None:
        shape = tuple(request.shape[: request.ndim])
        if is_value(self._outputs.ports[index].dtype):
            self.arrays[index] = block = make_block(shape[0])
            out_data[0] = block.address
            return
        self.describe(index, shape)
        out_data[0] = self.tensors[index].data
