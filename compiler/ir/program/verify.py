"""Proves the properties of a program on which the runtime relies; the runtime itself checks memory
safety only.

On every path, registers are written before they are read.  A `View` precedes the uses of an alias,
and an `Allocate` the uses of a dynamic buffer or an output.  Each output is allocated exactly once,
after the registers of its shape are written.  After a `Collective`, its buffers are used only after
the `Wait` for it.  Collectives of a group have as many ranks as the group.  Only the prologue
writes the registers of the arenas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tcc.errors import InternalError
from tcc.ir.program import (
    COLLECTIVE_DTYPES,
    Alias,
    Arena,
    Body,
    Branch,
    BufferId,
    Collective,
    Dynamic,
    Input,
    Instr,
    Let,
    Output,
    PlanArena,
    Program,
    Reduction,
    Register,
    Symmetric,
    Wait,
    Weight,
    prologue_length,
)
from tcc.ir.program.operands import bodies_of, memory_of, operands, shared_memory
from tcc.ir.program.table import Kind

MAX_DEPTH = 64
MAX_TICKETS = 1 << 16


def verify_program(program: Program) -> None:
    """Raises InternalError, with the instruction, at the first violation."""
    state = _State(program, shared_memory(program))
    for group in program.groups:
        ranks = [rank for ranks in group.members for rank in ranks]
        if min(ranks, default=-1) < 0 or len({*ranks}) < len(ranks):
            raise state.fail(f"group {group.name} has a list of no rank, or a rank twice")
        if len({*map(len, group.members)}) > 1:
            raise state.fail(f"group {group.name} has lists of different lengths")
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
        if isinstance(buffer.place, Arena | Symmetric):
            yield buffer.place.offset
            yield buffer.place.size


@dataclass
class _State:
    """The state of the proof at a point of the program.

    `defined` are the registers that are written on every path, and `ready` the buffers that have
    memory. The registers `frozen` must not be written again.
    """

    program: Program
    shared: Mapping[BufferId, frozenset[BufferId]]
    defined: frozenset[Register] = frozenset()
    ready: frozenset[BufferId] = frozenset()
    frozen: frozenset[Register] = frozenset()
    flying: Mapping[int, Wait] = field(default_factory=dict)  # the pending `Wait` of each ticket
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
        return InternalError(f"program: {what}", where=str(self.at or "end"))

    def step(self, instr: Instr) -> None:
        self.at = instr
        if isinstance(instr, Branch) and (instr.condition < 0) == (instr.when < 0):
            raise self.fail("a branch asks one buffer or one register")
        if isinstance(instr, PlanArena) and not (
            len(instr.offsets) == len(instr.sizes) == len(instr.lives) / 3
        ):
            raise self.fail("a plan has lists of different lengths")
        if isinstance(instr, Wait):
            if self.flying.get(instr.ticket) != instr:
                raise self.fail("no collective with this ticket and these buffers is under way")
            self.flying = {t: wait for t, wait in self.flying.items() if t != instr.ticket}
        self._untouched(instr)
        if isinstance(instr, Collective):
            self._collective(instr)
        named = list(operands(instr))
        for kind, value in named:
            self._use(kind, value, instr)
        for kind, value in named:
            self._make(kind, value)
        after_bodies = [self._run(body) for body in bodies_of(instr)]
        if isinstance(instr, Branch):
            self.defined = after_bodies[0].defined & after_bodies[1].defined
            self.ready = after_bodies[0].ready & after_bodies[1].ready
            self._same_outputs(after_bodies)
        elif after_bodies:
            # The loop may run no trip, so registers and buffers of its body are not available after
            # it.
            self._same_outputs([self, *after_bodies])

    def _use(self, kind: Kind, value: Any, instr: Instr) -> None:
        """Raises InternalError if an operand may not be used in this way at this point."""
        match kind:
            case Kind.USED | Kind.WHEN | Kind.LEAST:
                self.read(value)
            case Kind.READ | Kind.CONDITION | Kind.TOUCHED:
                self._has_memory(value)
            case Kind.WRITTEN:
                self._has_memory(value)
                if isinstance(self._place(value), Input | Weight):
                    raise self.fail(f"writes to buffer {value}, which is read-only")
            case Kind.KERNEL if not 0 <= value < len(self.program.kernels):
                raise self.fail(f"kernel {value} of {len(self.program.kernels)}")
            case Kind.INTEGER if value.is_float:
                raise self.fail(f"reads a size from {value}")
            case Kind.AXIS if isinstance(instr, Let):
                inputs, port = self.program.inputs, instr.a
                if not (0 <= port < len(inputs) and 0 <= value < len(inputs[port].dims)):
                    raise self.fail(f"dimension {value} of input {port}")

    def _make(self, kind: Kind, value: Any) -> None:
        """Updates the state for an operand that the instruction writes, allocates or aims."""
        match kind:
            case Kind.DEFINED:
                self.write(value)
            case Kind.ALLOCATED:
                self._allocate(value)
            case Kind.AIMED:
                if not isinstance(self._place(value), Alias):
                    raise self.fail(f"buffer {value} is no alias")
                self.ready |= {value}

    def _collective(self, instr: Collective) -> None:
        kind = instr.kind
        blocks = kind.sends_blocks or kind.receives_blocks
        if instr.dtype not in COLLECTIVE_DTYPES:
            raise self.fail(f"no collective takes {instr.dtype}")
        if instr.reduction is not Reduction.SUM and not kind.reduces:
            raise self.fail(f"{kind.name.lower()} reduces nothing")
        if instr.ranks < blocks or not 0 <= instr.root < (instr.ranks or 1 << 31):
            raise self.fail(f"rank {instr.root} of {instr.ranks}")
        parts = instr.ranks + (instr.ranks if kind.sends_blocks else 1)
        if len(instr.counts) not in (1, parts if kind.receives_blocks else 1):
            raise self.fail(f"{len(instr.counts)} counts for {kind.name.lower()}")
        if instr.group >= 0 and instr.ranks != self._ranks(instr.group):
            raise self.fail(f"{instr.ranks} ranks in group {instr.group}")
        if instr.ticket in self.flying or not 0 <= instr.ticket < MAX_TICKETS:
            raise self.fail(f"ticket {instr.ticket} is not free")
        self.flying = {**self.flying, instr.ticket: Wait(instr.ticket, instr.send, instr.receive)}

    def _ranks(self, group: int) -> int:
        if group >= len(self.program.groups):
            raise self.fail(f"group {group} of {len(self.program.groups)}")
        return len(self.program.groups[group].members[0])

    def _untouched(self, instr: Instr) -> None:
        """Raises InternalError if an instruction uses memory of a collective in progress."""
        touched = memory_of(instr, self.shared)
        for wait in self.flying.values():
            if not touched.isdisjoint((wait.send, wait.receive)):
                raise self.fail(f"touches a buffer of the collective with ticket {wait.ticket}")

    def finish(self) -> None:
        self.at = None
        if self.flying:
            raise self.fail("a collective is not waited for")
        for port in (*self.program.inputs, *self.program.outputs):
            for register in port.dims:
                self.read(register, f"the shape of {port.name} needs")
        allocated_ports = {
            buffer.place.port
            for number, buffer in enumerate(self.program.buffers)
            if isinstance(buffer.place, Output) and number in self.ready
        }
        for number, port in enumerate(self.program.outputs):
            if number not in allocated_ports and port.state < 0:
                raise self.fail(f"output {port.name} is not allocated on every path")

    # ---- registers ---------------------------------------------------------------------------

    def read(self, register: Register, why: str = "reads") -> None:
        if register not in self.defined:
            raise self.fail(f"{why} register {register}, which no path has surely written")

    def write(self, register: Register) -> None:
        if not 0 <= register < self.program.registers:
            raise self.fail(f"register {register} of {self.program.registers}")
        if register in self.frozen:
            raise self.fail(f"register {register} sizes the arena and is written again")
        self.defined |= {register}

    # ---- buffers -------------------------------------------------------------------------------

    def _in_place(self, port: int) -> bool:
        return self.program.outputs[port].state >= 0

    def _place(self, buffer: BufferId) -> object:
        if not 0 <= buffer < len(self.program.buffers):
            raise self.fail(f"buffer {buffer} of {len(self.program.buffers)}")
        return self.program.buffers[buffer].place

    def _has_memory(self, buffer: BufferId) -> None:
        self._place(buffer)
        if buffer not in self.ready:
            raise self.fail(f"uses buffer {buffer} before it surely has memory")

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

    # ---- control ---------------------------------------------------------------------------------

    def _same_outputs(self, states: list[_State]) -> None:
        """Raises InternalError if some of the paths that join here allocate an output and others
        do not.

        Otherwise the output could be allocated twice, or never.
        """
        for number, buffer in enumerate(self.program.buffers):
            if isinstance(buffer.place, Output) and len({number in s.ready for s in states}) > 1:
                raise self.fail(f"output {buffer.place.port} is allocated on some paths only")

    def _run(self, body: Body) -> _State:
        if self.depth == MAX_DEPTH:
            raise self.fail(f"more than {MAX_DEPTH} bodies in one another")
        inner = replace(self, depth=self.depth + 1)
        inner.defined, inner.ready = self.defined, self.ready
        for instr in body:
            inner.step(instr)
        if inner.flying != self.flying:
            raise self.fail("a body ends with other collectives under way than it began with")
        return inner
