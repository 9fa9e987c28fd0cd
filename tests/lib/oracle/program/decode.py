"""Decodes the bytes of a program, which `backends/artifact/encode_program.py` writes."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from tcc.backends.artifact.encode_program import COLLECTIVES, GROUPS, HEADER_WORDS, MAGIC, VERSION
from tcc.ir.lists import parse_list_type
from tcc.ir.program import Body, Buffer, Port, Program, RankGroup, TensorRef
from tcc.ir.program.table import CODES, ENUMS, INSTRUCTIONS, PLACES, FieldCount, Kind
from tcc.ir.types import DTYPES, DType

MAX_DEPTH = 64
# Maps the code of an instruction to its row, which lists the fields to decode.
_BY_CODE = {CODES[row.node]: row for row in INSTRUCTIONS}
_LIST = 3 << 8 | 64  # the type code of lists; a port's text gives the type of their elements
_DTYPES = {(dtype.dlpack, dtype.bits): dtype for dtype in DTYPES.values()}


def decode_program(data: bytes) -> Program:
    """Returns the program that `encode_program` encoded as `data`; raises ValueError if it is
    damaged."""
    if len(data) < HEADER_WORDS * 8 or len(data) % 8:
        raise ValueError("it has no header")
    magic, version, words, string_bytes, crc = struct.unpack_from(f"<{HEADER_WORDS}q", data)
    if magic != MAGIC:
        raise ValueError("it has no magic number")
    if version not in (VERSION, COLLECTIVES, GROUPS):
        raise ValueError(f"it has version {version}")
    if words < HEADER_WORDS or words * 8 + string_bytes != len(data):
        raise ValueError("it has another size than it says")
    if zlib.crc32(data[HEADER_WORDS * 8 :]) != crc:
        raise ValueError("its checksum is wrong")
    reader = _Reader(struct.unpack_from(f"<{words}q", data), data[words * 8 :], version == GROUPS)
    try:
        return reader.program()
    except LookupError as error:
        raise ValueError("it does not follow its own grammar") from error


class _Reader:
    """Reads words in order; an IndexError, KeyError or ValueError means that the data is
    damaged."""

    def __init__(self, words: tuple[int, ...], strings: bytes, grouped: bool) -> None:
        self._words, self._strings, self._at = words, strings, HEADER_WORDS
        self._grouped = grouped

    def one(self) -> int:
        self._at += 1
        return self._words[self._at - 1]

    def many(self, count: int) -> tuple[int, ...]:
        self._at += self._possible(count)
        return self._words[self._at - count : self._at]

    def string(self) -> str:
        offset, length = self.many(2)
        if offset < 0 or length < 0 or offset + length >= len(self._strings):
            raise ValueError("string")
        return self._strings[offset : offset + length].decode()

    def dtype(self) -> DType:
        word = self.one()
        return _DTYPES[word >> 8, word & 0xFF]

    def program(self) -> Program:
        registers, scratch, arena, inputs, outputs, buffers, kernels = self.many(7)
        if max(inputs, outputs, buffers, kernels) > len(self._words):
            raise ValueError("count")
        program = Program(
            inputs=tuple(self.port() for _ in range(inputs)),
            outputs=tuple(self.port() for _ in range(outputs)),
            registers=registers,
            buffers=tuple(self.buffer() for _ in range(buffers)),
            kernels=tuple(self.string() for _ in range(kernels)),
            scratch=scratch,
            arena=arena,
            groups=tuple(self.group() for _ in range(self.count() if self._grouped else 0)),
            body=self.body(0),
        )
        if self._at != len(self._words):
            raise ValueError("words behind the end")
        return program

    def port(self) -> Port:
        name, word = self.string(), self.one()
        dims, text = self.many(self.one()), self.string()
        dtype = parse_list_type(text) if word == _LIST else _DTYPES[word >> 8, word & 0xFF]
        return Port(name, dtype, dims, text, self.one())

    def group(self) -> RankGroup:
        name, lists, length = self.string(), self.count(), self.count()
        return RankGroup(name, tuple(self.many(length) for _ in range(lists)))

    def buffer(self) -> Buffer:
        code, *numbers = self.many(3)
        if not 0 <= code < len(PLACES):
            raise ValueError("place")
        row = PLACES[code]
        return Buffer(row.node(*numbers[: len(row.fields)]), self.string())

    def body(self, depth: int) -> Body:
        if depth > MAX_DEPTH:
            raise ValueError("body")
        return tuple(self.instr(depth) for _ in range(self.count()))

    def count(self) -> int:
        return self._possible(self.one())

    def _possible(self, count: int) -> int:
        if not 0 <= count <= len(self._words) - self._at:
            raise ValueError("count")
        return count

    def instr(self, depth: int) -> Any:
        row = _BY_CODE[self.one()]
        values: dict[str, Any] = {}
        for field in row.fields:
            if field.form is not FieldCount.ONE:
                values[field.name] = self.count()
            elif field.kind is not Kind.BODY:
                values[field.name] = self.single(field.kind)
        if values.get("when", 0) < 0 and values["condition"] < 0:
            values |= {"when": ~values["condition"], "condition": -1}
        for field in row.fields:
            if field.kind is Kind.BODY:
                values[field.name] = self.body(depth + 1)
            elif field.form is FieldCount.MANY:
                values[field.name] = self.many(values[field.name])
            elif field.form is FieldCount.TENSORS:
                values[field.name] = tuple(self.ref() for _ in range(values[field.name]))
        return row.node(**values)

    def single(self, kind: Kind) -> Any:
        match kind:
            case Kind.STRING | Kind.FUNCTION:
                return self.string()
            case Kind.DTYPE | Kind.INTEGER:
                return self.dtype()
            case _ if kind in ENUMS:
                return ENUMS[kind](self.one())
            case Kind.FLAG:
                return bool(self.one())
            case Kind.WHEN:
                return kind.absent
            case Kind.GROUP if not self._grouped:
                return kind.absent
            case _:
                return self.one()

    def ref(self) -> TensorRef:
        buffer, dtype = self.one(), self.dtype()
        return TensorRef(buffer, dtype, self.many(self.one()))
