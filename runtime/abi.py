"""tcc.h in ctypes: structs, the function table, and element types."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, Structure
from functools import cache, lru_cache
from importlib import import_module
from operator import index
from types import MappingProxyType
from typing import Any

import numpy as np

API_VERSION = 1
POISON = 1
TIMES = 2
INVALID_ARGUMENT, CANCELLED = 1, 7

# Maps an element type to its DLPack code and bits, as tcc_dtype of tcc.h defines them.
DTYPE_CODES = MappingProxyType(
    {
        "bool": (6, 8),
        "i8": (0, 8), "i16": (0, 16), "i32": (0, 32), "i64": (0, 64),
        "u8": (1, 8), "u16": (1, 16), "u32": (1, 32), "u64": (1, 64),
        "f16": (2, 16), "bf16": (4, 16), "f32": (2, 32), "f64": (2, 64),
        "string": (3, 128),
        "i2": (0, 2), "i4": (0, 4), "u2": (1, 2), "u4": (1, 4), "f4e2m1": (17, 4),
        "f8e4m3fn": (10, 8), "f8e4m3fnuz": (11, 8), "f8e5m2": (12, 8), "f8e5m2fnuz": (13, 8),
        "f8e8m0": (14, 8),
    }
)  # fmt: skip
LIST = (3, 64)
_NAMES = {code: name for name, code in DTYPE_CODES.items()}
_NUMPY_LETTERS = {0: "i", 1: "u", 2: "f", 6: "b"}


class CDType(Structure):
    """The struct tcc_dtype."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Device(Structure):
    """The struct tcc_device."""

    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class CTensor(Structure):
    """The struct tcc_tensor, which is DLTensor.

    `sizes` keeps the memory of `shape` and `strides` alive.
    """

    sizes: CTensor
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", CDType),
        ("shape", POINTER(ctypes.c_int64)),
        ("strides", POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class List(Structure):
    """The struct tcc_list."""

    _fields_ = (("count", ctypes.c_int64), ("items", POINTER(CTensor)))


class CPort(Structure):
    """The struct tcc_port."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", CDType),
        ("ndim", ctypes.c_int32),
        ("shape", POINTER(ctypes.c_int64)),
        ("text", ctypes.c_char_p),
        ("state", ctypes.c_int32),
    )


ALLOCATE = CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int32, POINTER(CTensor), POINTER(ctypes.c_void_p)
)


POLL = CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Allocator(Structure):
    """The struct tcc_allocator."""

    _fields_ = (("context", ctypes.c_void_p), ("allocate", ALLOCATE))


class CStatistics(Structure):
    """The struct tcc_statistics."""

    _fields_ = (
        ("weight_bytes", ctypes.c_uint64),
        ("arena_bytes", ctypes.c_uint64),
        ("scratch_bytes", ctypes.c_uint64),
        ("state_bytes", ctypes.c_uint64),
        ("pool_bytes", ctypes.c_uint64),
        ("pool_high_water", ctypes.c_uint64),
        ("threads", ctypes.c_int32),
    )


class CMemory(Structure):
    """The struct tcc_memory."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("arena", ctypes.c_uint64), ("scratch", ctypes.c_uint64), ("state", ctypes.c_uint64),
        ("pool_committed", ctypes.c_uint64), ("pool_live", ctypes.c_uint64),
        ("used", ctypes.c_uint64), ("most", ctypes.c_uint64), ("limit", ctypes.c_uint64),
        ("process_used", ctypes.c_uint64), ("process_most", ctypes.c_uint64),
        ("process_limit", ctypes.c_uint64), ("symmetric", ctypes.c_uint64),
    )  # fmt: skip


class CTime(Structure):
    """The struct tcc_time."""

    _fields_ = (("count", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


# The struct tcc_stamp_record, and TCC_LEAST_STAMPS.
STAMP = np.dtype(
    [("begin", "i8"), ("end", "i8"), ("step", "i4"), ("thread", "i4"), ("execution", "i8")]
)
LEAST_STAMPS = 8192

_status = ctypes.c_int
_handle = ctypes.c_void_p
_count = CFUNCTYPE(ctypes.c_int32, _handle)
_port = CFUNCTYPE(_status, _handle, ctypes.c_int32, POINTER(CPort))
_set_threads = CFUNCTYPE(_status, _handle, ctypes.c_int32)
_release = CFUNCTYPE(None, _handle)
_run = CFUNCTYPE(
    _status, _handle, POINTER(CTensor), ctypes.c_int32, POINTER(CTensor), ctypes.c_int32,
    POINTER(Allocator), ctypes.c_void_p,
)  # fmt: skip


class PoolAllocator(Structure):
    """The struct tcc_pool_allocator."""

    _fields_ = (
        ("context", ctypes.c_void_p),
        ("allocate", CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)),
        ("release", CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)),
    )


class PoolConfig(Structure):
    """The struct tcc_pool_config."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("range", ctypes.c_size_t),
        ("limit", ctypes.c_size_t),
        ("pressure", CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)),
        ("pressure_context", ctypes.c_void_p),
        ("memory", ctypes.c_void_p),
        ("allocator", POINTER(PoolAllocator)),
    )


class Api(Structure):
    """The struct tcc_api."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("model_get", CFUNCTYPE(_status, POINTER(_handle))),
        ("model_release", _release),
        ("model_set_threads", _set_threads),
        ("input_count", _count),
        ("output_count", _count),
        ("input_port", _port),
        ("output_port", _port),
        ("manifest", CFUNCTYPE(ctypes.c_void_p, POINTER(ctypes.c_size_t))),
        ("instance_create", CFUNCTYPE(_status, _handle, ctypes.c_uint32, POINTER(_handle))),
        ("instance_set_threads", _set_threads),
        ("instance_destroy", _release),
        ("run", _run),
        ("call", _run),
        ("statistics", CFUNCTYPE(_status, _handle, _handle, POINTER(CStatistics))),
        ("model_trim", _release),
        ("last_error", CFUNCTYPE(ctypes.c_char_p)),
        (
            "times",
            CFUNCTYPE(_status, _handle, POINTER(POINTER(CTime)), POINTER(ctypes.c_int64)),
        ),
        ("model_variant", _count),
        ("instance_set_poll", CFUNCTYPE(_status, _handle, POLL, ctypes.c_void_p)),
        ("process_set_memory_limit", CFUNCTYPE(_status, ctypes.c_uint64)),
        ("instance_set_memory_limit", CFUNCTYPE(_status, _handle, ctypes.c_uint64)),
        ("memory", CFUNCTYPE(_status, _handle, POINTER(CMemory))),
        ("instance_set_pool", CFUNCTYPE(_status, _handle, POINTER(PoolConfig))),
        ("pools", ctypes.c_void_p),
        ("result_pool", ctypes.c_void_p),
        (
            "instance_create_on",
            CFUNCTYPE(_status, _handle, ctypes.c_uint32, _handle, POINTER(_handle)),
        ),
        ("model_ranks", _count),
        ("instance_seed", CFUNCTYPE(_status, _handle, ctypes.c_uint64)),
        ("instance_unseed", CFUNCTYPE(_status, _handle)),
        ("instance_cancel", CFUNCTYPE(_status, _handle)),
        ("instance_next_run", CFUNCTYPE(ctypes.c_uint64, _handle)),
        ("instance_cancel_run", CFUNCTYPE(_status, _handle, ctypes.c_uint64)),
        ("model_get_on", CFUNCTYPE(_status, _handle, POINTER(_handle))),
        (
            "instance_set_stamps",
            CFUNCTYPE(_status, _handle, ctypes.c_void_p, ctypes.c_uint64, POINTER(ctypes.c_uint64)),
        ),
        (
            "model_asset",
            CFUNCTYPE(_status, ctypes.c_char_p, POINTER(ctypes.c_void_p), POINTER(ctypes.c_size_t)),
        ),
    )


# Every artifact has the functions before this field; later versions of tcc appended functions.
_APPENDED = Api.instance_seed.offset


def api_of(table: Any) -> Api | None:
    """Returns an artifact's table of functions; functions that an older artifact lacks are NULL.

    Returns None if the table has another version or is too short.
    """
    size, api = table.contents.struct_size, Api()
    if table.contents.version != API_VERSION or size < _APPENDED:
        return None
    ctypes.memmove(ctypes.byref(api), table, min(size, ctypes.sizeof(Api)))
    return api


def get_model(api: Api, comm: Any, handle: Any) -> int:
    """Calls model_get_on; older artifacts have model_get, and one plan for any number of ranks."""
    status: int = api.model_get_on(comm, handle) if api.model_get_on else api.model_get(handle)
    return status


def as_number(value: object, end: int) -> int | None:
    """Returns `value` as an int if it is an integer in [0, end), else None."""
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return number if 0 <= number < end else None


@contextmanager
def seeded(api: Api, instance: int, seed: int | None) -> Iterator[None]:
    """Sets the instance's seed while the context is open, unless `seed` is None."""
    if seed is None:
        yield
        return
    if not api.instance_unseed:  # an artifact with this function has all functions for seeds
        raise RuntimeError("the artifact is older than seeds of runs: compile the model again")
    api.instance_seed(instance, seed)
    try:
        yield
    finally:
        api.instance_unseed(instance)


def python_functions(library: ctypes.CDLL) -> tuple[Callable[..., Any], Callable[[int], Any]]:
    """Returns the two callables that the C function tcc_python_functions (src/python.c) makes.

    The first runs an instance on plain NumPy arrays. The second, `memory(bytes)`, returns a buffer
    for an output. Raises ValueError if the C function does not support the process's Python or
    NumPy.
    """
    entry = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_ssize_t)
    numpy = import_module("numpy._core._multiarray_umath")._ARRAY_API
    run_plain, memory = entry(("tcc_python_functions", library))(numpy, object.__basicsize__)
    return run_plain, memory


def dtype_name(dtype: CDType) -> str:
    """Returns tcc's name of an element type."""
    return _NAMES[dtype.code, dtype.bits]


@cache
def _standard_dtype(name: str) -> np.dtype[Any]:
    code, bits = DTYPE_CODES[name]
    return np.dtype(f"{_NUMPY_LETTERS[code]}{bits // 8}")


# Maps the element types that NumPy lacks to their names in ml_dtypes.
EXTENSIONS = MappingProxyType(
    {
        "bf16": "bfloat16", "i2": "int2", "i4": "int4", "u2": "uint2", "u4": "uint4",
        "f4e2m1": "float4_e2m1fn", "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz",
        "f8e5m2": "float8_e5m2", "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0": "float8_e8m0fnu",
    }
)  # fmt: skip


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns the NumPy type for elements of type `name`.

    For a type that NumPy lacks, this is the type of ml_dtypes if ml_dtypes is imported, else
    `plain_dtype(name)`.
    """
    if name not in EXTENSIONS:
        return _standard_dtype(name)
    try:
        return np.dtype(EXTENSIONS[name])
    except TypeError:
        return plain_dtype(name)


def holds_bits(element: np.dtype[Any], name: str) -> bool:
    """True if arrays of NumPy type `element` hold bit patterns of type `name` instead of values."""
    return name in EXTENSIONS and element == plain_dtype(name) and DTYPE_CODES[name][0] > 1


@cache
def plain_dtype(name: str) -> np.dtype[Any]:
    """Returns the NumPy integer type that holds elements of a type that NumPy lacks.

    Integers are held as values, floats as bit patterns.
    """
    code, bits = DTYPE_CODES[name]
    return np.dtype(f"{'i' if code == 0 else 'u'}{max(1, bits // 8)}")


def make_tensor(
    data: int, dtype: tuple[int, int], shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> CTensor:
    """Returns the descriptor of an array; `strides` count elements.

    It keeps its own shape alive, but not the data.
    """
    sizes = _described(dtype, shape, strides)
    tensor = CTensor.from_buffer_copy(sizes)
    tensor.data, tensor.sizes = data, sizes
    return tensor


# Cached, because runs repeat shapes: to copy a descriptor is several times faster than to make it.
@lru_cache(maxsize=1024)
def _described(
    dtype: tuple[int, int], shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> CTensor:
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    steps = None if strides is None else (ctypes.c_int64 * len(shape))(*strides)
    return CTensor(None, Device(1, 0), len(shape), CDType(*dtype, 1), sizes, steps, 0)
