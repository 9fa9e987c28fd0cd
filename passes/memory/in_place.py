"""Lets a launch, or an all_reduce, write a result over an operand that dies there: both get one
buffer.

    c = conv(a); d = add(c, b); ... = d        ->        c = conv(a); c = add(c, b); ... = c

Requires a program whose arena is not planned yet and whose collectives are waited for at once, and
kernels with their groups.  Establishes that a launch which names a buffer twice, as an operand and
a result, runs a kernel whose `in_place` has that pair: a kernel that reads each element only where
it then replaces it.
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
    Life,
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
    """`program` with such values in one buffer, and the kernels of `bounds` with the pairs that
    any of their launches uses."""
    merger = _Merger(program)
    used: dict[int, dict[_Pair, None]] = {}
    known: dict[int, tuple[_Pair, ...]] = {}
    for position, instr in enumerate(program.body):
        if isinstance(instr, Collective) and instr.kind is CollectiveKind.ALL_REDUCE:
            # its wait stands behind it yet
            merger.try_pair(position, (instr.send, instr.receive), (0, 1), position + 1)
        if not isinstance(instr, Launch):
            continue
        if instr.kernel not in known:
            bound = bounds[instr.kernel]
            known[instr.kernel] = replaceable(bound.kernel, bound.group)
        for pair in known[instr.kernel]:
            if merger.try_pair(position, instr.buffers, pair):
                used.setdefault(instr.kernel, {})[pair] = None
    kernels = (replace(b.kernel, in_place=tuple(used.get(n, ()))) for n, b in enumerate(bounds))
    return merged(program, merger.moved), tuple(kernels)


def replaceable(kernel: TileKernel, group: TileGroup) -> tuple[_Pair, ...]:
    """Pairs of an operand and a result of a kernel that may lie in one buffer."""
    scopes = [b.scope for b in kernel.buffers]
    once = [n for n in kernel.results if stored_once(kernel, group, n)]
    return tuple(
        (operand, result)
        for result in once
        for operand, scope in enumerate(scopes)
        if scope is MemorySpace.INPUT and overwrites(kernel, operand, result)
    )


class _Merger:
    """Buffers and their lives while launches are seen in order."""

    def __init__(self, program: Program) -> None:
        self.moved: dict[BufferId, BufferId] = {}
        self._program = program
        self._fixed = fixed_buffers(program)
        self._lives = lives_of(program)
        self._halos: dict[BufferId, Halo] = {}
        self._begun: dict[BufferId, int] = {}  # where a value is first made or read
        for position, instr in enumerate(program.body):
            found = filled_halo(instr, program)
            if found is not None:
                self._halos[found[0]] = found[1]
                continue
            for buffer in buffers_of(instr):
                self._begun.setdefault(buffer, position)

    def try_pair(
        self, position: int, named: Sequence[BufferId], pair: _Pair, end: int | None = None
    ) -> bool:
        """Merges two of the buffers that the instruction there names, a pair of positions among
        them, if nothing reads the operand behind `end`, or behind `position`."""
        buffers = [self.moved.get(b, b) for b in named]
        operand, result = (buffers[n] for n in pair)
        if (
            not self._may_merge(operand, result, position, end or position)
            or buffers.count(operand) > 1
        ):
            return False
        self.moved[result] = operand
        self._lives[operand] = Life(self._lives[operand].first, self._lives[result].last)
        return True

    def _may_merge(self, operand: BufferId, result: BufferId, position: int, end: int) -> bool:
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
