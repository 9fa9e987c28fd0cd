"""Reads GGUF files: key-value fields, and tensors as views of the mapped file.

The format is that of docs/gguf.md in the ggml repository, versions 2 and 3.  Every count, length
and offset is checked against the file's size before anything of that size is made.  The library
gguf trusts these numbers, so it does not read the file.
"""

import math
import os
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from mmap import MADV_DONTNEED, mmap
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from tcc.file_kind import GGUF, file_kind
from tcc.frontends.elements import LARGEST_TENSOR
from tcc.frontends.model_file import map_file
from tcc.frontends.weights.blocks import BLOCKS, levels_of
from tcc.frontends.weights.checkpoint import Checkpoint, Levels, StoredTensor, readable
from tcc.frontends.weights.vocabulary import gguf_assets
from tcc.ir.op import Array

# The names of ggml's types by number; `-` is a number without a type.
_TYPES = (
    "F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS"
    " IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 - - - TQ1_0 TQ2_0 - - - MXFP4"
    " NVFP4 Q1_0"
).split()
# The elements of a block, and its NumPy type, by the type's name.
_FORMS = MappingProxyType({"F32": (1, "<f4"), "F16": (1, "<f2"), "BF16": (1, "<u2")} | BLOCKS)
# The types of key-value fields by number, as `struct` writes them; two are no numbers.
_FIELDS, _TEXT, _LIST = "BbHhIif?..Qqd", 8, 9
# The most fields or tensors, and bytes before the elements of tensors.  A large vocabulary has
# 300,000 tokens, 600,000 merges and 16 MiB.
_MOST_ENTRIES, _MOST_BYTES = 1 << 16, 1 << 25
_HINT = "copy the file again, or convert the model again"
# The most files of a model; the largest models have 200.
_MOST_PARTS = 1 << 10


def read_gguf(path: str | os.PathLike[str]) -> Checkpoint:
    """Returns the contents of a GGUF file, whose tensors are read on demand.

    A model in several files is read by its first, `NAME-00001-of-00003.gguf`. Raises `UserError`
    for a file that is not GGUF or is damaged, for missing parts, and for a tensor of a type that
    tcc does not read.
    """
    facts, weights = _file(Path(path))
    with readable(path, _HINT):
        for number, part in enumerate(_later_parts(Path(path), facts), 1):
            own_facts, own_weights = _file(part)
            numbers = [own_facts.get(key) for key in ("split.no", "split.count")]
            if numbers != [number, facts["split.count"]] or own_weights.keys() & weights:
                raise ValueError(f"{part.name} is no part of it, or has a tensor for a second time")
            weights = MappingProxyType({**weights, **own_weights})
        if facts.get("split.tensors.count", len(weights)) != len(weights):
            raise ValueError(f"its parts have {len(weights)} tensors")

    def assets() -> Mapping[str, bytes]:
        with readable(path, _HINT):
            return gguf_assets(facts)

    return Checkpoint("gguf", facts, weights, assets, os.fspath(path))


def _file(path: Path) -> tuple[Mapping[str, Any], Mapping[str, StoredTensor]]:
    """Returns the fields and the tensors of one file."""
    data = map_file(path, "tcc reads GGUF files")
    with readable(path, _HINT):
        header = _Header(data)
        facts = header.facts()
        return facts, header.weights(facts.get("general.alignment", 32))


def _later_parts(path: Path, facts: Mapping[str, Any]) -> list[Path]:
    """Returns the paths of the files behind the first of a model."""
    count = facts.get("split.count", 1)
    if count == 1:
        return []
    if type(count) is not int or not 0 < count <= _MOST_PARTS:
        raise ValueError(f"it is one of {str(count)[:80]} parts")
    end = f"-of-{count:05}.gguf"
    name = path.name.removesuffix(f"-00001{end}")
    if name == path.name or facts.get("split.no"):
        raise ValueError(f"it is one of {count} parts; give the first, NAME-00001{end}")
    return [path.with_name(f"{name}-{number:05}{end}") for number in range(2, count + 1)]


class _Header:
    """A cursor over the bytes before the elements of tensors.

    Methods raise ValueError with a sentence.
    """

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, len(GGUF)
        if data[: len(GGUF)] != GGUF:
            raise ValueError(f"it is {file_kind(data[:64].tobytes()) or 'another file'}")
        version, *self._counts = self._number("I"), self._number("Q"), self._number("Q")
        if version not in (2, 3):
            raise ValueError(f"version {version} of the format is unknown; 2 and 3 are known")
        if max(self._counts) > min(_MOST_ENTRIES, len(data) // 12):
            raise ValueError(f"{len(data)} bytes do not hold {self._counts} tensors and fields")

    def facts(self) -> Mapping[str, Any]:
        """Returns the key-value fields; a list of numbers is an array."""
        facts: dict[str, Any] = {}
        for _ in range(self._counts[1]):
            key = self._text()
            if key in facts:
                raise ValueError(f"it has the field {key[:80]} twice")
            facts[key] = self._value(self._number("I"))
        return MappingProxyType(facts)

    def weights(self, alignment: Any) -> Mapping[str, StoredTensor]:
        """Returns the tensors by name; their descriptions follow the fields."""
        if type(alignment) is not int or alignment % 8 or not 0 < alignment <= 1 << 20:
            raise ValueError(f"the alignment {str(alignment)[:80]} is no multiple of 8 bytes")
        weights: dict[str, StoredTensor] = {}
        described = sorted(self._described() for _ in range(self._counts[0]))
        end = first = -(-self._at // alignment) * alignment
        for offset, size, name, shape, type_name in described:
            start = first + offset
            if name in weights:
                raise ValueError(f"it has the tensor {name[:80]} twice")
            if start < end or start % 8 or start + size > len(self._data):
                raise ValueError(f"tensor {name[:80]} begins in another or ends behind the file")
            end = start + size
            contents = partial(_contents, type_name, shape, self._data[start:end])
            weights[name] = StoredTensor(name, shape, type_name, contents)
        return MappingProxyType(weights)

    def _described(self) -> tuple[int, int, str, tuple[int, ...], str]:
        """Returns the offset and the size of a tensor in bytes, its name, shape and type."""
        name, rank = self._text(), self._number("I")
        sizes = [self._number("Q") for _ in range(min(rank, 5))]
        shape, kind = (*reversed(sizes),), self._number("I")
        type_name = _TYPES[kind] if kind < len(_TYPES) else "-"
        if type_name not in _FORMS:
            types = ", ".join(_FORMS)
            raise ValueError(f"tensor {name[:80]} has the type {type_name} ({kind}), not {types}")
        (columns, form), count = _FORMS[type_name], math.prod(shape)
        if not 0 < rank < 5 or not 0 < count <= LARGEST_TENSOR or shape[-1] % columns:
            raise ValueError(f"tensor {name[:80]} has {count} elements {shape} of {type_name}")
        size = count // columns * np.dtype(form).itemsize
        return self._number("Q"), size, name, shape, type_name

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            return self._number(_form(kind))
        kind, count = self._number("I"), self._number("Q")
        if kind == _TEXT:
            return [self._text() for _ in range(count)]
        form = np.dtype(_form(kind))
        return np.frombuffer(self._bytes(count * form.itemsize), form)

    def _text(self) -> str:
        return str(self._bytes(self._number("Q")), "utf-8")

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _bytes(self, size: int) -> memoryview:
        start = self._at
        self._at += size
        if self._at > min(len(self._data), _MOST_BYTES):
            raise ValueError(f"its header does not end within {len(self._data)} bytes or 32 MiB")
        return self._data[start : self._at]


def _form(kind: int) -> str:
    """Returns the letter of a type of numbers; raises ValueError for other types."""
    form = _FIELDS[kind : kind + 1]
    if form in ("", "."):
        raise ValueError(f"a field holds values of the type {kind}")
    return form


def _contents(type_name: str, shape: Sequence[int], data: memoryview) -> Array | Levels:
    """Returns the elements of a tensor, floats as a view of their bytes."""
    elements = np.frombuffer(data, _FORMS[type_name][1])
    contents = (
        levels_of(type_name, elements, math.prod(shape[:-1]))
        if type_name in BLOCKS
        else elements.reshape(shape)
    )
    # Nothing but views reads pages of the file again, so they need not stay in memory.
    cast(mmap, data.obj).madvise(MADV_DONTNEED)
    return contents
