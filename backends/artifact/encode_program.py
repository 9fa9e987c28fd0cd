"""Program <-> bytes: the form that runtime/src/program.c reads (its header states the layout)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import assert_never

from tcc.errors import InternalError, UserError
from tcc.ir.lists import parse_list_type
from tcc.ir.program import (
    Alias,
    Allocate,
    Arena,
    Branch,
    Buffer,
    CallOp,
    Check,
    Copy,
    Dynamic,
    Input,
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    Output,
    Place,
    Port,
    Program,
    ReadInt,
    Relation,
    State,
    TensorRef,
    View,
    Weight,
)
from tcc.ir.types import DTYPES, DType

MAGIC = 0x0147525043435474
VERSION = 2
HEADER_WORDS = 5
MAX_DEPTH = 64

# Positions are the codes in the bytes; runtime.h has the same order.
_PLACES = (Input, Output, Weight, Arena, State, Dynamic, Alias)
_LET, _READ, _CHECK, _ALLOCATE, _VIEW, _LAUNCH, _CALL, _COPY, _BRANCH, _LOOP = range(10)

_LIST = 3 << 8 | 64  # their types are in the ports' texts
_BY_CODE = {(dtype.dlpack, dtype.bits): dtype for dtype in DTYPES.values()}


def encode_program(program: Program) -> bytes:
    """The bytes of `program`, equal for equal programs.

    Raises InternalError where a number does not fit in 64 bits; the runtime checks the rest.
    """
    writer = _Writer()
    writer.program(program)
    strings = bytes(writer.strings)
    strings += bytes(-len(strings) % 8)
    try:
        body = struct.pack(f"<{len(writer.words)}q", *writer.words)
    except struct.error as error:
        raise InternalError("a program has a number beyond 64 bits", where="encode") from error
    words = HEADER_WORDS + len(writer.words)
    head = (MAGIC, VERSION, words, len(strings), zlib.crc32(body + strings))
    return struct.pack("<5q", *head) + body + strings


class _Writer:
    """Appends words; equal strings are stored once."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.strings = bytearray()
        self._offsets: dict[str, tuple[int, int]] = {}

    def put(self, *words: int) -> None:
        self.words.extend(words)

    def string(self, text: str) -> None:
        if text not in self._offsets:
            data = text.encode()
            self._offsets[text] = (len(self.strings), len(data))
            self.strings += data + b"\0"
        self.put(*self._offsets[text])

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
            self.put(_PLACES.index(type(buffer.place)), *_place_words(buffer.place))
            self.string(buffer.label)
        for kernel in program.kernels:
            self.string(kernel)
        self.body(program.body)

    def body(self, body: Iterable[Instr]) -> None:
        body = tuple(body)
        self.put(len(body))
        for instr in body:
            self.instr(instr)

    def instr(self, instr: Instr) -> None:
        match instr:
            case Let(target, op, a, b):
                self.put(_LET, target, op.value, a, b)
            case ReadInt(target, buffer, dtype, element):
                self.put(_READ, target, buffer)
                self.dtype(dtype)
                self.put(element)
            case Check(relation, a, b, message):
                self.put(_CHECK, relation.value, a, b)
                self.string(message)
            case Allocate(buffer, size, keep):
                self.put(_ALLOCATE, buffer, size, int(keep))
            case View(buffer, base, offset):
                self.put(_VIEW, buffer, base, offset)
            case Launch(kernel, grid, buffers, ints, least):
                self.put(_LAUNCH, kernel, grid, least, len(buffers), len(ints))
                self.put(*buffers, *ints)
            case CallOp():
                self.call(instr)
            case Copy(target, source, size):
                self.put(_COPY, target, source, size)
            case Branch() | Loop():
                self.nested(instr)
            case _:
                assert_never(instr)

    def nested(self, instr: Branch | Loop) -> None:
        match instr:
            case Branch(condition, then, otherwise, when):
                self.put(_BRANCH, condition if when < 0 else ~when)
                self.body(then)
                self.body(otherwise)
            case Loop(trips, condition, counter, body):
                self.put(_LOOP, trips, condition, counter)
                self.body(body)
            case _:
                assert_never(instr)

    def call(self, instr: CallOp) -> None:
        self.put(_CALL)
        self.string(instr.op)
        self.put(len(instr.inputs), len(instr.outputs), len(instr.ints), len(instr.results))
        for ref in (*instr.inputs, *instr.outputs):
            self.put(ref.buffer)
            self.dtype(ref.dtype)
            self.put(len(ref.dims), *ref.dims)
        self.put(*instr.ints, *instr.results)


def _place_words(place: Place) -> tuple[int, int]:
    match place:
        case Input(port) | Output(port):
            return port, 0
        case Weight(offset, size) | Arena(offset, size):
            return offset, size
        case State(size):
            return size, 0
        case Dynamic() | Alias():
            return 0, 0
        case _:
            assert_never(place)


# ---- and back -----------------------------------------------------------------------------------


def decode_program(data: bytes) -> Program:
    """The program that `encode_program` gave `data` for; raises UserError for damaged bytes."""
    if len(data) < HEADER_WORDS * 8 or len(data) % 8:
        raise _damaged("it has no header")
    magic, version, words, string_bytes, crc = struct.unpack_from(f"<{HEADER_WORDS}q", data)
    if magic != MAGIC:
        raise _damaged("it has no magic number")
    if version != VERSION:
        raise UserError(
            "the artifact's program is of another version",
            why=f"it has version {version}, this tcc reads version {VERSION}",
            hint="compile the model again",
        )
    if words < HEADER_WORDS or words * 8 + string_bytes != len(data):
        raise _damaged("it has another size than it says")
    if zlib.crc32(data[HEADER_WORDS * 8 :]) != crc:
        raise _damaged("its checksum is wrong")
    reader = _Reader(struct.unpack_from(f"<{words}q", data), data[words * 8 :])
    try:
        return reader.program()
    except (IndexError, KeyError, ValueError) as error:
        raise _damaged("it does not follow its own grammar") from error


def _damaged(why: str) -> UserError:
    return UserError("the artifact's program is damaged", why=why, hint="compile the model again")


def _place(code: int, a: int, b: int) -> Place:
    kind = _PLACES[code] if code >= 0 else None
    if kind is Weight:
        return Weight(a, b)
    if kind is Arena:
        return Arena(a, b)
    if kind is Input:
        return Input(a)
    if kind is Output:
        return Output(a)
    if kind is State:
        return State(a)
    if kind is Dynamic:
        return Dynamic()
    if kind is Alias:
        return Alias()
    raise ValueError("place")


class _Reader:
    """Reads words in order; IndexError, KeyError or ValueError mean damage."""

    def __init__(self, words: tuple[int, ...], strings: bytes) -> None:
        self._words, self._strings, self._at = words, strings, HEADER_WORDS

    def one(self) -> int:
        self._at += 1
        return self._words[self._at - 1]

    def many(self, count: int) -> tuple[int, ...]:
        if not 0 <= count <= len(self._words) - self._at:
            raise ValueError("count")
        self._at += count
        return self._words[self._at - count : self._at]

    def string(self) -> str:
        offset, length = self.many(2)
        if offset < 0 or length < 0 or offset + length >= len(self._strings):
            raise ValueError("string")
        return self._strings[offset : offset + length].decode()

    def dtype(self) -> DType:
        word = self.one()
        return _BY_CODE[word >> 8, word & 0xFF]

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
            body=self.body(0),
        )
        if self._at != len(self._words):
            raise ValueError("words behind the end")
        return program

    def port(self) -> Port:
        name, word = self.string(), self.one()
        dims, text = self.many(self.one()), self.string()
        dtype = parse_list_type(text) if word == _LIST else _BY_CODE[word >> 8, word & 0xFF]
        return Port(name, dtype, dims, text, self.one())

    def buffer(self) -> Buffer:
        code, a, b = self.many(3)
        return Buffer(_place(code, a, b), self.string())

    def body(self, depth: int) -> tuple[Instr, ...]:
        count = self.one()
        if depth > MAX_DEPTH or not 0 <= count <= len(self._words):
            raise ValueError("body")
        return tuple(self.instr(depth) for _ in range(count))

    def instr(self, depth: int) -> Instr:
        code = self.one()
        if code == _BRANCH:
            asked = self.one()
            condition, when = (asked, -1) if asked >= 0 else (-1, ~asked)
            return Branch(condition, self.body(depth + 1), self.body(depth + 1), when)
        if code == _LOOP:
            trips, condition, counter = self.many(3)
            return Loop(trips, condition, counter, self.body(depth + 1))
        if code == _CALL:
            return self.call()
        if code == _LAUNCH:
            kernel, grid, least, n_buffers, n_ints = self.many(5)
            return Launch(kernel, grid, self.many(n_buffers), self.many(n_ints), least)
        return self.simple(code)

    def simple(self, code: int) -> Instr:
        if code == _LET:
            target, op, a, b = self.many(4)
            return Let(target, IntOp(op), a, b)
        if code == _READ:
            target, buffer = self.many(2)
            return ReadInt(target, buffer, self.dtype(), self.one())
        if code == _CHECK:
            relation, a, b = self.many(3)
            return Check(Relation(relation), a, b, self.string())
        if code == _ALLOCATE:
            buffer, size, keep = self.many(3)
            return Allocate(buffer, size, bool(keep))
        if code == _VIEW:
            return View(*self.many(3))
        if code == _COPY:
            return Copy(*self.many(3))
        raise ValueError("instruction")

    def call(self) -> CallOp:
        op = self.string()
        n_inputs, n_outputs, n_ints, n_results = self.many(4)
        if max(n_inputs, n_outputs) > len(self._words):
            raise ValueError("count")
        inputs = tuple(self.ref() for _ in range(n_inputs))
        outputs = tuple(self.ref() for _ in range(n_outputs))
        return CallOp(op, inputs, outputs, self.many(n_ints), self.many(n_results))

    def ref(self) -> TensorRef:
        buffer, dtype = self.one(), self.dtype()
        return TensorRef(buffer, dtype, self.many(self.one()))
