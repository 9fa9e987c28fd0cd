"""Converts strings, sequences and optionals between Python's objects and the structs of tcc.h.

Strings are NumPy arrays of `str` or `bytes` (fixed width, variable width or objects), sequences are
lists, and an optional is its element or None. Results are object arrays of `str`, lists and None.
Bytes that are not UTF-8 become surrogate escapes.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tcc.runtime import abi
from tcc.runtime.arrays import Array, view_of
from tcc.runtime.devices import Given

_ALIGNMENT = 64
_DEEPEST = 8
# Matches the type of an array in a list: an element type, and sizes in brackets if there are any.
_ENTRY = re.compile(r"(\w+)(?:\[[-0-9?,]*\])?", re.ASCII)


def is_value(dtype: str) -> bool:
    """True if a port of this element type takes strings or a list."""
    return dtype == "string" or is_list(dtype)


def is_list(dtype: str) -> bool:
    """True if a port of this element type takes a sequence or an optional."""
    return dtype.startswith(("sequence(", "optional("))


def is_list_type(text: str) -> bool:
    """True if a text names a type of sequences or optionals."""
    depth = 0
    while is_list(text) and text.endswith(")") and depth < _DEEPEST:
        text, depth = text.partition("(")[2][:-1], depth + 1
    entry = _ENTRY.fullmatch(text)
    return depth > 0 and entry is not None and entry[1] in abi.DTYPE_CODES


def describe(value: Any, dtype: str) -> Given:
    """Returns the descriptor of a value for a port of element type `dtype`.

    Raises TypeError, ValueError, OverflowError or BufferError for an unsuitable value.
    """
    if dtype == "string":
        return _describe_strings(value)
    if not is_list(dtype):
        return view_of(value, dtype, False)
    inner = entry_type(dtype)
    if dtype.startswith("optional("):
        items = [] if value is None else [describe(value, inner)]
    else:
        if not isinstance(value, list | tuple):
            raise TypeError(f"expected a list of arrays, got {type(value).__name__}")
        items = [describe(item, inner) for item in value]
    tensors = (abi.CTensor * max(1, len(items)))(*(item.tensor for item in items))
    entries = abi.List(len(items), ctypes.cast(tensors, ctypes.POINTER(abi.CTensor)))
    slot = ctypes.pointer(entries)
    tensor = abi.make_tensor(ctypes.addressof(slot), abi.LIST, (), None)
    return Given(tensor, (items, tensors, entries, slot))


def entry_type(dtype: str) -> str:
    """Returns the element type of a list's entries, without their sizes."""
    inner = dtype[len("optional(") : -1]
    return inner if is_list(inner) else inner.partition("[")[0]


def arrays_in(value: Any, dtype: str) -> Iterator[Any]:
    """Yields the arrays in a value for a port of element type `dtype`; lists may be nested."""
    if is_list(dtype) and isinstance(value, list | tuple):
        for item in value:
            yield from arrays_in(item, entry_type(dtype))
    else:
        yield value


def _describe_strings(value: Any) -> Given:
    array = value if isinstance(value, np.ndarray) else np.asarray(value, object)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(object)  # NumPy gives an empty list the element type float64
    if array.dtype.kind not in "USOT":
        raise TypeError(f"expected an array of strings, got {array.dtype}")
    texts = [_encoded(text) for text in array.reshape(-1).tolist()]
    data = ctypes.create_string_buffer(b"".join(texts), sum(map(len, texts)) + 1)
    records = np.zeros((max(1, len(texts)), 2), np.int64)
    sizes = np.array([len(text) for text in texts], np.int64)
    records[: len(texts), 0] = ctypes.addressof(data) + np.cumsum(sizes) - sizes
    records[: len(texts), 1] = sizes
    tensor = abi.make_tensor(records.ctypes.data, abi.DTYPE_CODES["string"], array.shape, None)
    return Given(tensor, (data, records))


def _encoded(text: object) -> bytes:
    if isinstance(text, str):
        return text.encode("utf-8", "surrogateescape")
    if isinstance(text, bytes):
        return text
    raise TypeError(f"expected strings, got {type(text).__name__}")


class WrongTypeError(ValueError):
    """Raised for a result whose type differs from that of its port."""


# ---- results -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResultMemory:
    """Memory for a result that the runtime writes as bytes; `address` is aligned."""

    memory: Array
    address: int


def make_block(size: int) -> ResultMemory:
    """Returns memory for `size` bytes; raises MemoryError and ValueError as NumPy does."""
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -int(memory.ctypes.data) % _ALIGNMENT
    return ResultMemory(memory, int(memory.ctypes.data) + start)


def read_block(address: int, dtype: str, finish: Callable[[Array, str], Any]) -> Any:
    """Returns the value that the runtime wrote at `address`.

    `finish(array, element type)` turns each copied NumPy array into the array that is returned.
    Raises WrongTypeError if the type of the value is not `dtype`.
    """
    return _read(abi.CTensor.from_address(address), dtype, finish)


def _read(tensor: abi.CTensor, dtype: str, finish: Callable[[Array, str], Any]) -> Any:
    shape = tuple(tensor.shape[: tensor.ndim])
    expected = abi.LIST if is_list(dtype) else abi.DTYPE_CODES[dtype]
    if (tensor.dtype.code, tensor.dtype.bits) != expected:
        raise WrongTypeError(f"a result is not of its type {dtype}")
    if dtype == "string":
        return _read_strings(tensor, shape)
    if not is_list(dtype):
        element = abi.numpy_dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * element.itemsize
        data = ctypes.string_at(tensor.data, size) if size else b""
        return finish(np.frombuffer(bytearray(data), element).reshape(shape), dtype)
    (place,) = (ctypes.c_void_p * 1).from_address(tensor.data or 0)
    entries = abi.List.from_address(place or 0)
    inner = entry_type(dtype)
    items = [_read(entries.items[n], inner, finish) for n in range(entries.count)]
    if dtype.startswith("optional("):
        return items[0] if items else None
    return items


def _read_strings(tensor: abi.CTensor, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    records = (ctypes.c_int64 * (2 * count)).from_address(tensor.data) if count else ()
    out = np.empty(count, object)
    for n in range(count):
        data = ctypes.string_at(records[2 * n], records[2 * n + 1]) if records[2 * n + 1] else b""
        out[n] = data.decode("utf-8", "surrogateescape")
    return out.reshape(shape)


def finished(result: Any, dtype: str, kind: Callable[[Any, str], Any] | None) -> Any:
    """Returns a result in the form that the caller gets: an array, strings or a list.

    `kind` converts a NumPy array to the type of the caller's arrays; None leaves it unchanged.
    """
    if isinstance(result, ResultMemory):
        return read_block(result.address, dtype, kind or _as_it_is)
    return kind(result, dtype) if kind else result


def _as_it_is(array: Any, _dtype: str) -> Any:
    return array
