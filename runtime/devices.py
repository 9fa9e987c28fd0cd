"""Arrays on GPUs (of torch, and of other libraries through DLPack), and results on their device."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tcc.runtime import abi

# DLPack's numbers of device types: memory that the host can read, and the supported devices.
HOST = frozenset((1, 3, 11))
_CUDA, _ROCM = 2, 10
# CUDA's handle of the process's default stream; a null handle would mean another stream.
_LEGACY_STREAM = 1


@dataclass(frozen=True, slots=True)
class Given:
    """A descriptor, and the object that must live as long as the descriptor is used."""

    tensor: abi.CTensor
    owner: Any


# A function that makes an array of a shape and an element type, with its descriptor.
Maker: TypeAlias = Callable[[tuple[int, ...], str], tuple[Any, Given]]

_NAMES = {
    "bool": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0": "float8_e8m0fnu",
}  # fmt: skip


def is_on_device(value: Any) -> bool:
    """True if DLPack says that the host cannot read the memory of `value`."""
    where = getattr(value, "__dlpack_device__", None)
    return where is not None and hasattr(value, "__dlpack__") and int(where()[0]) not in HOST


def view_of_device(value: Any) -> Given:
    """Returns the descriptor of an array that supports DLPack's protocol, without a copy.

    The process's default stream waits for earlier work on the array. Errors of the array's own
    methods pass to the caller.
    """
    kind = int(value.__dlpack_device__()[0])
    # DLPack names the default stream by a number: 1 for CUDA, 0 for ROCm.
    options = {_CUDA: {"stream": 1}, _ROCM: {"stream": 0}}.get(kind, {})
    capsule = value.__dlpack__(**options)
    address = _capsule_pointer(capsule, b"dltensor")
    room = (ctypes.c_char * ctypes.sizeof(abi.CTensor)).from_address(address)
    return Given(abi.CTensor.from_buffer_copy(room), capsule)


_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def view_of_torch_device(tensor: Any, code: tuple[int, int], updated: bool) -> Given:
    """Returns the descriptor of a torch tensor on a GPU; a tensor that is not row-major is copied.

    Raises ValueError for a tensor that is not row-major if the run is to update it (`updated`).
    """
    if not tensor.is_contiguous():
        if updated:
            raise ValueError("the tensor is updated in place, but it is not contiguous")
        tensor = tensor.contiguous()
    described = abi.make_tensor(tensor.data_ptr(), code, tuple(tensor.shape), None)
    hip = sys.modules["torch"].version.hip
    described.device = abi.Device(_ROCM if hip else _CUDA, tensor.device.index or 0)
    return Given(described, tensor)


def stream_of(value: Any) -> int | None:
    """Returns torch's current stream on the device of `value`, as CUDA's or HIP's handle.

    The run is queued on it. Returns None for an array of another library, and for HIP's default
    stream; the run then ends before the call returns.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    stream = int(torch.cuda.current_stream(value.device).cuda_stream)
    return stream or (None if torch.version.hip else _LEGACY_STREAM)


def maker_like(value: Any) -> Maker:
    """Returns a function that makes arrays of the kind of `value`, on its device.

    Raises TypeError if `value` has no array namespace.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_maker(value.device)
    if not hasattr(value, "__array_namespace__"):
        raise TypeError(f"{type(value).__name__} has no array namespace")
    namespace = value.__array_namespace__()

    def make(shape: tuple[int, ...], dtype: str) -> tuple[Any, Given]:
        element = _element(namespace, dtype)
        array = namespace.empty(shape, dtype=element, device=value.device)
        return array, view_of_device(array)

    return make


def _element(namespace: Any, dtype: str) -> Any:
    """Returns the namespace's element type for `dtype`; raises TypeError if there is none."""
    element = getattr(namespace, _NAMES.get(dtype, ""), None)
    if element is None:
        raise TypeError(f"{namespace.__name__} has no arrays of {dtype}")
    return element


def _torch_maker(device: Any) -> Maker:
    torch = sys.modules["torch"]

    def make(shape: tuple[int, ...], dtype: str) -> tuple[Any, Given]:
        tensor = torch.empty(shape, dtype=_element(torch, dtype), device=device)
        return tensor, view_of_torch_device(tensor, abi.DTYPE_CODES[dtype], False)

    return make
