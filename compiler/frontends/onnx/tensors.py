"""Turns ONNX tensors into NumPy arrays: element types, inline data, external data.

Sizes are computed in Python integers and compared with the bytes present before anything is
allocated.  Weights are views of the protobuf's bytes or of the mapped external file.
"""

import math
import mmap
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto
from tcc.cached import cached_method
from tcc.errors import UserError
from tcc.frontends.elements import LARGEST_TENSOR, decoded, elements_of, stored_size
from tcc.frontends.model_file import open_data
from tcc.ir.narrow import bf16_values, decode, packed_size, unpack
from tcc.ir.op import Array
from tcc.ir.types import BF16, DTYPES, STRING, DType


def _dtype_name(name: str) -> str:
    """Returns tcc's name of an ONNX element type: `f16` for FLOAT16, `u4` for UINT4."""
    words = {"FLOAT": "f32", "DOUBLE": "f64", "BFLOAT16": "bf16"}
    short = name.replace("FLOAT", "F").replace("UINT", "U").replace("INT", "I")
    return words.get(name, short.lower())


ELEMENT_TYPES: Mapping[int, DType] = MappingProxyType(
    {
        number: DTYPES[_dtype_name(name)]
        for name, number in TensorProto.DataType.items()
        if _dtype_name(name) in DTYPES
    }
)
# The field of a TensorProto that holds elements of each type, if they are not in `raw_data`.
_FIELDS = MappingProxyType(
    {
        "f32": "float_data",
        "f64": "double_data",
        "i64": "int64_data",
        "u32": "uint64_data",
        "u64": "uint64_data",
    }
)
_DATA_FIELDS = (
    "raw_data float_data int32_data int64_data double_data uint64_data string_data"
).split()
_MAX_RANK = 64
# The most bytes of a sparse tensor in dense form: its shape may be far larger than its data.
_MAX_DENSE = 1 << 31
_EXTERNAL_KEYS = frozenset({"location", "offset", "length", "checksum"})


def element_type(number: int) -> DType:
    """Returns the dtype of an ONNX element type; raises `UserError` for a type that tcc lacks."""
    dtype = ELEMENT_TYPES.get(number)
    if dtype is None:
        is_listed = number in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(number) if is_listed else str(number)
        raise UserError(
            f"element type {name} is not supported",
            why=f"supported are {', '.join(DTYPES)}",
        )
    return dtype


class TensorReader:
    """Turns `TensorProto`s into arrays; `model` is the file whose folder has the external data."""

    def __init__(self, model: Path | None) -> None:
        self._model = model

    def array(self, tensor: onnx.TensorProto, raw: memoryview | None = None) -> tuple[Array, DType]:
        """Returns the array in its dtype's carrier, and the dtype.

        `raw` is the tensor's `raw_data` if that was cut out of it. Raises `UserError` where data
        and shape differ.
        """
        dtype = element_type(tensor.data_type)
        shape = tuple(tensor.dims)
        if not _is_possible(shape):
            raise UserError("a tensor has an impossible shape", why=f"{shape}")
        count = math.prod(shape)
        if dtype is STRING:
            self._check_other_fields(tensor, "string_data")
            flat = np.empty(len(tensor.string_data), object)
            flat[:] = [data.decode("utf-8", "surrogateescape") for data in tensor.string_data]
        elif tensor.data_location == TensorProto.EXTERNAL and raw is None:
            stored_bytes = self.external(tensor, count, dtype)
            flat = decoded(np.frombuffer(stored_bytes, np.uint8), count, dtype)
        elif raw is not None or tensor.HasField("raw_data"):
            self._check_other_fields(tensor, "raw_data")
            flat = _from_bytes(tensor.raw_data if raw is None else raw, count, dtype)
        else:
            name = _FIELDS.get(dtype.name, "int32_data")
            self._check_other_fields(tensor, name)
            flat = _from_field(getattr(tensor, name), count, dtype)
        if flat.size != count:
            raise UserError(
                "a tensor's data does not fill its shape",
                why=f"{flat.size} elements for shape {shape}",
            )
        return flat.reshape(shape), dtype

    def dense(self, sparse: onnx.SparseTensorProto) -> tuple[Array, DType]:
        """Returns a sparse tensor as a dense array; absent elements are zero."""
        values, dtype = self.array(sparse.values)
        if dtype is STRING:
            raise UserError("sparse tensors of strings are not supported")
        at, kind = self.array(sparse.indices)
        if kind is not DTYPES["i64"]:
            raise UserError(
                "a sparse tensor's indices have the wrong element type",
                why=f"they are {kind.name}; i64 is due",
            )
        shape = tuple(sparse.dims)
        count = math.prod(shape)
        if not _is_possible(shape) or count * dtype.bytes > _MAX_DENSE:
            raise UserError("a sparse tensor has an impossible shape", why=f"{shape}")
        if at.ndim == 2 and at.shape == (values.size, len(shape)):
            inside = np.all((at >= 0) & (at < np.array(shape, np.int64)))
            linear = np.ravel_multi_index(tuple(at.T), shape) if inside else np.array([-1])
        else:
            linear = at
        if linear.shape != (values.size,) or np.any((linear < 0) | (linear >= count)):
            raise UserError("a sparse tensor's indices do not fit its shape")
        out = np.zeros(count, dtype.carrier)
        out[linear] = values.reshape(-1)
        return out.reshape(shape), dtype

    def _check_other_fields(self, tensor: onnx.TensorProto, name: str) -> None:
        filled_fields = [f for f in _DATA_FIELDS if f != name and len(getattr(tensor, f))]
        if filled_fields:
            raise UserError(
                "a tensor has data in the wrong field",
                why=f"{', '.join(filled_fields)}; {name} is due",
            )

    def external(self, tensor: onnx.TensorProto, count: int, dtype: DType) -> memoryview:
        """Returns the bytes of a tensor of `count` elements from the file that it names."""
        entries = {e.key: e.value for e in tensor.external_data}
        unknown = sorted(set(entries) - _EXTERNAL_KEYS)
        if unknown or len(entries) != len(tensor.external_data):
            raise _bad_external(f"unknown or repeated keys {', '.join(unknown)}".rstrip())
        size = stored_size(count, dtype)
        length = _number(entries.get("length", str(size)))
        offset = _number(entries.get("offset", "0"))
        if length != size:
            raise _bad_external(f"length {length}; {size} bytes fill the tensor's shape")
        if not size:
            return memoryview(b"")
        data = self._map(entries.get("location", ""))
        if length > len(data) or offset > len(data) - length:
            raise _bad_external(f"bytes {offset} to {offset + length} of a file of {len(data)}")
        return memoryview(data)[offset : offset + length]

    @cached_method
    def _map(self, location: str) -> mmap.mmap:
        if self._model is None:
            raise UserError(
                "the model's weights lie in another file",
                why=f"'{location}' cannot be found without the model's folder",
                hint="give the model by its path",
            )
        try:
            descriptor = open_data(self._model, location)
        except ValueError as error:
            raise _bad_external(str(error)) from error
        try:
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise _bad_external(f"'{location}' is empty or unreadable") from error
        finally:
            os.close(descriptor)


def _is_possible(shape: tuple[int, ...]) -> bool:
    fits = len(shape) <= _MAX_RANK and all(size >= 0 for size in shape)
    return fits and elements_of(shape) <= LARGEST_TENSOR


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII):
        raise _bad_external(f"{text[:40]!r} is not a number of bytes")
    return int(text)


def _bad_external(why: str) -> UserError:
    return UserError(
        "a tensor's external data cannot be used",
        why=why,
        hint="put the data file itself below the model's folder",
    )


def _from_bytes(raw: bytes | memoryview, count: int, dtype: DType) -> Array:
    if len(raw) != stored_size(count, dtype):
        raise UserError(
            "a tensor's data does not fill its shape",
            why=f"{len(raw)} bytes where {stored_size(count, dtype)} are due",
        )
    return decoded(np.frombuffer(raw, np.uint8), count, dtype)


def _from_field(values: Sequence[int] | Sequence[float], count: int, dtype: DType) -> Array:
    if dtype.is_narrow:
        codes = np.fromiter(values, np.int64, len(values)).astype(np.uint8)
        fits = dtype.is_packed and codes.size == packed_size(count, dtype)
        return decode(unpack(codes, count, dtype) if fits else codes, dtype)
    if dtype.name in ("f16", "bf16"):
        bits = np.fromiter(values, np.int64, len(values)).astype(np.uint16)
        return bf16_values(bits) if dtype is BF16 else bits.view(np.float16)
    if dtype.is_float:
        return np.fromiter(values, dtype.carrier, len(values))
    wide = np.uint64 if dtype.kind.value == "uint" and dtype.bits > 16 else np.int64
    return np.fromiter(values, wide, len(values)).astype(dtype.carrier)
