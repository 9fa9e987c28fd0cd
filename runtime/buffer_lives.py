"""The steps in which each buffer of a program is live.

A buffer is live from its first use to its last. The use of a view counts as a use of its base. A
buffer that is used both inside and outside of a loop is live in the whole loop, because the next
iteration may read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tcc.runtime.host_program import HostInstruction, HostProgram, is_buffer, walk

STEPS = frozenset(("launch", "call", "collective", "wait"))


@dataclass(slots=True)
class _Scan:
    """The positions at which each buffer is used, those of steps, and (begin, end) of each loop.

    A position is the index of an instruction in a walk of the program; the end of a loop has one
    too.
    """

    position: int = 0
    uses: dict[int, set[int]] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    loops: list[tuple[int, int]] = field(default_factory=list)

    def body(self, body: Sequence[HostInstruction]) -> None:
        for instruction in body:
            begin = self.position
            buffers = [number for kind, number in instruction.operands if is_buffer(kind)]
            self._use(buffers)
            if instruction.name in STEPS:
                self.steps.append(begin)
            self.position += 1
            for inner in instruction.bodies:
                self.body(inner)
            if instruction.name == "loop":
                self.loops.append((begin, self.position))
                self._use(buffers)  # the condition, which each iteration reads
                self.position += 1

    def _use(self, buffers: Iterable[int]) -> None:
        for buffer in buffers:
            self.uses.setdefault(buffer, set()).add(self.position)


def buffer_lives(program: HostProgram) -> dict[int, tuple[int, int]]:
    """Returns (first, last) for each buffer: the numbers of the steps between which it is live.

    `first` is greater than `last` if no step runs while the buffer is live.
    """
    scan = _Scan()
    scan.body(program.body)
    views = [i for i in walk(program.body) if i.name == "view"]
    for view in reversed(views):  # the base of a view may be a view, which is made earlier
        scan.uses[view.fields["base"]] |= scan.uses[view.fields["buffer"]]
    for positions in scan.uses.values():
        for begin, end in scan.loops:
            if len({begin < position < end for position in positions}) > 1:
                positions.update((begin, end))
    first_after, last_before = _neighbours(scan.steps, scan.position)
    return {
        buffer: (first_after[min(positions)], last_before[max(positions)])
        for buffer, positions in scan.uses.items()
    }


def _neighbours(steps: Sequence[int], end: int) -> tuple[list[int], list[int]]:
    """Returns, for each position, the number of the first step from it on, and the last up to
    it."""
    first_after, last_before, number = [], [], 0
    for position in range(end):
        is_step = number < len(steps) and steps[number] == position
        first_after.append(number)
        number += is_step
        last_before.append(number - 1)
    return first_after, last_before
