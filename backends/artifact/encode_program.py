"""Encodes a program as the bytes that runtime/src/program.c reads, and decodes it."""

import struct
import zlib
from collections.abc import Sequence
from typing import Any

from tcc.backends.artifact.words import WordWriter
from tcc.errors import UserError
from tcc.ir.lists import parse_list_type
from tcc.ir.program import (
    Body,
    Buffer,
    Collective,
    Instr,
    IntOp,
    Let,
    Place,
    Port,
    Program,
    RankGroup,
    Symmetric,
    TensorRef,
)
from tcc.ir.program.operands import walk_instructions
from tcc.ir.program.table import (
    CODES,
    ENUMS,
    INSTRUCTIONS,
    PLACE_CODES,
    PLACES,
    Field,
    FieldCount,
    Kind,
    row_of,
)
from tcc.ir.types import DTYPES, DType

MAGIC = 0x0147525043435474
VERSION = 9
# The format's version of programs with collectives; older runtimes must refuse them.
COLLECTIVES = 10
# The format's version of programs whose collectives run in groups of ranks.
GROUPS = 11
HEADER_WORDS = 5
MAX_DEPTH = 64

# Maps the code of an instruction to its row, which lists the fields to decode.
_BY_CODE = {CODES[row.node]: row for row in INSTRUCTIONS}
_LIST = 3 << 8 | 64  # the type code of lists; a port's text gives the type of their elements
_DTYPES = {(dtype.dlpack, dtype.bits): dtype for dtype in DTYPES.values()}


def encode_program(program: Program) -> bytes:
    """Returns the bytes of `program`; equal programs give equal bytes.

    Raises InternalError if a number does not fit in 64 bits. The runtime checks everything else.
    """
    writer = _Writer()
    writer.program(program)
    talks = any(map(_needs_comm, walk_instructions(program.body)))
    talks |= any(isinstance(buffer.place, Symmetric) for buffer in program.buffers)
    version = GROUPS if program.groups else COLLECTIVES if talks else VERSION
    return writer.table(MAGIC, version, 8)


def _needs_comm(instr: Instr) -> bool:
    if isinstance(instr, Let):
        return instr.op is IntOp.RANK
    return isinstance(instr, Collective)


class _Writer(WordWriter):
    def dtype(self, dtype: DType) -> None:
        self.put(dtype.dlpack << 8 | dtype.bits)

    def program(self, program: Program) -> None:
        self.put(program.registers, program.scratch, program.arena)
        self.put(len(program.inputs), len(program.outputs))
        self.put(len(program.buffers), len(program.kernels))
        for port in (*program.inputs, *program.outputs):
            self.string(port.name)
            self.dtype(port.dtype)
            self.put(len(port.dims), *port.dims)
            self.string(port.text)
            self.put(port.state)
        for buffer in program.buffers:
            self.place(buffer.place)
            self.string(buffer.label)
        for kernel in program.kernels:
            self.string(kernel)
        self.grouped = bool(program.groups)
        if self.grouped:
            self.put(len(program.groups))
        for group in program.groups:
            self.string(group.name)
            self.put(len(group.members), len(group.members[0]))
            for ranks in group.members:
                self.put(*ranks)
        self.body(program.body)

    def place(self, place: Place) -> None:
        """Writes a buffer's place as three words: a code for the kind of place, and two fields.

        A kind with fewer than two fields has 0 in place of the missing ones.
        """
        numbers = [getattr(place, field.name) for field in row_of(place).fields]
        self.put(PLACE_CODES[type(place)], *numbers, *(0 for _ in range(2 - len(numbers))))

    def body(self, body: Sequence[Instr]) -> None:
        self.put(len(body))
        for instr in body:
            self.put(CODES[type(instr)])
            values = [(field, getattr(instr, field.name)) for field in row_of(instr).fields]
            for field, value in values:
                if field.form is not FieldCount.ONE:
                    self.put(len(value))
                elif field.kind is not Kind.BODY:
                    self.single(field.kind, value)
            for field, value in values:
                self.several(field, value)

    def single(self, kind: Kind, value: Any) -> None:
        match kind:
            case Kind.STRING | Kind.FUNCTION:
                self.string(value)
            case Kind.DTYPE | Kind.INTEGER:
                self.dtype(value)
            case _ if kind in ENUMS:
                self.put(value.value)
            case Kind.WHEN:
                if value != kind.absent:
                    self.words[-1] = ~value
            case Kind.GROUP if not self.grouped:
                pass
            case _:
                self.put(int(value))

    def several(self, field: Field, value: Any) -> None:
        if field.kind is Kind.BODY:
            self.body(value)
        elif field.form is FieldCount.MANY:
            self.put(*value)
        elif field.form is FieldCount.TENSORS:
            for ref in value:
                self.put(ref.buffer)
                self.dtype(ref.dtype)
                self.put(len(ref.dims), *ref.dims)


# ---- decoding ------------------------------------------------------------------------------------


def decode_program(data: bytes) -> Program:
    """Returns the program that `encode_program` encoded as `data`; raises UserError if it is
    damaged."""
    if len(data) < HEADER_WORDS * 8 or len(data) % 8:
        raise _damaged("it has no header")
    magic, version, words, string_bytes, crc = struct.unpack_from(f"<{HEADER_WORDS}q", data)
    if magic != MAGIC:
        raise _damaged("it has no magic number")
    if version not in (VERSION, COLLECTIVES, GROUPS):
        raise UserError(
            "the artifact's program is of another version",
            why=f"it has version {version}, this tcc reads {VERSION}, {COLLECTIVES} and {GROUPS}",
            hint="compile the model again",
        )
    if words < HEADER_WORDS or words * 8 + string_bytes != len(data):
        raise _damaged("it has another size than it says")
    if zlib.crc32(data[HEADER_WORDS * 8 :]) != crc:
        raise _damaged("its checksum is wrong")
    reader = _Reader(struct.unpack_from(f"<{words}q", data), data[words * 8 :], version == GROUPS)
    try:
        return reader.program()
    except (IndexError, KeyError, ValueError) as error:
        raise _damaged("it does not follow its own grammar") from error


def _damaged(why: str) -> UserError:
    return UserError("the artifact's program is damaged", why=why, hint="compile the model again")


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
