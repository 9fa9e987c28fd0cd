"""Finds the lives of a program's buffers, and merges several buffers into one.

The arena of the program must not be planned yet.  Positions number the instructions of the program
itself: an instruction with bodies has one position.
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

# A halo: the register of its buffer's size in bytes, the element type, the storage sizes, and the
# integers of `fill_halo`. These are the bits of the fill value, then the widths.
Halo: TypeAlias = tuple[Register, DType, tuple[Register, ...], tuple[int, ...]]


@frozen
class LiveRange:
    """The first and the last position that names a buffer."""

    first: int
    last: int


def known_sizes(program: Program, dims: Mapping[tuple[int, int], int]) -> dict[BufferId, int]:
    """Returns the bytes of the arena buffers whose sizes follow from `dims`.

    `dims` has sizes of inputs, under (port, axis).
    """
    values = let_values(program.body, dims)
    return {
        n: values[b.place.size]
        for n, b in enumerate(program.buffers)
        if isinstance(b.place, Arena) and b.place.size in values
    }


def lives_of(program: Program) -> dict[BufferId, LiveRange]:
    """Returns the life of each buffer; that a view is used does not extend its base's life."""
    lives: dict[BufferId, LiveRange] = {}
    for position, instr in enumerate(program.body):
        for buffer in touched(instr):
            start = lives[buffer].first if buffer in lives else position
            lives[buffer] = LiveRange(start, position)
    return lives | born_behind(lives, laid_over(program.body, lives))


def laid_over(
    body: Sequence[Instr], lives: Mapping[BufferId, LiveRange]
) -> dict[BufferId, BufferId]:
    """Returns a map from buffers to the buffers that lie over them.

    A call of `thin` compacts a buffer in place.  If the buffer is not used later, its compacted
    elements, which are a buffer of their own, lie at its front.
    """
    calls = (i for i in body if isinstance(i, CallOp) and i.op == "thin")
    pairs = ((i.inputs[0].buffer, i.outputs[0].buffer) for i in calls)
    return {old: new for old, new in pairs if lives[old].last == lives[new].first}


def born_behind(
    lives: Mapping[BufferId, LiveRange], over: Mapping[BufferId, BufferId]
) -> dict[BufferId, LiveRange]:
    """Returns the lives of the new buffers in `over`; each begins after its old buffer's life."""
    return {new: LiveRange(lives[old].last + 1, lives[new].last) for old, new in over.items()}


def most_live(lives: Mapping[BufferId, LiveRange], sizes: Mapping[BufferId, int]) -> int:
    """Returns the most bytes that are live at one time; no arena can be smaller."""
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
    """Returns the buffers that views, copies, or instructions with bodies name."""
    return frozenset(b for i in program.body if not isinstance(i, STEPS) for b in touched(i))


def filled_halo(instr: Instr, program: Program) -> tuple[BufferId, Halo] | None:
    """Returns the buffer whose halo an instruction fills, and its halo; None for others."""
    if not isinstance(instr, CallOp) or instr.op != "fill_halo":
        return None
    (target,) = instr.outputs
    place = program.buffers[target.buffer].place
    if not isinstance(place, Arena):
        return None
    return target.buffer, (place.size, target.dtype, target.dims, instr.ints)


def merged(program: Program, replacements: Mapping[BufferId, BufferId]) -> Program:
    """Returns `program` with the buffers of `replacements` replaced.

    The instructions that fill the halos of replaced buffers are dropped.
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
