"""Buffers of a program that is not planned yet: how long they live, and making one of several.

A position is that of an instruction of the program itself; instructions with bodies count whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeAlias

from tcc.ir.program import (
    Arena,
    BufferId,
    CallOp,
    Instr,
    Program,
    Register,
)
from tcc.ir.program.arithmetic import let_values
from tcc.ir.program.operands import STEPS, buffers_of, renumbered, walk_instructions
from tcc.ir.types import DType
from tcc.record import record

# What equal halos have in common: element type, storage, and widths with the value.
Halo: TypeAlias = tuple[Register, DType, tuple[Register, ...], tuple[int, ...]]


@record
class Life:
    """From the first to the last position that touches a buffer."""

    first: int
    last: int


def known_sizes(program: Program, dims: Mapping[tuple[int, int], int]) -> dict[BufferId, int]:
    """Bytes of the arena's buffers whose sizes are known where these dimensions of inputs are, by
    port and axis."""
    known = let_values(program.body, dims)
    return {
        n: known[b.place.size]
        for n, b in enumerate(program.buffers)
        if isinstance(b.place, Arena) and b.place.size in known
    }


def lives_of(program: Program) -> dict[BufferId, Life]:
    """The life of each buffer, views left out."""
    found: dict[BufferId, Life] = {}
    for position, instr in enumerate(program.body):
        for buffer in touched(instr):
            start = found[buffer].first if buffer in found else position
            found[buffer] = Life(start, position)
    return found | born_behind(found, laid_over(program.body, found))


def laid_over(body: Sequence[Instr], lives: Mapping[BufferId, Life]) -> dict[BufferId, BufferId]:
    """Buffers that die where `thin` reads them, each with what it keeps at the front of them."""
    calls = (i for i in body if isinstance(i, CallOp) and i.op == "thin")
    pairs = ((i.inputs[0].buffer, i.outputs[0].buffer) for i in calls)
    return {old: new for old, new in pairs if lives[old].last == lives[new].first}


def born_behind(
    lives: Mapping[BufferId, Life], over: Mapping[BufferId, BufferId]
) -> dict[BufferId, Life]:
    """The lives of what lies over others, from behind the death of those."""
    return {new: Life(lives[old].last + 1, lives[new].last) for old, new in over.items()}


def most_live(lives: Mapping[BufferId, Life], sizes: Mapping[BufferId, int]) -> int:
    """The most bytes of `sizes` that are live at one time: no arena can do with less."""
    changes: dict[int, int] = {}
    for buffer, life in lives.items():
        size = sizes.get(buffer, 0)
        changes[life.first] = changes.get(life.first, 0) + size
        changes[life.last + 1] = changes.get(life.last + 1, 0) - size
    return max(accumulate(change for _, change in sorted(changes.items())), default=0)


def touched(instr: Instr) -> tuple[BufferId, ...]:
    """The buffers that an instruction names, those of bodies included."""
    return tuple(b for i in walk_instructions((instr,)) for b in buffers_of(i))


def fixed_buffers(program: Program) -> frozenset[BufferId]:
    """Buffers that others are views of, or that instructions with bodies and copies touch."""
    return frozenset(b for i in program.body if not isinstance(i, STEPS) for b in touched(i))


def filled_halo(instr: Instr, program: Program) -> tuple[BufferId, Halo] | None:
    """The buffer whose halo an instruction fills, and what equal halos have in common."""
    if not isinstance(instr, CallOp) or instr.op != "fill_halo":
        return None
    (target,) = instr.outputs
    place = program.buffers[target.buffer].place
    if not isinstance(place, Arena):
        return None
    return target.buffer, (place.size, target.dtype, target.dims, instr.ints)


def merged(program: Program, moved: Mapping[BufferId, BufferId]) -> Program:
    """`program` with other buffers in place of those that `moved` names, whose halos need no
    filling any more."""
    if not moved:
        return program
    moves = {"b": lambda buffer: moved.get(buffer, buffer)}
    kept = (i for i in program.body if not _is_spared(i, moved))
    return replace(program, body=tuple(renumbered(i, moves) for i in kept))


def _is_spared(instr: Instr, moved: Mapping[BufferId, BufferId]) -> bool:
    return (
        isinstance(instr, CallOp) and instr.op == "fill_halo" and instr.outputs[0].buffer in moved
    )
