"""Turns arrays of any kind into descriptors, and results into arrays of the same kind.

devices.py does this for arrays on GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from tcc.runtime import abi
from tcc.runtime.devices import Given, is_on_device, view_of_device, view_of_torch_device
from tcc.runtime.packed import is_packed, pack

Array: TypeAlias = np.ndarray[Any, Any]


def view_of(value: Any, dtype: str, updated: bool) -> Given:
    """Returns the descriptor of `value` for a port of element type `dtype`.

    `updated` demands memory that the run may write to. Raises TypeError, ValueError, OverflowError
    or BufferError if the value is no suitable array. The runtime checks sizes and element types.
    """
    if _is_torch(value):
        return _view_torch(value, dtype, updated)
    if isinstance(value, np.ndarray):
        array = value
    elif is_on_device(value):
        return view_of_device(value)
    elif hasattr(value, "__dlpack__"):
        array = _from_dlpack(value)
    else:
        if updated:
            raise TypeError(f"expected an array to update in place, got {type(value).__name__}")
        array = _convert(value, dtype)
    if updated and not array.flags.writeable:
        raise ValueError("the array is updated in place, but it is read-only")
    return _view_numpy(array, dtype, updated)


def in_parts(value: Any, shape: Sequence[int | None]) -> Any:
    """Returns a complex array as a real one; a last axis of size 2 holds real and imaginary part.

    Returns `value` itself if `shape` has no such axis or `value` is not complex.
    """
    if tuple(shape[-1:]) != (2,) or getattr(value, "ndim", None) != len(shape) - 1:
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind == "c":
        return value[..., None].view(value.real.dtype)
    if _is_torch(value) and value.is_complex():
        return sys.modules["torch"].view_as_real(value.resolve_conj())
    return value


def kind_of(values: Sequence[Any]) -> Callable[[Any, str], Any]:
    """Returns a function that converts a NumPy array to the array type of the inputs.

    If the inputs have several array types, torch's type has precedence.
    """
    for value in values:
        if _is_torch(value):
            return _to_torch
    for value in values:
        if not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__array_namespace__"):
            namespace = value.__array_namespace__()
            return lambda array, _: namespace.from_dlpack(array)
    return lambda array, _: array


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _from_dlpack(value: Any) -> Array:
    try:
        return np.from_dlpack(value)
    except RuntimeError as failure:  # raised for an element type that NumPy does not know
        raise TypeError(f"NumPy cannot read the array: {failure}") from failure


def _convert(value: Any, dtype: str) -> Array:
    """Returns Python numbers or lists as an array; raises ValueError if the type cannot hold a
    value."""
    integers = is_packed(dtype) and abi.DTYPE_CODES[dtype][0] <= 1
    # The integers of ml_dtypes wrap silently. Plain integers do not, and packing checks their
    # range.
    element = abi.plain_dtype(dtype) if integers else abi.numpy_dtype(dtype)
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind in "cUSMm":
        raise TypeError(f"expected an array, got {type(value).__name__}")
    if abi.holds_bits(element, dtype):
        raise TypeError(f"numbers become {dtype} only once ml_dtypes is imported")
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(element)
    if element.kind in "iub":
        fits = np.array_equal(converted, array)
    else:
        fits = bool(np.all(np.isfinite(converted) | ~np.isfinite(array)))
    if not fits:
        raise ValueError(f"the values do not fit in {dtype}")
    return converted


@cache
def _numpy_code(element: np.dtype[Any], dtype: str) -> tuple[int, int]:
    """Returns the DLPack code and bits of elements of a NumPy type."""
    if element.name in _EXTENSIONS:
        return abi.DTYPE_CODES[_EXTENSIONS[element.name]]
    if dtype in abi.EXTENSIONS and element == abi.plain_dtype(dtype):
        return abi.DTYPE_CODES[dtype]
    codes = {"i": 0, "u": 1, "f": 2, "b": 6, "c": 5}
    if element.kind not in codes or not element.isnative:
        raise TypeError(f"expected element type {dtype}, got {element}")
    return codes[element.kind], element.itemsize * 8


_EXTENSIONS = {name: short for short, name in abi.EXTENSIONS.items()}


def _view_numpy(array: Array, dtype: str, updated: bool) -> Given:
    if is_packed(dtype):
        if updated:
            raise ValueError("the array is updated in place, but its elements are not packed")
        data = pack(array, dtype)
        code = abi.DTYPE_CODES[dtype]
        return Given(abi.make_tensor(data.ctypes.data, code, array.shape, None), data)
    code = _numpy_code(array.dtype, dtype)
    if array.flags.c_contiguous:
        return Given(abi.make_tensor(array.ctypes.data, code, array.shape, None), array)
    if any(step % array.itemsize for step in array.strides):
        if updated:
            raise ValueError("the array is updated in place, but its elements are not adjacent")
        return _view_numpy(np.ascontiguousarray(array), dtype, updated)
    strides = tuple(step // array.itemsize for step in array.strides)
    return Given(abi.make_tensor(array.ctypes.data, code, array.shape, strides), array)


def _view_torch(tensor: Any, dtype: str, updated: bool) -> Given:
    dense = tensor.layout == sys.modules["torch"].strided and not tensor.is_nested
    if tensor.device.type not in ("cpu", "cuda") or not dense:
        raise TypeError(
            f"expected a dense tensor on the CPU or a GPU, got {tensor.layout} on {tensor.device}"
        )
    if updated and tensor.is_neg():
        raise ValueError("the tensor is updated in place, but it is a negated view of its memory")
    tensor = tensor.resolve_neg().resolve_conj()
    code = _TORCH_CODES.get(str(tensor.dtype))
    if code is None:
        raise TypeError(f"element type {tensor.dtype} is not supported")
    if tensor.device.type == "cuda":
        return view_of_torch_device(tensor, code, updated)
    if is_packed(dtype):
        return _view_numpy(tensor.detach().numpy(), dtype, updated)
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return Given(abi.make_tensor(_address(tensor), code, shape, strides), tensor)


def _address(tensor: Any) -> int:
    try:
        return int(tensor.data_ptr())
    except RuntimeError as failure:  # raised for a tensor inside torch's vmap or tracing
        raise TypeError(f"the tensor has no memory: {failure}") from failure


_TORCH_CODES = {
    f"torch.{name}": abi.DTYPE_CODES[short]
    for name, short in (
        ("bool", "bool"), ("int8", "i8"), ("int16", "i16"), ("int32", "i32"), ("int64", "i64"),
        ("uint8", "u8"), ("uint16", "u16"), ("uint32", "u32"), ("uint64", "u64"),
        ("float16", "f16"), ("bfloat16", "bf16"), ("float32", "f32"), ("float64", "f64"),
        ("float8_e4m3fn", "f8e4m3fn"), ("float8_e4m3fnuz", "f8e4m3fnuz"),
        ("float8_e5m2", "f8e5m2"), ("float8_e5m2fnuz", "f8e5m2fnuz"),
        ("float8_e8m0fnu", "f8e8m0"),
    )
}  # fmt: skip


def _to_torch(array: Array, dtype: str) -> Any:
    torch = sys.modules["torch"]
    if dtype == "bf16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    # Packed integers (int4, ...) become one byte per element, because torch cannot compute with
    # packed ones.
    if dtype in abi.EXTENSIONS:
        codes = torch.from_numpy(array.view(abi.plain_dtype(dtype)))
        name = f"torch.{abi.EXTENSIONS[dtype]}"
        return codes.view(getattr(torch, name[6:])) if name in _TORCH_CODES else codes
    return torch.from_numpy(array)
