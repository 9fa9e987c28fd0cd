"""Plans the arena: offsets for all `Arena` buffers, by liveness over the whole program.

Buffers whose lives overlap get disjoint ranges.  Those of static size are placed by the planner
that the pass is given; those of symbolic size share slots with buffers of equal size, behind them.

A position is the place of an instruction in a walk of the program.  What a loop's body touches and
the outside too lives through the whole loop, for its next trip may read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from tcc.errors import InternalError
from tcc.ir.program import (
    Alias,
    Arena,
    Buffer,
    BufferId,
    Check,
    Instr,
    IntOp,
    Let,
    Loop,
    Program,
    Register,
    View,
)
from tcc.ir.program.operands import (
    bodies_of,
    buffers_of,
    defined_registers,
    used_registers,
    walk_instructions,
)
from tcc.passes.memory.merge_buffers import Life, born_behind, laid_over
from tcc.record import record

# Bytes of a cache line, which no two buffers have in common.
ALIGN = 64


@record
class Lifetime:
    """A buffer of `size` bytes that lives at the positions `first` to `last`, both included.

    Its offset is a multiple of `ALIGN`; `over` is the index of a buffer that died before and whose
    offset it gets, or -1.
    """

    first: int
    last: int
    size: int
    over: int


# An offset for each buffer so that those which live at one time are disjoint, and the arena's size.
ArenaPlanner: TypeAlias = Callable[[Sequence[Lifetime]], tuple[Sequence[int], int]]


def plan_arena(program: Program, planner: ArenaPlanner) -> Program:
    """`program` with every arena buffer's offset set, and its arena size."""
    lives = _lives(program.body)
    program = _without_idle(program, lives)
    known = {
        i.target: i.a
        for i in walk_instructions(program.body)
        if isinstance(i, Let) and i.op is IntOp.CONST
    }
    arenas = [n for n, b in enumerate(program.buffers) if isinstance(b.place, Arena)]
    static = {n: known[_size(program, n)] for n in arenas if _size(program, n) in known}
    pairs = laid_over(program.body, lives)
    over = {old: new for old, new in pairs.items() if {old, new} <= set(static)}
    lives |= born_behind(lives, over)
    places = {n: place for place, n in enumerate(static)}
    under = {new: places[old] for old, new in over.items()}
    offsets, total = planner(
        [
            # an empty buffer has an address too
            Lifetime(lives[n].first, lives[n].last, max(size, 1), under.get(n, -1))
            for n, size in static.items()
        ]
    )
    slots = _share_slots([n for n in arenas if n not in static], lives, program)
    return _Emitter(program, dict(zip(static, offsets, strict=True)), total, slots).run()


def _without_idle(program: Program, lives: Mapping[BufferId, Life]) -> Program:
    """Arena buffers that nothing touches (empty values) become aliases that are never aimed."""
    buffers = tuple(
        replace(b, place=Alias()) if isinstance(b.place, Arena) and n not in lives else b
        for n, b in enumerate(program.buffers)
    )
    return replace(program, buffers=buffers)


def _size(program: Program, buffer: BufferId) -> Register:
    place = program.buffers[buffer].place
    assert isinstance(place, Arena)
    return place.size


# ---- liveness -----------------------------------------------------------------------------------


def _lives(body: Sequence[Instr]) -> dict[BufferId, Life]:
    """From the first to the last touch of each buffer, through the views of it."""
    touches: dict[BufferId, set[int]] = {}
    loops: list[tuple[int, int]] = []
    _scan(body, 0, touches, loops)
    # Views of views were aimed later: backwards, lives spread to the innermost base.
    for view in reversed([i for i in walk_instructions(body) if isinstance(i, View)]):
        touches[view.base] |= touches[view.buffer]
    for at in touches.values():
        _through_loops(at, loops)
    return {buffer: Life(min(at), max(at)) for buffer, at in touches.items()}


def _through_loops(touches: set[int], loops: Sequence[tuple[int, int]]) -> None:
    """What is touched inside a loop and outside may be read in any later trip."""
    for start, end in loops:
        inside = [start < at < end for at in touches]
        if any(inside) and not all(inside):
            touches |= {start, end}


def _scan(
    body: Sequence[Instr],
    position: int,
    touches: dict[BufferId, set[int]],
    loops: list[tuple[int, int]],
) -> int:
    """Collects the positions of touches, and of loops' starts and ends; the position behind."""
    for instr in body:
        start = position
        for buffer in buffers_of(instr):
            touches.setdefault(buffer, set()).add(position)
        position += 1
        for inner in bodies_of(instr):
            position = _scan(inner, position, touches, loops)
        if isinstance(instr, Loop):
            loops.append((start, position))
            for buffer in buffers_of(instr):
                touches[buffer].add(position)
            position += 1
    return position


# ---- placement ----------------------------------------------------------------------------------


def _share_slots(
    buffers: list[BufferId], lives: dict[BufferId, Life], program: Program
) -> list[tuple[Register, list[BufferId]]]:
    """Buffers of one size register that do not overlap share a slot."""
    slots: list[tuple[Register, list[BufferId]]] = []
    for number in sorted(buffers, key=lambda n: (lives[n].first, n)):
        size, life = _size(program, number), lives[number]
        for slot_size, members in slots:
            if slot_size == size and all(
                lives[m].last < life.first or lives[m].first > life.last for m in members
            ):
                members.append(number)
                break
        else:
            slots.append((size, [number]))
    return slots


class _Emitter:
    """Writes the plan into the program: offset registers, and symbolic offsets once sizes are
    known.

    Sizes of arena buffers depend on inputs alone, so they are computed at entry, and slots lie one
    behind the other.
    """

    def __init__(
        self,
        program: Program,
        offsets: dict[BufferId, int],
        total: int,
        slots: list[tuple[Register, list[BufferId]]],
    ) -> None:
        self.program, self.offsets, self.total, self.slots = program, offsets, total, slots
        self.registers = program.registers
        self.prologue: list[Instr] = []

    def run(self) -> Program:
        entry, rest = _entry(self.program.body)
        buffers = list(self.program.buffers)
        for number, offset in self.offsets.items():
            buffers[number] = self._at(buffers[number], self._const(offset))
        end = self._const(self.total)
        at_entry = {i.target for i in entry if isinstance(i, Let)}
        align, minus = self._const(ALIGN), self._const(ALIGN - 1)
        for size, members in self.slots:
            if size not in at_entry:
                raise InternalError(f"the size of arena buffer {members[0]} is not known at entry")
            for number in members:
                buffers[number] = self._at(buffers[number], end)
            grown = self._let(IntOp.ADD, self._let(IntOp.ADD, end, size), minus)
            end = self._let(IntOp.MUL, self._let(IntOp.FLOORDIV, grown, align), align)
        body = (*entry, *self.prologue, *rest)
        return replace(
            self.program,
            buffers=tuple(buffers),
            registers=self.registers,
            arena=end,
            body=body,
        )

    def _at(self, buffer: Buffer, offset: Register) -> Buffer:
        assert isinstance(buffer.place, Arena)
        return replace(buffer, place=replace(buffer.place, offset=offset))

    def _const(self, value: int) -> Register:
        return self._let(IntOp.CONST, value, 0)

    def _let(self, op: IntOp, a: int, b: int) -> Register:
        self.registers += 1
        self.prologue.append(Let(self.registers - 1, op, a, b))
        return self.registers - 1


def _entry(body: Sequence[Instr]) -> tuple[tuple[Instr, ...], tuple[Instr, ...]]:
    """All `Let`s that depend on nothing but inputs move to the front, with the entry's checks.

    Registers that loops and branches set hold other values at other times: they stay.
    """
    ready: set[Register] = set()
    inside = (i for instr in body for inner in bodies_of(instr) for i in walk_instructions(inner))
    changing = {register for instr in inside for register in defined_registers(instr)}
    entry: list[Instr] = []
    rest: list[Instr] = []
    for instr in body:
        made = defined_registers(instr)
        known = used_registers(instr) <= ready and not made & changing
        if isinstance(instr, Let | Check) and known:
            entry.append(instr)
            ready |= made
        else:
            rest.append(instr)
    return tuple(entry), tuple(rest)
