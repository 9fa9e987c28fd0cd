"""Host programs of artifacts: instructions, buffers and ports, decoded from their bytes.

`runtime/src/program.h` describes the bytes. The file may be untrusted, so every number that the
reader uses is checked; the numbers of registers, buffers and kernels are checked at the end.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tcc.runtime.instructions import COLLECTIVES, INSTRUCTIONS, OPERATIONS, PLACES, RELATIONS

_MAGIC = 0x0147525043435474
_VERSIONS = (9, 10, 11)
_GROUPS = 11  # the version of programs with groups of ranks
_HEADER_WORDS = 5
_MOST_DEPTH = 64
# Each kind of a field that holds a number of a register or a buffer.
REGISTERS_READ = frozenset(("used", "when", "least"))
BUFFERS_READ = frozenset(("read", "condition"))
_BUFFERS = BUFFERS_READ | {"written", "touched", "allocated", "aimed"}
_OPTIONAL = frozenset(("condition", "when", "least", "group"))


@dataclass(frozen=True, slots=True)
class HostInstruction:
    """An instruction: its `name` in C and its fields by name.

    A field is a number, a text, a list of numbers or of `TensorOperand`s, or a body. `operands` has
    (kind, number) for each number in the fields; absent numbers are left out.
    """

    name: str
    fields: Mapping[str, Any]
    operands: tuple[tuple[str, int], ...]

    @property
    def bodies(self) -> tuple[tuple[HostInstruction, ...], ...]:
        """Returns the bodies of a branch or a loop, in the order of the text."""
        names = ("then", "otherwise", "body")
        return tuple(self.fields[name] for name in names if name in self.fields)


@dataclass(frozen=True, slots=True)
class TensorOperand:
    """An operand of a call: a buffer, the bits of an element, and the registers with its sizes."""

    buffer: int
    bits: int
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProgramBuffer:
    """A buffer: its kind of place, such as "arena", the numbers of the place, and its label."""

    place: str
    numbers: Mapping[str, int]
    label: str


@dataclass(frozen=True, slots=True)
class ProgramPort:
    """An input or output: its name, its type's bits, the registers of its sizes, and the input that
    it updates in place (-1: none)."""

    name: str
    bits: int
    dims: tuple[int, ...]
    state: int


@dataclass(frozen=True, slots=True)
class HostProgram:
    """A program: what the host runs, in order."""

    inputs: tuple[ProgramPort, ...]
    outputs: tuple[ProgramPort, ...]
    buffers: tuple[ProgramBuffer, ...]
    kernels: tuple[str, ...]
    registers: int
    body: tuple[HostInstruction, ...]


def walk(body: Sequence[HostInstruction]) -> Iterator[HostInstruction]:
    """Yields all instructions in order of the text; bodies follow their instruction."""
    for instruction in body:
        yield instruction
        for inner in instruction.bodies:
            yield from walk(inner)


def is_buffer(kind: str) -> bool:
    """True if numbers of this kind are those of buffers."""
    return kind in _BUFFERS


def read_program(data: bytes) -> HostProgram:
    """Returns the program with these bytes; raises ValueError, with the reason, if they are
    damaged."""
    if len(data) < _HEADER_WORDS * 8:
        raise ValueError("the program has no header")
    magic, version, words, string_bytes, checksum = struct.unpack_from(f"<{_HEADER_WORDS}q", data)
    if magic != _MAGIC or version not in _VERSIONS:
        raise ValueError("the program is of another version")
    if words < _HEADER_WORDS or string_bytes < 0 or words * 8 + string_bytes != len(data):
        raise ValueError("the program has another size than it says")
    if zlib.crc32(data[_HEADER_WORDS * 8 :]) != checksum:
        raise ValueError("the program's checksum is wrong")
    numbers = struct.unpack_from(f"<{words}q", data)
    try:
        program = _Reader(numbers, data[words * 8 :], version == _GROUPS).program()
    except LookupError as error:
        raise ValueError("the program does not follow its own grammar") from error
    _check(program)
    return program


def _check(program: HostProgram) -> None:
    """Raises ValueError if the number of a register, buffer, kernel or word is out of range."""
    ends = {kind: len(program.buffers) for kind in _BUFFERS} | {"kernel": len(program.kernels)}
    ends |= {"relation": len(RELATIONS), "collective": len(COLLECTIVES)}
    ends |= dict.fromkeys((*REGISTERS_READ, "defined"), program.registers)
    operands = (pair for instruction in walk(program.body) for pair in instruction.operands)
    if not all(0 <= number < ends[kind] for kind, number in operands if kind in ends):
        raise ValueError("the program has a number out of range")
    ports = (*program.inputs, *program.outputs)
    if not all(0 <= dim < program.registers for port in ports for dim in port.dims):
        raise ValueError("the program has a number out of range")


class _Reader:
    """Reads words in order; a LookupError or ValueError means that the data is damaged."""

    def __init__(self, words: Sequence[int], strings: bytes, grouped: bool) -> None:
        self._words, self._strings, self._at = words, strings, _HEADER_WORDS
        self._grouped = grouped

    def program(self) -> HostProgram:
        registers, _, _, inputs, outputs, buffers, kernels = self._many(7)
        if not 0 <= max(inputs, outputs, buffers, kernels) <= len(self._words):
            raise ValueError("the program has a count out of range")
        program_inputs = tuple(self._port() for _ in range(inputs))
        program_outputs = tuple(self._port() for _ in range(outputs))
        program_buffers = tuple(self._buffer() for _ in range(buffers))
        names = tuple(self._string() for _ in range(kernels))
        for _ in range(self._count() if self._grouped else 0):
            self._string()
            lists, length = self._count(), self._count()
            self._many(lists * length)
        body = self._body(0)
        if self._at != len(self._words):
            raise ValueError("the program has words behind its end")
        return HostProgram(program_inputs, program_outputs, program_buffers, names, registers, body)

    def _one(self) -> int:
        self._at += 1
        return self._words[self._at - 1]

    def _many(self, count: int) -> tuple[int, ...]:
        self._at += self._possible(count)
        return tuple(self._words[self._at - count : self._at])

    def _count(self) -> int:
        return self._possible(self._one())

    def _possible(self, count: int) -> int:
        if not 0 <= count <= len(self._words) - self._at:
            raise ValueError("the program has a count out of range")
        return count

    def _string(self) -> str:
        offset, length = self._many(2)
        if offset < 0 or length < 0 or offset + length >= len(self._strings):
            raise ValueError("the program has a text out of range")
        return self._strings[offset : offset + length].decode()

    def _port(self) -> ProgramPort:
        name, dtype = self._string(), self._one()
        dims = self._many(self._count())
        self._string()
        return ProgramPort(name, dtype & 0xFF, dims, self._one())

    def _buffer(self) -> ProgramBuffer:
        code, *numbers = self._many(3)
        if not 0 <= code < len(PLACES):
            raise ValueError("the program has an unknown place")
        place, names = PLACES[code]
        return ProgramBuffer(
            place, MappingProxyType(dict(zip(names, numbers, strict=False))), self._string()
        )

    def _body(self, depth: int) -> tuple[HostInstruction, ...]:
        if depth > _MOST_DEPTH:
            raise ValueError("the program's bodies are too deep")
        return tuple(self._instruction(depth) for _ in range(self._count()))

    def _instruction(self, depth: int) -> HostInstruction:
        code = self._one()
        if not 0 <= code < len(INSTRUCTIONS):
            raise ValueError("the program has an unknown instruction")
        name, layout = INSTRUCTIONS[code]
        fields: dict[str, Any] = {}
        for field, kind, form in layout:
            if form != "one":
                fields[field] = self._count()
            elif kind != "body":
                fields[field] = self._single(kind)
        if "when" in fields and fields["condition"] < 0:  # the word of an absent buffer
            fields |= {"when": ~fields["condition"], "condition": -1}
        for field, kind, form in layout:
            if kind == "body":
                fields[field] = self._body(depth + 1)
            elif form == "many":
                fields[field] = self._many(fields[field])
            elif form == "tensors":
                fields[field] = tuple(self._tensor() for _ in range(fields[field]))
        operands = tuple(pair for field, kind, _ in layout for pair in _pairs(kind, fields[field]))
        return HostInstruction(name, MappingProxyType(fields), operands)

    def _single(self, kind: str) -> int | str:
        if kind in ("string", "function"):
            return self._string()
        if kind == "when" or (kind == "group" and not self._grouped):
            return -1
        return self._one()

    def _tensor(self) -> TensorOperand:
        buffer, dtype = self._one(), self._one()
        return TensorOperand(buffer, dtype & 0xFF, self._many(self._count()))


def _pairs(kind: str, value: Any) -> Iterator[tuple[str, int]]:
    """Yields (kind, number) for each number of a field."""
    if isinstance(value, int):
        if value >= 0 or kind not in _OPTIONAL:
            yield kind, value
    elif isinstance(value, tuple) and kind != "body":
        for item in value:
            if isinstance(item, TensorOperand):
                yield kind, item.buffer
                yield from (("used", dim) for dim in item.dims)
            else:
                yield kind, item


# ---- sizes ---------------------------------------------------------------------------------------


def register_values(program: HostProgram, shapes: Mapping[str, Sequence[int]]) -> dict[int, int]:
    """Returns the values of the registers that the `shapes` of inputs by name determine.

    A register that several instructions write, or that data decides, has no value.
    """
    dims = {
        (number, axis): size
        for number, port in enumerate(program.inputs)
        for axis, size in enumerate(shapes.get(port.name, ()))
    }
    instructions = list(walk(program.body))
    writes: dict[int, int] = {}
    for instruction in instructions:
        for kind, register in instruction.operands:
            if kind == "defined":
                writes[register] = writes.get(register, 0) + 1
    values: dict[int, int] = {}
    for instruction in instructions:
        if instruction.name == "let" and writes[instruction.fields["target"]] == 1:
            fields = instruction.fields
            value = let_value(fields["op"], fields["a"], fields["b"], values, dims)
            if value is not None:
                values[fields["target"]] = value
    return values


def let_value(
    op: int, a: int, b: int, values: Mapping[int, int], dims: Mapping[tuple[int, int], int]
) -> int | None:
    """Returns the value of a `let`, or None if it is unknown or does not fit in 64 bits.

    `values` has the known values of registers, `dims` the known sizes of inputs by (port, axis).
    """
    name = OPERATIONS[op] if 0 <= op < len(OPERATIONS) else ""
    if name == "const":
        return a
    if name == "dim":
        return dims.get((a, b))
    lhs, rhs = values.get(a), values.get(b)
    if lhs is None or rhs is None or name in ("rank", "seed", "capacity"):
        return None
    return compute(name, lhs, rhs)


def compute(name: str, lhs: int, rhs: int) -> int | None:
    """Returns the value of an operation on integers; None if there is none in 64 bits."""
    if name in ("floordiv", "mod") and rhs <= 0:
        return None
    match name:
        case "add":
            value = lhs + rhs
        case "sub":
            value = lhs - rhs
        case "mul":
            value = lhs * rhs
        case "floordiv":
            value = lhs // rhs
        case "mod":
            value = lhs % rhs
        case "min":
            value = min(lhs, rhs)
        case "max":
            value = max(lhs, rhs)
        case _:
            return None
    return value if -(1 << 63) <= value < 1 << 63 else None
