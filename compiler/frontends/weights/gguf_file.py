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
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.errors import UserError
from tcc.file_kind import GGUF, file_kind
from tcc.frontends.elements import LARGEST_TENSOR
from tcc.frontends.model_file import map_file
from tcc.frontends.weights.blocks import BLOCKS, levels_of
from tcc.frontends.weights.checkpoint import Checkpoint, Levels, Weight
from tcc.frontends.weights.vocabulary import gguf_assets
from tcc.ir.op import Array

# The names of ggml's types by number; `-` is a number without a type.
_TYPES = (
    "F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS"
    " IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 - - - TQ1_0 TQ2_0 - - - MXFP4"
    " NVFP4 Q1_0"
).split()
_FLOATS = MappingProxyType({"F32": "<f4", "F16": "<f2", "BF16": "<u2"})
# The elements of a block, and its NumPy type, by the type's name.
_FORMS = MappingProxyType({n: (1, np.dtype(form)) for n, form in _FLOATS.items()} | BLOCKS)
# The types of key-value fields by number, as `struct` writes them; two are no numbers.
_FIELDS = "BbHhIif?slQqd"
_TEXT, _LIST = _FIELDS.index("s"), _FIELDS.index("l")
# The most fields or tensors, texts in lists, and bytes before the elements of tensors.  A large
# vocabulary has 300,000 tokens, 600,000 merges and 16 MiB.
_MOST_ENTRIES, _MOST_TEXTS, _MOST_BYTES = 1 << 16, 1 << 20, 1 << 25


def read_gguf(path: str | os.PathLike[str]) -> Checkpoint:
    """Returns the contents of a GGUF file, whose tensors are read on demand.

    Raises `UserError` for a file that is not GGUF or is damaged, for a part of a model in several
    files, and for a tensor of a type that tcc does not read.
    """
    where = os.fspath(path)
    data = map_file(Path(path), "tcc reads GGUF files, of one file each")
    try:
        header = _Header(data)
        facts = header.facts()
        return Checkpoint("gguf", facts, header.weights(facts), gguf_assets(facts), where)
    except ValueError as error:
        raise UserError(
            "the GGUF file cannot be read",
            where=where,
            why=str(error)[:500],
            hint="copy the file again, or convert the model again",
        ) from error


class _Header:
    """A cursor over the bytes before the elements of tensors.

    Methods raise ValueError with a sentence.
    """

    def __init__(self, data: memoryview) -> None:
        self._data, self._at, self._texts = data, len(GGUF), 0
        if data[: len(GGUF)] != GGUF:
            raise ValueError(f"it is {file_kind(data[:64].tobytes()) or 'another file'}")
        version = self._number("I")
        if version not in (2, 3):
            raise ValueError(f"version {version} of the format is unknown; 2 and 3 are known")
        self._tensors, self._fields = self._number("Q"), self._number("Q")
        for count, what in ((self._tensors, "tensors"), (self._fields, "fields")):
            if count > min(_MOST_ENTRIES, len(data) // 12):
                raise ValueError(f"a header of {count} {what} does not fit into {len(data)} bytes")

    def facts(self) -> Mapping[str, Any]:
        """Returns the key-value fields; a list of numbers is an array."""
        facts: dict[str, Any] = {}
        for _ in range(self._fields):
            key = self._text()
            if key in facts:
                raise ValueError(f"it has the field {key[:80]} twice")
            facts[key] = self._value(self._number("I"))
        if facts.get("split.count", 0) not in (0, 1):
            raise ValueError("it is a part of a model; llama-gguf-split --merge joins the parts")
        return MappingProxyType(facts)

    def weights(self, facts: Mapping[str, Any]) -> Mapping[str, Weight]:
        """Returns the tensors by name; their descriptions follow the fields."""
        alignment = facts.get("general.alignment", 32)
        if type(alignment) is not int or alignment % 8 or not 0 < alignment <= 1 << 20:
            raise ValueError(f"the alignment {str(alignment)[:80]} is no multiple of 8 bytes")
        described = [self._description() for _ in range(self._tensors)]
        end = -(-self._at // alignment) * alignment
        places = [self._place(*parts, end, alignment) for parts in described]
        weights: dict[str, Weight] = {}
        for start, stop, weight in sorted(places, key=lambda place: place[0]):
            name = weight.name[:80]
            if weight.name in weights:
                raise ValueError(f"it has the tensor {name} twice")
            if start < end or stop > len(self._data):
                raise ValueError(f"the tensor {name} begins in another or ends behind the file")
            weights[weight.name], end = weight, stop
        return MappingProxyType(weights)

    def _description(self) -> tuple[str, tuple[int, ...], int, int]:
        """Returns the name of a tensor, its shape, the number of its type, and its offset."""
        name, rank = self._text(), self._number("I")
        if not 1 <= rank <= 4:
            raise ValueError(f"the tensor {name[:80]} has {rank} axes")
        sizes = [self._number("Q") for _ in range(rank)]
        return name, tuple(reversed(sizes)), self._number("I"), self._number("Q")

    def _place(
        self, name: str, shape: tuple[int, ...], kind: int, offset: int, first: int, alignment: int
    ) -> tuple[int, int, Weight]:
        """Returns the range of a tensor's bytes, and the tensor; `offset` counts from `first`."""
        stored = _TYPES[kind] if kind < len(_TYPES) else "-"
        if stored not in _FORMS:
            known = ", ".join(_FORMS)
            raise ValueError(
                f"the tensor {name[:80]} has the type {stored} (number {kind}), not {known}"
            )
        columns, form = _FORMS[stored]
        count = math.prod(shape)
        if not 0 < count <= LARGEST_TENSOR or shape[-1] % columns or offset % alignment:
            raise ValueError(
                f"the tensor {name[:80]} of type {stored} has {count} elements {shape} at {offset}"
            )
        start = first + offset
        stop = start + count // columns * form.itemsize
        read = partial(_contents, self._data[start:stop], stored, shape)
        return start, stop, Weight(name, shape, stored, read)

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            return self._number(_number_form(kind))
        kind, count = self._number("I"), self._number("Q")
        if kind == _TEXT:
            self._texts += count
            if self._texts > min(_MOST_TEXTS, len(self._data) // 8):
                raise ValueError(f"{self._texts} texts do not fit into {len(self._data)} bytes")
            return [self._text() for _ in range(count)]
        form = np.dtype(_number_form(kind))
        return np.frombuffer(self._bytes(count * form.itemsize), form)

    def _text(self) -> str:
        return str(self._bytes(self._number("Q")), "utf-8")

    def _number(self, form: str) -> Any:
        form = f"<{form}"
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _bytes(self, size: int) -> memoryview:
        start = self._at
        self._at += size
        if self._at > min(len(self._data), _MOST_BYTES):
            raise ValueError(f"its header does not end within {len(self._data)} bytes or 32 MiB")
        return self._data[start : self._at]


def _number_form(kind: int) -> str:
    """Returns the letter of a field's type, which must be a type of numbers."""
    if kind >= len(_FIELDS) or kind in (_TEXT, _LIST):
        raise ValueError(f"a field holds values of type {kind}")
    return _FIELDS[kind]


def _contents(data: memoryview, stored: str, shape: Sequence[int]) -> Array | Levels:
    """Returns the elements of a tensor, floats as a view of their bytes."""
    elements = np.frombuffer(data, np.uint8)
    if stored in _FLOATS:
        return elements.view(_FLOATS[stored]).reshape(shape)
    return levels_of(stored, elements, math.prod(shape[:-1]))
