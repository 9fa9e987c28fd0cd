"""Lets values that have equal halos and do not live at one time share a buffer, filled once.

    fill_halo a; a = ...; ... = a; fill_halo b; b = ...      ->      fill_halo a; a = ...; ... = a;
                                                                     a = ...

Requires a program whose arena is not planned yet, in which all but `fill_halo` leaves halos as
they are.  Establishes fewer fills: between two such values nothing else may use the buffer, so that
values share one only where the most that is live at one time stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias

from tcc.ir.program import (
    Arena,
    Branch,
    BufferId,
    CallOp,
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    Program,
    Register,
    buffers_of,
)
from tcc.ir.types import DType

# What equal halos have in common: element type, storage, and widths with the value.
_Halo: TypeAlias = tuple[Register, DType, tuple[Register, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Life:
    first: int
    last: int


def share_halos(program: Program) -> Program:
    """`program` with values of equal halos in one buffer, where that takes no more memory."""
    sizes = _sizes(program)
    lives = _lives(program)
    fixed = _fixed(program)
    live = {n: life for n, life in lives.items() if n in sizes}
    most = _most_live(live, sizes)
    keepers: dict[_Halo, list[BufferId]] = {}
    moved: dict[BufferId, BufferId] = {}
    for instr in program.body:
        found = _filled(instr, program)
        if found is None or found[0] in fixed or found[0] not in sizes:
            continue
        buffer, halo = found
        for keeper in keepers.setdefault(halo, []):
            if live[keeper].last >= live[buffer].first:
                continue
            joined = {n: life for n, life in live.items() if n != buffer}
            joined[keeper] = _Life(live[keeper].first, live[buffer].last)
            if _most_live(joined, sizes) <= most:
                moved[buffer], live = keeper, joined
                break
        else:
            keepers[halo].append(buffer)
    body = (i for i in program.body if not _is_spared(i, moved))
    return replace(program, body=tuple(_moved(i, moved) for i in body)) if moved else program


def _filled(instr: Instr, program: Program) -> tuple[BufferId, _Halo] | None:
    """The buffer whose halo an instruction fills, and what equal halos have in common."""
    if not isinstance(instr, CallOp) or instr.op != "fill_halo":
        return None
    (target,) = instr.outputs
    place = program.buffers[target.buffer].place
    if not isinstance(place, Arena):
        return None
    return target.buffer, (place.size, target.dtype, target.dims, instr.ints)


def _is_spared(instr: Instr, moved: Mapping[BufferId, BufferId]) -> bool:
    return (
        isinstance(instr, CallOp) and instr.op == "fill_halo" and instr.outputs[0].buffer in moved
    )


def _moved(instr: Instr, moved: Mapping[BufferId, BufferId]) -> Instr:
    """An instruction on the buffers that are kept; others than these name none that moved."""
    match instr:
        case Launch():
            return replace(instr, buffers=tuple(moved.get(b, b) for b in instr.buffers))
        case CallOp():
            inputs, outputs = (
                tuple(replace(t, buffer=moved.get(t.buffer, t.buffer)) for t in tensors)
                for tensors in (instr.inputs, instr.outputs)
            )
            return replace(instr, inputs=inputs, outputs=outputs)
        case _:
            return instr


# ---- lives and sizes ----------------------------------------------------------------------------


def _sizes(program: Program) -> dict[BufferId, int]:
    """Bytes of the arena's buffers of known size."""
    known = {i.target: i.a for i in program.body if isinstance(i, Let) and i.op is IntOp.CONST}
    return {
        n: known[b.place.size]
        for n, b in enumerate(program.buffers)
        if isinstance(b.place, Arena) and b.place.size in known
    }


def _lives(program: Program) -> dict[BufferId, _Life]:
    """From the first to the last instruction, those with bodies counted whole."""
    found: dict[BufferId, _Life] = {}
    for position, instr in enumerate(program.body):
        for buffer in _touched(instr):
            start = found[buffer].first if buffer in found else position
            found[buffer] = _Life(start, position)
    return found


def _touched(instr: Instr) -> tuple[BufferId, ...]:
    own = buffers_of(instr)
    match instr:
        case Branch():
            inner = (*instr.then, *instr.otherwise)
        case Loop():
            inner = instr.body
        case _:
            return own
    return (*own, *(b for i in inner for b in _touched(i)))


def _fixed(program: Program) -> frozenset[BufferId]:
    """Buffers that others are views of, or that instructions with bodies and copies touch."""
    return frozenset(
        b for i in program.body if not isinstance(i, Launch | CallOp) for b in _touched(i)
    )


def _most_live(lives: Mapping[BufferId, _Life], sizes: Mapping[BufferId, int]) -> int:
    """The most bytes that are live at one time."""
    changes: dict[int, int] = {}
    for buffer, life in lives.items():
        changes[life.first] = changes.get(life.first, 0) + sizes[buffer]
        changes[life.last + 1] = changes.get(life.last + 1, 0) - sizes[buffer]
    return max(accumulate(change for _, change in sorted(changes.items())), default=0)
