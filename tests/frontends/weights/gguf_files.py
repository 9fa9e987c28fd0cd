"""GGUF files for tests: valid files by the library gguf, other files byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def text(value: str | bytes) -> bytes:
    """Returns a text with its length, as GGUF stores it."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def field(key: str, kind: int, value: bytes) -> bytes:
    """Returns a key-value field of a type's number and the bytes of its value."""
    return text(key) + struct.pack("<I", kind) + value


def tensor(
    name: str, sizes: Sequence[int], kind: int = 0, offset: int = 0, rank: int | None = None
) -> bytes:
    """Returns the description of a tensor; `sizes` begin with the innermost axis."""
    count = len(sizes) if rank is None else rank
    numbers = struct.pack(f"<I{len(sizes)}QIQ", count, *sizes, kind, offset)
    return text(name) + numbers


def file_bytes(
    fields: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    content: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    align: int = 32,
) -> bytes:
    """Returns a file of fields, tensors and the elements of tensors."""
    counted = (len(tensors), len(fields)) if counts is None else counts
    head = b"GGUF" + struct.pack("<IQQ", version, *counted) + b"".join((*fields, *tensors))
    return head + bytes(-len(head) % align) + content


def written(
    path: Path,
    tensors: Mapping[str, tuple[Array, str]],
    facts: Mapping[str, Any] | None = None,
    architecture: str = "llama",
) -> Path:
    """Writes a file with the library; tensors are floats, or bytes of blocks with the name of their
    type."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (facts or {}).items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    for name, (array, format_name) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType[format_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
