"""Proves of a program what the runtime takes for granted; the runtime checks only memory safety.

Along every path: registers are written before they are read, aliases aimed and dynamic buffers and
outputs allocated before they are used, outputs allocated exactly once and after the registers of
their shape.  The arena's registers are written in the prologue and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import assert_never

from tcc.errors import InternalError
from tcc.ir.program import (
    Alias,
    Allocate,
    Arena,
    Branch,
    BufferId,
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
    Program,
    ReadInt,
    Register,
    View,
    Weight,
    prologue_length,
)

MAX_DEPTH = 64


def verify_program(program: Program) -> None:
    """Raises InternalError, with the instruction, at the first broken promise."""
    state = _State(program)
    length = prologue_length(program)
    for instr in program.body[:length]:
        state.step(instr)
    for register in _arena_registers(program):
        state.read(register, "the arena is sized by")
    state.frozen = frozenset(_arena_registers(program))
    for instr in program.body[length:]:
        state.step(instr)
    state.finish()


def _arena_registers(program: Program) -> Iterable[Register]:
    yield program.arena
    for buffer in program.buffers:
        if isinstance(buffer.place, Arena):
            yield buffer.place.offset
            yield buffer.place.size


@dataclass
class _State:
    """What is known at one point of the program."""

    program: Program
    written: frozenset[Register] = frozenset()
    ready: frozenset[BufferId] = frozenset()
    frozen: frozenset[Register] = frozenset()
    depth: int = 0
    at: Instr | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.ready = frozenset(
            number
            for number, buffer in enumerate(self.program.buffers)
            if not isinstance(buffer.place, Alias | Dynamic | Output)
            or (isinstance(buffer.place, Output) and self._in_place(buffer.place.port))
        )

    def fail(self, what: str) -> InternalError:
        return InternalError(f"program: {what}", where=str(self.at) if self.at else "end")

    def step(self, instr: Instr) -> None:
        self.at = instr
        match instr:
            case Let() | ReadInt() | Check():
                self._size(instr)
            case Allocate(buffer, size):
                self.read(size)
                self._allocate(buffer)
            case View(buffer, base, offset):
                self.read(offset)
                self._use(base)
                if not isinstance(self._place(buffer), Alias):
                    raise self.fail(f"buffer {buffer} is no alias")
                self.ready |= {buffer}
            case Launch():
                self._launch(instr)
            case CallOp():
                self._call(instr)
            case Copy(target, source, size):
                self.read(size)
                self._use(source)
                self._target(target)
            case Branch() | Loop():
                self._nested(instr)
            case _:
                assert_never(instr)

    def finish(self) -> None:
        self.at = None
        for port in (*self.program.inputs, *self.program.outputs):
            for register in port.dims:
                self.read(register, f"the shape of {port.name} needs")
        given = {
            buffer.place.port
            for number, buffer in enumerate(self.program.buffers)
            if isinstance(buffer.place, Output) and number in self.ready
        }
        for number, port in enumerate(self.program.outputs):
            if number not in given and port.state < 0:
                raise self.fail(f"output {port.name} is not allocated on every path")

    # ---- registers ---------------------------------------------------------------------------

    def read(self, register: Register, why: str = "reads") -> None:
        if register not in self.written:
            raise self.fail(f"{why} register {register}, which no path has surely written")

    def write(self, register: Register) -> None:
        if not 0 <= register < self.program.registers:
            raise self.fail(f"register {register} of {self.program.registers}")
        if register in self.frozen:
            raise self.fail(f"register {register} sizes the arena and is written again")
        self.written |= {register}

    def _size(self, instr: Let | ReadInt | Check) -> None:
        match instr:
            case Let(target, op, a, b):
                if op is IntOp.DIM:
                    inputs = self.program.inputs
                    if not (0 <= a < len(inputs) and 0 <= b < len(inputs[a].dims)):
                        raise self.fail(f"dimension {b} of input {a}")
                elif op is not IntOp.CONST:
                    self.read(a)
                    self.read(b)
                self.write(target)
            case ReadInt(target, buffer, dtype):
                self._use(buffer)
                if dtype.is_float:
                    raise self.fail(f"reads a size from {dtype}")
                self.write(target)
            case Check(_, a, b):
                self.read(a)
                self.read(b)
            case _:
                assert_never(instr)

    # ---- buffers -------------------------------------------------------------------------------

    def _in_place(self, port: int) -> bool:
        return self.program.outputs[port].state >= 0

    def _place(self, buffer: BufferId) -> object:
        if not 0 <= buffer < len(self.program.buffers):
            raise self.fail(f"buffer {buffer} of {len(self.program.buffers)}")
        return self.program.buffers[buffer].place

    def _use(self, buffer: BufferId) -> None:
        self._place(buffer)
        if buffer not in self.ready:
            raise self.fail(f"uses buffer {buffer} before it surely has memory")

    def _target(self, buffer: BufferId) -> None:
        self._use(buffer)
        if isinstance(self._place(buffer), Input | Weight):
            raise self.fail(f"writes to buffer {buffer}, which is read-only")

    def _allocate(self, buffer: BufferId) -> None:
        place = self._place(buffer)
        if isinstance(place, Output) and not self._in_place(place.port):
            if buffer in self.ready:
                raise self.fail(f"output {place.port} is allocated twice")
            for register in self.program.outputs[place.port].dims:
                self.read(register, "the shape of the output needs")
        elif not isinstance(place, Dynamic | Output):
            raise self.fail(f"buffer {buffer} has memory of its own")
        self.ready |= {buffer}

    # ---- work and control ------------------------------------------------------------------------

    def _launch(self, launch: Launch) -> None:
        if not 0 <= launch.kernel < len(self.program.kernels):
            raise self.fail(f"kernel {launch.kernel} of {len(self.program.kernels)}")
        if launch.least < 1:
            raise self.fail(f"{launch.least} units for a thread")
        for register in (launch.grid, *launch.ints):
            self.read(register)
        for buffer in launch.buffers:
            self._use(buffer)

    def _call(self, call: CallOp) -> None:
        for ref in (*call.inputs, *call.outputs):
            for register in ref.dims:
                self.read(register)
        for ref in call.inputs:
            self._use(ref.buffer)
        for ref in call.outputs:
            self._target(ref.buffer)
        for register in call.results:
            self.write(register)

    def _nested(self, instr: Branch | Loop) -> None:
        match instr:
            case Branch(condition, then, otherwise, when):
                if when >= 0:
                    self.read(when)
                else:
                    self._use(condition)
                sides = [self._run(then), self._run(otherwise)]
                self.written = sides[0].written & sides[1].written
                self.ready = sides[0].ready & sides[1].ready
                self._same_outputs(sides)
            case Loop(trips, condition, counter, body):
                self.read(trips)
                self.write(counter)
                if condition != -1:
                    self._use(condition)
                # no trip may run, so what the body makes is not there afterwards
                self._same_outputs([self, self._run(body)])
            case _:
                assert_never(instr)

    def _same_outputs(self, sides: list[_State]) -> None:
        """An output that only some paths allocate could be allocated again, or never."""
        for number, buffer in enumerate(self.program.buffers):
            if isinstance(buffer.place, Output) and len({number in s.ready for s in sides}) > 1:
                raise self.fail(f"output {buffer.place.port} is allocated on some paths only")

    def _run(self, body: tuple[Instr, ...]) -> _State:
        if self.depth == MAX_DEPTH:
            raise self.fail(f"more than {MAX_DEPTH} bodies in one another")
        inner = replace(self, depth=self.depth + 1)
        inner.written, inner.ready = self.written, self.ready
        for instr in body:
            inner.step(instr)
        return inner
