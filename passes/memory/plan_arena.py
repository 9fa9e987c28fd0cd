"""Plans the arena: gives each `Arena` buffer an offset, by the buffers' lives in the program.

Buffers whose lives overlap get disjoint ranges.  If all sizes are static, the argument `planner`
chooses the offsets.  If inputs decide some sizes, each run plans all offsets from the lives.
Operands and results of collectives lie in symmetric memory, where ranks read and write each other's
blocks.  That memory has a plan of its own.

A position is the index of an instruction in a walk of the program, bodies included.  A buffer that
is used both inside and outside of a loop is live in the whole loop, because the next iteration may
read it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeAlias

from tcc.frozen import frozen
from tcc.ir.program import (
    Alias,
    Arena,
    Body,
    BufferId,
    Check,
    Collective,
    Instr,
    IntOp,
    Let,
    Loop,
    PlanArena,
    Program,
    Register,
    Symmetric,
    View,
    constant_registers,
)
from tcc.ir.program.operands import (
    bodies_of,
    buffers_of,
    defined_registers,
    used_registers,
    walk_instructions,
)
from tcc.passes.memory.merge_buffers import (
    LiveRange,
    born_behind,
    known_sizes,
    laid_over,
    most_live,
)
from tcc.zipped import zip_equal

# The bytes of a cache line. Two buffers never share a line.
ALIGN = 64


@frozen
class Lifetime:
    """A buffer of `size` bytes that is live from position `first` to `last`, both included.

    Its offset is a multiple of `ALIGN`.  If `over` is not -1, the buffer gets the offset of the
    buffer with that index, whose life ends before.
    """

    first: int
    last: int
    size: int
    over: int


# A function that returns an offset for each buffer, and the arena's size. Buffers that are live at
# the same time must not overlap.
ArenaPlanner: TypeAlias = Callable[[Sequence[Lifetime]], tuple[Sequence[int], int]]


def plan_arena(program: Program, planner: ArenaPlanner, *, shared: bool = True) -> Program:
    """Returns `program` with the offsets of all arena buffers, and the size of its arena.

    If `shared`, ranks have symmetric memory, and operands and results of collectives lie there.
    """
    lives, over = arena_lives(program.body)
    program = _without_idle(program, lives)
    exchanged = _exchanged(program) - {*over, *over.values()} if shared else set()
    sizes = {n: b.place.size for n, b in enumerate(program.buffers) if isinstance(b.place, Arena)}
    common = {n: sizes.pop(n) for n in sorted(exchanged)}
    if common:
        program = _planned(program, Symmetric, common, lives, {}, planner)
    return _planned(program, Arena, sizes, lives, over, planner)


def _exchanged(program: Program) -> set[BufferId]:
    """Returns the arena buffers in which ranks read and write each other's blocks.

    Symmetric memory belongs to all ranks, or to the ranks of one group.  So the set is empty if the
    program has collectives of several groups, but none of all ranks.  It is also empty if constants
    make blocks unequal: then each rank has its own program, and their plans differ.
    """
    collectives = [i for i in walk_instructions(program.body) if isinstance(i, Collective)]
    groups = {i.group for i in collectives}
    block_counts = {count for i in collectives if len(i.counts) > 1 for count in i.counts}
    if (-1 not in groups and len(groups) > 1) or block_counts & constant_registers(program).keys():
        return set()
    exchanged: set[BufferId] = set()
    for instr in collectives:
        kind, buffers = instr.kind, {instr.send, instr.receive}
        if kind.sends_blocks != kind.receives_blocks:
            buffers = {instr.send if kind.sends_blocks else instr.receive}
        elif len(instr.counts) > 1:  # blocks of different ranks differ in size
            continue
        if all(isinstance(program.buffers[n].place, Arena) for n in buffers):
            exchanged |= buffers
    return exchanged


def _planned(
    program: Program,
    kind: type[Arena | Symmetric],
    sizes: Mapping[BufferId, Register],
    lives: Mapping[BufferId, LiveRange],
    over: Mapping[BufferId, BufferId],
    planner: ArenaPlanner,
) -> Program:
    """Returns `program` with offsets for the buffers of `sizes`.

    The buffers get places of type `kind`.

    `sizes` maps each buffer to the register of its bytes.  `lives` and `over` are those of
    `arena_lives`.
    """
    places = {n: place for place, n in enumerate(sizes)}
    under = {new: places[old] for old, new in over.items()}
    spans = [(lives[n].first, lives[n].last, under.get(n, -1)) for n in sizes]
    constants = constant_registers(program)
    *offsets, end = registers = range(program.registers, program.registers + len(sizes) + 1)
    plan: Sequence[Instr]
    if set(sizes.values()) <= set(constants):
        numbers, length = planner(
            [  # an empty buffer counts as one byte, because it needs its own address
                Lifetime(first, last, max(constants[size], 1), below)
                for (first, last, below), size in zip_equal(spans, sizes.values())
            ]
        )
        plan = [Let(r, IntOp.CONST, v) for r, v in zip_equal(registers, (*numbers, length))]
    else:
        lifetimes = tuple(chain.from_iterable(spans))
        plan = [PlanArena(end, tuple(offsets), tuple(sizes.values()), lifetimes)]
    buffers = list(program.buffers)
    for (buffer, size), offset in zip_equal(sizes.items(), offsets):
        buffers[buffer] = replace(buffers[buffer], place=kind(offset, size))
    # The entry computes the sizes of all arena buffers from the inputs.
    entry, remaining = _entry(program.body)
    return replace(
        program,
        buffers=tuple(buffers),
        registers=program.registers + len(registers),
        arena=end if kind is Arena else program.arena,
        body=(*entry, *plan, *remaining),
    )


def _without_idle(program: Program, lives: Mapping[BufferId, LiveRange]) -> Program:
    """Returns `program` with an alias in place of each arena buffer that nothing uses.

    The buffer belongs to an empty value, and the alias is never set.
    """
    buffers = tuple(
        replace(b, place=Alias()) if isinstance(b.place, Arena) and n not in lives else b
        for n, b in enumerate(program.buffers)
    )
    return replace(program, buffers=buffers)


def live_bytes(program: Program, dims: Mapping[tuple[int, int], int]) -> int:
    """Returns the largest number of bytes of the arena that are live at one time.

    `dims` maps (port, axis) of inputs to sizes.
    """
    return most_live(arena_lives(program.body)[0], known_sizes(program, dims))


# ---- liveness -----------------------------------------------------------------------------------


def arena_lives(
    body: Sequence[Instr],
) -> tuple[Mapping[BufferId, LiveRange], Mapping[BufferId, BufferId]]:
    """Returns (lives, over): the life of each buffer, and the map of `laid_over`.

    The use of a view counts as a use of its base.  A new buffer in `over` is live from the end of
    the old buffer's life.
    """
    touches: dict[BufferId, set[int]] = {}
    loops: list[tuple[int, int]] = []
    _scan(body, 0, touches, loops)
    # The base of a view may be a view, which is then defined earlier. So views are visited in
    # reverse order: the uses of a view are added to its base before the base adds them to its own.
    for view in reversed([i for i in walk_instructions(body) if isinstance(i, View)]):
        touches[view.base] |= touches[view.buffer]
    for positions in touches.values():
        for start, end in loops:
            # If a buffer is used inside and outside of a loop, any later iteration may read it.
            if len({start < p < end for p in positions}) > 1:
                positions.update((start, end))
    lives = {
        buffer: LiveRange(min(positions), max(positions)) for buffer, positions in touches.items()
    }
    over = laid_over(body, lives)
    return lives | born_behind(lives, over), over


def _scan(
    body: Sequence[Instr],
    position: int,
    touches: dict[BufferId, set[int]],
    loops: list[tuple[int, int]],
) -> int:
    """Adds the positions at which each buffer is used to `touches`, and (start, end) of each loop
    to `loops`; returns the position after `body`.

    `position` is that of the first instruction of `body`.
    """
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


# ---- the plan in the program --------------------------------------------------------------------


def _entry(body: Sequence[Instr]) -> tuple[Body, Body]:
    """Divides a body into its entry and all other instructions.

    The entry has the `Let`s and `Check`s that depend on inputs alone.  A register that loops or
    branches set has different values at different times, so its `Let`s are not in the entry.
    """
    ready: set[Register] = set()
    nested = (i for instr in body for inner in bodies_of(instr) for i in walk_instructions(inner))
    changing = {register for instr in nested for register in defined_registers(instr)}
    entry: list[Instr] = []
    remaining: list[Instr] = []
    for instr in body:
        defined = defined_registers(instr)
        movable = used_registers(instr) <= ready and not defined & changing
        if isinstance(instr, Let | Check) and movable:
            entry.append(instr)
            ready |= defined
        else:
            remaining.append(instr)
    return tuple(entry), tuple(remaining)
