"""Checks a comm of one rank that has a GPU.

It runs every operation of NCCL or RCCL, and a model with a collective whose runs are recorded. With
one rank, the result of every operation equals its operand.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_int, c_int32, c_int64, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tcc import runtime
from tcc.runtime import comm as comms
from tcc.runtime.abi import DTYPE_CODES, CDType

Array = NDArray[Any]
COUNT, RUNS = 1027, 4
TYPES = {"f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8", "i8": "i1", "u8": "u1", "i32": "i4",
         "i64": "i8"}  # fmt: skip
SUM, AVG = 0, 4
# Maps an operation to (value of tcc_comm_kind, True if the operation reduces).
KINDS = {"all_reduce": (1, True), "reduce_scatter": (2, True), "all_gather": (3, False),
         "all_gather_v": (4, False), "all_to_all": (5, False), "all_to_all_v": (6, False),
         "broadcast": (7, False)}  # fmt: skip
_UNSUPPORTED = 3


class GpuMemory(Protocol):
    """The memory of a GPU, and the handle of a stream on it; `device_type` is DLPack's number."""

    device_type: int
    stream: int

    def place(self, array: Array) -> int:
        """Copies `array` to the GPU; returns the address of the copy.

        The copy exists as long as this object.
        """

    def read(self, address: int, like: Array) -> Array:
        """Returns the content at an address, as an array with the shape and dtype of `like`."""

    def wait(self) -> int:
        """Waits until the stream's work has ended; returns the driver's error code, or 0."""


class _Call(ctypes.Structure):
    """The struct tcc_comm_call."""

    _fields_ = (
        ("struct_size", c_uint32), ("kind", c_int), ("reduction", c_int), ("dtype", CDType),
        ("root", c_int32), ("count", c_int64), ("send_counts", POINTER(c_int64)),
        ("receive_counts", POINTER(c_int64)),
    )  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """A call to check: an operation of KINDS on elements of a type, with a reduction."""

    kind: str
    dtype: str
    reduction: int = SUM

    def call(self) -> _Call:
        counts = (c_int64 * 1)(COUNT)
        number, _ = KINDS[self.kind]
        return _Call(
            ctypes.sizeof(_Call), number, self.reduction, CDType(*DTYPE_CODES[self.dtype], 1), 0,
            COUNT, counts, counts,
        )  # fmt: skip


def operations() -> Iterator[Operation]:
    """Yields all operations that NCCL and RCCL support for a comm of one rank."""
    for kind, (_, reduces) in KINDS.items():
        for dtype in TYPES:
            for reduction in range(AVG + 1) if reduces else (SUM,):
                if reduction != AVG or dtype[0] not in "iu":
                    yield Operation(kind, dtype, reduction)


def _values(dtype: str, seed: int) -> Array:
    values = np.random.default_rng(seed).integers(1, 100, COUNT)
    if dtype == "bf16":  # NumPy lacks bf16, whose bits are the upper half of an f32's
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(TYPES[dtype])


def library() -> ctypes.CDLL:
    """Returns libtcc_comm.so with the types of its functions declared."""
    handle = ctypes.CDLL(os.environ.get("TCC_COMM_LIBRARY") or str(comms.LIBRARY))
    handle.tcc_comm_device_open.argtypes = (c_void_p, c_int32, POINTER(c_void_p))
    handle.tcc_comm_device_start.argtypes = (c_void_p, POINTER(_Call), *(c_void_p,) * 3)
    handle.tcc_comm_device_close.argtypes = (c_void_p,)
    handle.tcc_comm_last_error.restype = ctypes.c_char_p
    return handle


def check_operations(comm: comms.Comm, memory: GpuMemory) -> int:
    """Checks all operations on the GPU; returns how many there are.

    Raises LookupError if NCCL or RCCL is not installed for the GPU, and AssertionError if an
    operation is refused or wrong.
    """
    c = library()
    device = c_void_p()
    status = c.tcc_comm_device_open(comm.handle, memory.device_type, byref(device))
    reason = c.tcc_comm_last_error().decode()
    if status == _UNSUPPORTED:
        raise LookupError(reason)
    assert status == 0, reason
    wait = ctypes.CFUNCTYPE(c_int, c_void_p)(lambda _: memory.wait())
    passed = 0
    try:
        for operation in operations():
            operand = _values(operation.dtype, passed)
            send, receive = memory.place(operand), memory.place(np.zeros_like(operand))
            call, error = operation.call(), c_int()
            status = c.tcc_comm_device_start(device, byref(call), send, receive, memory.stream)
            status = status or c.tcc_comm_device_wait(device, wait, None, byref(error))
            assert status == 0, f"{operation}: {c.tcc_comm_last_error().decode()}"
            assert error.value == 0, f"{operation}: error {error.value} of the driver"
            result = memory.read(receive, operand)
            assert np.array_equal(result, operand), f"{operation}: other elements than were given"
            passed += 1
    finally:
        c.tcc_comm_device_close(device)
    return passed


def check_model(path: Path, comm: comms.Comm, run_model: Callable[[Any, Array], Array]) -> None:
    """Checks RUNS runs of the model y = relu(x) + all_reduce(x) on one rank.

    There are several runs because tcc records a CUDA graph from the second run on.
    `run_model(module, x)` returns y. Raises AssertionError if a result is wrong.
    """
    module = runtime.load(path, comm=comm)
    for number in range(RUNS):
        x = np.arange(-64, 64, dtype=np.float32).reshape(8, 16)
        y = run_model(module, x)
        assert np.array_equal(y, np.maximum(x, 0) + x), f"run {number} of the model is wrong"


class TorchMemory:
    """Implements `GpuMemory` with torch's tensors."""

    def __init__(self) -> None:
        self.device_type = 10 if torch.version.hip else 2
        self._stream = torch.cuda.Stream()
        self.stream = self._stream.cuda_stream
        self._tensors: dict[int, Any] = {}

    def place(self, array: Array) -> int:
        tensor = torch.from_numpy(array.view(np.uint8).copy()).cuda()
        torch.cuda.synchronize()
        self._tensors[tensor.data_ptr()] = tensor
        return int(tensor.data_ptr())

    def read(self, address: int, like: Array) -> Array:
        content: Array = self._tensors[address].cpu().numpy()
        return content.view(like.dtype)

    def wait(self) -> int:
        self._stream.synchronize()
        return 0


def check(folder: Path) -> dict[str, Any]:
    """Runs all checks; returns {"said": a sentence, "error": 0.0}.

    "error" is missing if there is no library for the GPU. Raises an error if a check fails.
    """
    memory = TorchMemory()
    # All runs get their input at this address, so that a recorded run can be used again.
    inputs = torch.empty(8, 16, device="cuda")

    def run(module: Any, x: Array) -> Array:
        inputs.copy_(torch.from_numpy(x))
        y: Array = module(inputs).cpu().numpy()
        return y

    with comms.open(0, 1, rendezvous=f"gpu-check-{os.getpid()}", token="") as comm:
        try:
            count = check_operations(comm, memory)
        except LookupError as absent:
            return {"said": f"not here: {absent}"}
        check_model(folder / "artifacts" / "collectives.so", comm, run)
    return {"said": f"{count} operations and {RUNS} runs of a model on one rank", "error": 0.0}
