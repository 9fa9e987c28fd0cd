"""Encodes a program as the bytes that runtime/src/program.c reads."""

from collections.abc import Sequence
from typing import Any

from tcc.backends.artifact.words import WordWriter
from tcc.ir.program import (
    Collective,
    Instr,
    IntOp,
    Let,
    Place,
    Program,
    Symmetric,
)
from tcc.ir.program.operands import walk_instructions
from tcc.ir.program.table import (
    CODES,
    ENUMS,
    PLACE_CODES,
    Field,
    FieldCount,
    Kind,
    row_of,
)
from tcc.ir.types import DType

MAGIC = 0x0147525043435474
VERSION = 9
# The format's version of programs with collectives; older runtimes must refuse them.
COLLECTIVES = 10
# The format's version of programs whose collectives run in groups of ranks.
GROUPS = 11
HEADER_WORDS = 5


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
