"""Arrays in files: NumPy's formats, and raw elements."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, BinaryIO

import numpy as np
from tcc.runtime import abi
from tcc.runtime.arrays import Array
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import InputError

NUMPY_MAGICS = (b"\x93NUMPY", b"PK\3\4", b"PK\5\6")  # first bytes of .npy and .npz files
MOST_BYTES = 1 << 32  # of an input whose size the model leaves open


def numpy_array(stream: BinaryIO, key: str, where: str) -> Array:
    """Returns the array of a .npy file, or the array `key` of a .npz file.

    An empty `key` stands for the only array of the archive. Strings are objects of type `str`.
    Nothing is unpickled. Raises InputError for a file without the array.
    """
    try:
        if not stream.read(6).startswith(NUMPY_MAGICS):
            raise ValueError("it is no file of NumPy: save the array with np.save")
        stream.seek(0)
        content = np.load(stream, allow_pickle=False)
        if isinstance(content, np.ndarray) and key:
            raise ValueError(f"it has one array, and none called {key!r:.60}")
        array = content if isinstance(content, np.ndarray) else _member(content, key)
    except MemoryError:
        raise
    except Exception as error:
        # NumPy raises errors of many types for damaged files, such as those of Python's tokenizer.
        why = str(error)
        if "allow_pickle" in why:
            why = "it holds Python objects, which are code and not read: save numbers or str"
        raise InputError("cannot read an array", where=where, why=why) from error
    return array.astype(object) if array.dtype.kind == "U" else array


def _member(archive: Mapping[str, Any], key: str) -> Array:
    if not key and len(archive) == 1:
        (key,) = archive
    if key not in archive:
        raise ValueError(f"name one of its arrays, as in @file.npz:KEY: {', '.join(archive)}")
    array: Array = archive[key]
    return array


def raw_array(stream: BinaryIO, port: ModulePort, where: str) -> Array:
    """Returns the elements of `port` from a file that holds nothing else.

    They are little-endian and row-major, as `trtexec --loadInputs` and OpenVINO's benchmark_app
    read them. One size that the port leaves open follows from the size of the file. Types that
    NumPy lacks become arrays of their bit patterns.

    Raises InputError for a file of another size, for two open sizes, and for elements of less than
    a byte or of no fixed size.
    """
    bits = abi.DTYPE_CODES[port.dtype][1]
    if bits % 8 or port.dtype == "string":
        raise InputError(
            f"elements of type {port.dtype} have no raw form", where=where,
            hint="save the values with np.save",
        )  # fmt: skip
    element = abi.plain_dtype(port.dtype) if port.dtype in abi.EXTENSIONS else None
    element = element or abi.numpy_dtype(port.dtype)
    fixed = prod(size for size in port.shape if size is not None) * element.itemsize
    open_count = sum(size is None for size in port.shape)
    data = stream.read((MOST_BYTES if open_count else fixed) + 1)
    if open_count > 1 or (open_count and not fixed):
        raise InputError(
            f"the sizes {port.text} do not follow from the size of a file", where=where,
            hint="save the array with np.save",
        )  # fmt: skip
    if len(data) > MOST_BYTES or (len(data) % fixed if open_count else len(data) != fixed):
        expected = f"a multiple of {fixed}" if open_count else str(fixed)
        size = f"more than {len(data) - 1}" if len(data) > fixed and not open_count else len(data)
        raise InputError(
            "the file has another size than the input",
            where=where,
            why=f"it has {size} bytes, and {port.dtype} {port.text} has {expected}",
        )
    size = len(data) // fixed if open_count else 0
    shape = [size if n is None else n for n in port.shape]
    if port.dtype == "bool" and data.strip(b"\0\1"):
        raise InputError("a byte is neither 0 nor 1", where=where,
                         why=f"the input {port.name!r} takes bool")  # fmt: skip
    return np.frombuffer(bytearray(data), element.newbyteorder("<")).reshape(shape)
