"""Finds the lives of a program's buffers, and merges several buffers into one.

The arena of the program must not be planned yet.  A position is the index of an instruction in the
program's body.  Instructions inside the bodies of another instruction have its position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeAlias

from tcc.frozen import frozen
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

# A halo is (size, type, dims, ints): the register of the buffer's size in bytes, the element type,
# the registers of the storage sizes, and the integers of `fill_halo`. The integers are the bits of
# the fill value, and then the widths.
Halo: TypeAlias = tuple[Register, DType, tuple[Register, ...], tuple[int, ...]]


@frozen
class LiveRange:
    """A buffer's life: the first and the last position at which an instruction names it."""

    first: int
    last: int


def known_sizes(program: Program, dims: Mapping[tuple[int, int], int]) -> dict[BufferId, int]:
    """Returns the bytes of those arena buffers whose sizes follow from `dims`.

    `dims` maps (port, axis) of inputs to sizes.
    """
    values = let_values(program.body, dims)
    return {
        n: values[b.place.size]
        for n, b in enumerate(program.buffers)
        if isinstance(b.place, Arena) and b.place.size in values
    }


def lives_of(program: Program) -> dict[BufferId, LiveRange]:
    """Returns the life of each buffer.

    The use of a view does not count as a use of its base.
    """
    lives: dict[BufferId, LiveRange] = {}
    for position, instr in enumerate(program.body):
        for buffer in touched(instr):
            start = lives[buffer].first if buffer in lives else position
            lives[buffer] = LiveRange(start, position)
    return lives | born_behind(lives, laid_over(program.body, lives))


def laid_over(
    body: Sequence[Instr], lives: Mapping[BufferId, LiveRange]
) -> dict[BufferId, BufferId]:
    """Returns a map from buffers to the buffers that take their place in memory.

    A call of `thin` compacts a buffer in place: its result is a new buffer at the same address as
    the old buffer.  The map has only old buffers that are not used after the call.
    """
    calls = (i for i in body if isinstance(i, CallOp) and i.op == "thin")
    pairs = ((i.inputs[0].buffer, i.outputs[0].buffer) for i in calls)
    return {old: new for old, new in pairs if lives[old].last == lives[new].first}


def born_behind(
    lives: Mapping[BufferId, LiveRange], over: Mapping[BufferId, BufferId]
) -> dict[BufferId, LiveRange]:
    """Returns the lives of the new buffers in `over`.

    The life of a new buffer begins when the life of its old buffer ends.
    """
    return {new: LiveRange(lives[old].last + 1, lives[new].last) for old, new in over.items()}


def most_live(lives: Mapping[BufferId, LiveRange], sizes: Mapping[BufferId, int]) -> int:
    """Returns the largest number of bytes that are live at one time; no arena can be smaller."""
    changes: dict[int, int] = {}
    for buffer, life in lives.items():
        size = sizes.get(buffer, 0)
        changes[life.first] = changes.get(life.first, 0) + size
        changes[life.last + 1] = changes.get(life.last + 1, 0) - size
    return max(accumulate(change for _, change in sorted(changes.items())), default=0)


def touched(instr: Instr) -> tuple[BufferId, ...]:
    """Returns the buffers that an instruction names, including those in its bodies."""
    return tuple(b for i in walk_instructions((instr,)) for b in buffers_of(i))


def fixed_buffers(program: Program) -> frozenset[BufferId]:
    """Returns the buffers that may not be merged: those of views, of copies, and of instructions
    with bodies."""
    return frozenset(b for i in program.body if not isinstance(i, STEPS) for b in touched(i))


def filled_halo(instr: Instr, program: Program) -> tuple[BufferId, Halo] | None:
    """Returns (buffer, halo) for an instruction that fills the halo of an arena buffer, else
    None."""
    if not isinstance(instr, CallOp) or instr.op != "fill_halo":
        return None
    (target,) = instr.outputs
    place = program.buffers[target.buffer].place
    if not isinstance(place, Arena):
        return None
    return target.buffer, (place.size, target.dtype, target.dims, instr.ints)


def merged(program: Program, replacements: Mapping[BufferId, BufferId]) -> Program:
    """Returns `program` with buffers replaced; `replacements` maps a buffer to its replacement.

    Instructions that fill the halos of replaced buffers are dropped.
    """
    if not replacements:
        return program
    mapping = {"b": lambda buffer: replacements.get(buffer, buffer)}
    remaining = (i for i in program.body if not _fills_replaced(i, replacements))
    return replace(program, body=tuple(renumbered(i, mapping) for i in remaining))


def _fills_replaced(instr: Instr, replacements: Mapping[BufferId, BufferId]) -> bool:
    """Returns True for an instruction that fills the halo of a replaced buffer."""
    return (
        isinstance(instr, CallOp)
        and instr.op == "fill_halo"
        and instr.outputs[0].buffer in replacements
    )
