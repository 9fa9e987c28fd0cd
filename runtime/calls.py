"""The descriptors of a call's arrays, made quickly where calls repeat their shapes.

A step of a decoder takes and returns dozens of arrays, and its weights leave nothing in the caches
of what Python did before: every object touched here is a wait for memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakMethod

import numpy as np
from tcc.runtime import abi
from tcc.runtime.arrays import address_of
from tcc.runtime.blocks import ResultPool
from tcc.runtime.devices import HOST, Given, Maker
from tcc.runtime.packed import is_packed, packed_size, unpack
from tcc.runtime.values import is_value, make_block


@dataclass(frozen=True, slots=True)
class _Known:
    """What an array had that was given before, and the descriptor of one like it."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    tensor: abi.CTensor


@dataclass(frozen=True, slots=True)
class Described:
    """Descriptors of a call's inputs, and what must stay alive while they are used besides the
    inputs; `plain`: all inputs are NumPy arrays; `known`: described as such given before; `device`:
    the first array on a GPU, or None."""

    tensors: Any
    owners: list[Given | _Known]
    plain: bool
    device: Any = None

    @property
    def known(self) -> bool:
        return all(isinstance(owner, _Known) for owner in self.owners)


class Inputs:
    """Describes a module's inputs.  Thread-safe."""

    def __init__(self, count: int) -> None:
        self._kind: Any = abi.CTensor * max(1, count)
        self._known: list[_Known | None] = [None] * count

    def describe(self, values: Sequence[Any], view: Callable[[int, Any], Given]) -> Described:
        """`view` describes the input of a number where nothing is known; raises what it raises."""
        tensors = self._kind()
        owners: list[Given | _Known] = []
        plain, device = True, None
        for i, value in enumerate(values):
            known = self._known[i]
            address = _address_like(value, known.dtype, known.shape) if known else None
            if known and address is not None:
                tensors[i] = known.tensor
                tensors[i].data = address
                owners.append(known)
                continue
            plain &= type(value) is np.ndarray
            given = view(i, value)
            owners.append(given)
            tensors[i] = given.tensor
            if device is None and given.tensor.device.type not in HOST:
                device = value
            if type(value) is np.ndarray and given.owner is value and not given.tensor.strides:
                self._known[i] = _Known(value.dtype, value.shape, given.tensor)
        return Described(tensors, owners, plain, device)


def _address_like(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int | None:
    """Where the elements of a NumPy array of this type and shape begin; None for other values and
    where `address_of` tells none."""
    if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
        return None
    return address_of(value)


@dataclass(frozen=True, slots=True)
class Result:
    """An output as its memory is made: `shape` where it is known, `state` as `Port` has it."""

    dtype: str
    shape: tuple[int, ...] | None
    state: int


class Outputs:
    """Makes the arrays of a module's outputs.  Thread-safe."""

    def __init__(self, ports: Sequence[Result], blocks: ResultPool) -> None:
        self.ports, self.blocks = tuple(ports), blocks
        self._kind: Any = abi.CTensor * max(1, len(ports))
        self._first = self._kind()
        self._described: list[abi.CTensor] = []  # keeps the shapes alive
        self.asks = any(port.state < 0 and port.shape is None for port in ports)
        self.plain = not any(
            p.state >= 0 or p.shape is None or is_value(p.dtype) or is_packed(p.dtype)
            for p in ports
        )
        for i, port in enumerate(ports):
            if port.state < 0 and port.shape is not None:
                tensor = abi.make_tensor(0, abi.DTYPE_CODES[port.dtype], port.shape, None)
                self._described.append(tensor)
                self._first[i] = tensor

    def descriptors(self) -> Any:
        """Those of all outputs, without addresses."""
        return self._kind.from_buffer_copy(self._first)

    def start(self, inputs: Any, maker: Maker | None = None) -> Results:
        """The outputs of a call with descriptors `inputs`: arrays where sizes are known.

        `maker` makes them on a device; without it they are NumPy arrays.
        """
        results = Results(self, self.descriptors(), maker)
        for i, port in enumerate(self.ports):
            if port.state >= 0:
                results.tensors[i] = inputs[port.state]
                results.tensors[i].data = None
            elif port.shape is not None:
                if maker:
                    results.tensors[i] = results.make_there(i, port.shape, maker)
                else:
                    results.tensors[i].data = results.make(i, port.shape)
        return results


class Results:
    """Output arrays of one run: made at once where sizes are known, else when the run asks."""

    def __init__(self, outputs: Outputs, tensors: Any, maker: Maker | None) -> None:
        self.arrays: list[Any] = [None] * len(outputs.ports)
        self.tensors = tensors
        self.failure: BaseException | None = None
        self.allocator: abi.Allocator | None = None
        self._outputs, self._maker = outputs, maker
        self._owners: list[Given] = []
        self._packed: dict[int, tuple[int, ...]] = {}
        if outputs.asks:
            self._described: list[abi.CTensor] = []  # keeps the shapes alive
            # Without a reference to itself: the arrays die with their last holder.
            allocate = WeakMethod(self._allocate)
            self.allocator = abi.Allocator(
                None, abi.ALLOCATE(lambda *told: _called(allocate, told))
            )

    def make(self, index: int, shape: tuple[int, ...]) -> int:
        """Makes the array of output `index`; returns its address."""
        dtype = self._outputs.ports[index].dtype
        if is_packed(dtype):
            self._packed[index] = shape
            data = np.empty(max(1, packed_size(shape, dtype)), np.uint8)
            self.arrays[index] = data
            return data.ctypes.data
        self.arrays[index], address = self._outputs.blocks.array(shape, abi.numpy_dtype(dtype))
        return address

    def unpack(self) -> None:
        """After the run: arrays whose elements shared bytes get a byte for each."""
        for index, shape in self._packed.items():
            data, dtype = self.arrays[index], self._outputs.ports[index].dtype
            self.arrays[index] = unpack(data[: packed_size(shape, dtype)], shape, dtype)

    def make_there(self, index: int, shape: tuple[int, ...], maker: Maker) -> abi.CTensor:
        """Makes the array of output `index` on the device; returns its descriptor."""
        self.arrays[index], given = maker(shape, self._outputs.ports[index].dtype)
        self._owners.append(given)
        return given.tensor

    def _allocate(self, _context: Any, index: int, wanted: Any, out_data: Any) -> int:
        try:
            self._make_asked(index, wanted.contents, out_data)
        except BaseException as failure:  # also of a signal's handler: ctypes would go on
            self.failure = failure
            return 1
        return 0

    def _make_asked(self, index: int, wanted: abi.CTensor, out_data: Any) -> None:
        shape = tuple(wanted.shape[: wanted.ndim])
        if is_value(self._outputs.ports[index].dtype):
            self.arrays[index] = block = make_block(shape[0])
            out_data[0] = block.address
            return
        if self._maker:
            self.tensors[index] = made = self.make_there(index, shape, self._maker)
            out_data[0] = made.data
            return
        out_data[0] = address = self.make(index, shape)
        code = abi.DTYPE_CODES[self._outputs.ports[index].dtype]
        described = abi.make_tensor(address, code, shape, None)
        self._described.append(described)
        self.tensors[index] = described


def _called(method: WeakMethod[Callable[..., int]], arguments: tuple[Any, ...]) -> int:
    """The method's answer, for an object that lives."""
    alive = method()
    return 1 if alive is None else alive(*arguments)


class Repeated:
    """The descriptors of a call whose arrays all were NumPy's and of sizes known before, for calls
    that look the same.  For one call at a time."""

    allocator = failure = None

    def __init__(self, values: Sequence[Any], given: Described, outputs: Outputs) -> None:
        self.inputs, self.tensors = given.tensors, outputs.descriptors()
        self._owners = given.owners
        self._given = [(v.dtype, v.shape, self.inputs[i]) for i, v in enumerate(values)]
        ports = enumerate(outputs.ports)
        self._made = [(p.dtype, p.shape or (), self.tensors[i]) for i, p in ports]
        self._blocks = outputs.blocks

    def fill(self, values: Sequence[Any]) -> list[Any] | None:
        """Describes `values`; the arrays of the results, or None where a call looks different."""
        for value, (dtype, shape, tensor) in zip(values, self._given, strict=True):
            address = _address_like(value, dtype, shape)
            if address is None:
                return None
            tensor.data = address
        arrays = []
        for name, shape, tensor in self._made:
            array, tensor.data = self._blocks.array(shape, abi.numpy_dtype(name))
            arrays.append(array)
        return arrays
