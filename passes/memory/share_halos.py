"""Lets values with equal halos and disjoint lives share a buffer, whose halo is filled once.

    fill_halo a; a = ...; ... = a; fill_halo b; b = ...      ->      fill_halo a; a = ...; ... = a;
                                                                     a = ...

Requires a program whose arena is not planned yet, in which only `fill_halo` writes halos.
Establishes fewer fills.  A shared buffer keeps its memory between the lives of its values.  So
values share a buffer only if the peak of live bytes does not rise.
"""

from tcc.ir.program import BufferId, Program
from tcc.passes.memory.merge_buffers import (
    Halo,
    LiveRange,
    filled_halo,
    fixed_buffers,
    known_sizes,
    lives_of,
    merged,
    most_live,
)


def share_halos(program: Program) -> Program:
    """Returns `program` with values of equal halos in one buffer, if that takes no more memory."""
    sizes = known_sizes(program, {})
    fixed = fixed_buffers(program)
    live = {n: life for n, life in lives_of(program).items() if n in sizes}
    peak = most_live(live, sizes)
    keepers: dict[Halo, list[BufferId]] = {}
    replacements: dict[BufferId, BufferId] = {}
    for instr in program.body:
        filled = filled_halo(instr, program)
        if filled is None or filled[0] in fixed or filled[0] not in sizes:
            continue
        buffer, halo = filled
        for keeper in keepers.setdefault(halo, []):
            if live[keeper].last >= live[buffer].first:
                continue
            merged_lives = {n: life for n, life in live.items() if n != buffer}
            merged_lives[keeper] = LiveRange(live[keeper].first, live[buffer].last)
            if most_live(merged_lives, sizes) <= peak:
                replacements[buffer], live = keeper, merged_lives
                break
        else:
            keepers[halo].append(buffer)
    return merged(program, replacements)
