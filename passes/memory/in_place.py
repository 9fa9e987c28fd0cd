"""Gives a result the buffer of an operand that nothing reads after the launch or all_reduce.

    c = conv(a); d = add(c, b); ... = d        ->        c = conv(a); c = add(c, b); ... = c

Requires kernels with their groups, and a program whose arena is not planned yet, in which each wait
comes directly after its collective.  Establishes the field `in_place` of kernels: it has the pairs
(operand, result) that share a buffer in some launch.  A kernel reads each element of this operand
only at the point that overwrites it.
"""

from collections.abc import Sequence
from dataclasses import replace

from tcc.ir.program import Arena, BufferId, Collective, CollectiveKind, Launch, Program
from tcc.ir.program.operands import buffers_of
from tcc.ir.tile import MemorySpace, TileKernel
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.overwrite import overwrites, stored_once
from tcc.passes.memory.merge_buffers import (
    Halo,
    LiveRange,
    filled_halo,
    fixed_buffers,
    lives_of,
    merged,
)
from tcc.passes.tile.plan import Bound

_Pair = tuple[int, int]


def update_in_place(
    program: Program, bounds: Sequence[Bound]
) -> tuple[Program, tuple[TileKernel, ...]]:
    """Returns (program, kernels): the program with merged buffers, and the kernels of `bounds`.

    `in_place` of a kernel has the pairs (operand, result) that share a buffer in some launch of it.
    """
    merger = _Merger(program)
    pairs_of: dict[int, dict[_Pair, None]] = {}
    candidates: dict[int, tuple[_Pair, ...]] = {}
    for position, instr in enumerate(program.body):
        if isinstance(instr, Collective) and instr.kind is CollectiveKind.ALL_REDUCE:
            # The operand's last use is the `Wait` directly after the collective.
            merger.try_pair(position, (instr.send, instr.receive), (0, 1), position + 1)
        if not isinstance(instr, Launch):
            continue
        if instr.kernel not in candidates:
            bound = bounds[instr.kernel]
            candidates[instr.kernel] = replaceable(bound.kernel, bound.group)
        for pair in candidates[instr.kernel]:
            if merger.try_pair(position, instr.buffers, pair):
                pairs_of.setdefault(instr.kernel, {})[pair] = None
    kernels = (replace(b.kernel, in_place=tuple(pairs_of.get(n, ()))) for n, b in enumerate(bounds))
    return merged(program, merger.replaced_by), tuple(kernels)


def replaceable(kernel: TileKernel, group: TileGroup) -> tuple[_Pair, ...]:
    """Returns pairs (operand, result) of a kernel's buffers, by index, that may be one buffer."""
    scopes = [b.scope for b in kernel.buffers]
    return tuple(
        (operand, result)
        for result in [n for n in kernel.results if stored_once(kernel, group, n)]
        for operand, scope in enumerate(scopes)
        if scope is MemorySpace.INPUT and overwrites(kernel, operand, result)
    )


class _Merger:
    """Merges buffers and updates their lives, while instructions are visited in order."""

    def __init__(self, program: Program) -> None:
        self.replaced_by: dict[BufferId, BufferId] = {}
        self._program = program
        self._fixed = fixed_buffers(program)
        self._lives = lives_of(program)
        self._halos: dict[BufferId, Halo] = {}
        # The first position that uses each buffer; filling its halo does not count.
        self._begun: dict[BufferId, int] = {}
        for position, instr in enumerate(program.body):
            filled = filled_halo(instr, program)
            if filled is not None:
                self._halos[filled[0]] = filled[1]
                continue
            for buffer in buffers_of(instr):
                self._begun.setdefault(buffer, position)

    def try_pair(
        self, position: int, named: Sequence[BufferId], pair: _Pair, end: int | None = None
    ) -> bool:
        """Merges two buffers of the instruction at `position`, if possible; returns True if it did.

        `named` are the instruction's buffers.  `pair` is (index of the operand in `named`, index of
        the result in `named`).  The operand's life must end at the position `end`, or at `position`
        if `end` is None.
        """
        buffers = [self.replaced_by.get(b, b) for b in named]
        operand, result = (buffers[n] for n in pair)
        if (
            not self._may_merge(operand, result, position, end or position)
            or buffers.count(operand) > 1
        ):
            return False
        self.replaced_by[result] = operand
        self._lives[operand] = LiveRange(self._lives[operand].first, self._lives[result].last)
        return True

    def _may_merge(self, operand: BufferId, result: BufferId, position: int, end: int) -> bool:
        """Returns True if a result can have an operand's buffer.

        The two buffers must have equal sizes and halos.  The result's life must begin at
        `position`, and the operand's life must end at `end`.
        """
        a, b = (self._program.buffers[n].place for n in (operand, result))
        return (
            isinstance(a, Arena)
            and isinstance(b, Arena)
            and a.size == b.size
            and not {operand, result} & self._fixed
            and self._lives[operand].last == end
            and self._begun[result] == position
            and self._halos.get(operand) == self._halos.get(result)
        )
