"""Lets values that have equal halos and do not live at one time share a buffer, filled once.

    fill_halo a; a = ...; ... = a; fill_halo b; b = ...      ->      fill_halo a; a = ...; ... = a;
                                                                     a = ...

Requires a program whose arena is not planned yet, in which all but `fill_halo` leaves halos as
they are.  Establishes fewer fills: between two such values nothing else may use the buffer, so that
values share one only where the most that is live at one time stays what it was.
"""

from tcc.ir.program import BufferId, Program
from tcc.passes.memory.merge_buffers import (
    Halo,
    Life,
    filled_halo,
    fixed_buffers,
    known_sizes,
    lives_of,
    merged,
    most_live,
)


def share_halos(program: Program) -> Program:
    """`program` with values of equal halos in one buffer, where that takes no more memory."""
    sizes = known_sizes(program, {})
    fixed = fixed_buffers(program)
    live = {n: life for n, life in lives_of(program).items() if n in sizes}
    most = most_live(live, sizes)
    keepers: dict[Halo, list[BufferId]] = {}
    moved: dict[BufferId, BufferId] = {}
    for instr in program.body:
        found = filled_halo(instr, program)
        if found is None or found[0] in fixed or found[0] not in sizes:
            continue
        buffer, halo = found
        for keeper in keepers.setdefault(halo, []):
            if live[keeper].last >= live[buffer].first:
                continue
            joined = {n: life for n, life in live.items() if n != buffer}
            joined[keeper] = Life(live[keeper].first, live[buffer].last)
            if most_live(joined, sizes) <= most:
                moved[buffer], live = keeper, joined
                break
        else:
            keepers[halo].append(buffer)
    return merged(program, moved)
