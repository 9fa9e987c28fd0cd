"""Loops of which a unit covers several elements, since their results lie in one cache line.

    y[c, 2*h + p, 2*w + q]   7 x 7 points h, w: 14 columns, 56 bytes a row    ->   q: 2    p: 2

Cores that store to one line in turns take it from each other, and wait each time for the other's
cache: many times the time of the stores themselves.
"""

from collections.abc import Iterable

from tcc.ir.expr import known_extent
from tcc.ir.index import Var
from tcc.ir.tile import MemorySpace
from tcc.ir.tile.group import TileGroup
from tcc.schedule.footprint import LINE
from tcc.schedule.nest import stride


def whole_lines(group: TileGroup, loops: Iterable[Var]) -> dict[Var, int]:
    """The elements of each of `loops` of known size that fill a line of a result, or all there are;
    without loops whose neighbours lie in different lines."""
    found: dict[Var, int] = {}
    for var in loops:
        size = known_extent(var)
        apart = [
            abs(stride(access, var) or LINE) * group.buffers[access.buffer].dtype.bytes
            for stage in group.stages
            for access in stage.written
            if var in stage.iters and group.buffers[access.buffer].scope is not MemorySpace.LOCAL
        ]
        if size is not None and size > 1 and (least := min(apart, default=LINE)) < LINE:
            found[var] = min(size, -(-LINE // least))
    return found
