"""Loops along which a tile covers several elements, because the results of these elements share a
cache line.

    y[c, 2*h + p, 2*w + q]   7 x 7 points h, w: 14 columns, 56 bytes a row    ->   q: 2    p: 2

If two cores store to one line in turns, each store waits until the line comes from the other core's
cache. That takes many times as long as the store itself.
"""

from collections.abc import Iterable

from tcc.ir.expr import known_extent
from tcc.ir.index import Var
from tcc.ir.tile.group import TileGroup
from tcc.schedule.cpu.work import is_global
from tcc.schedule.footprint import LINE
from tcc.schedule.nest import stride


def whole_lines(group: TileGroup, loops: Iterable[Var]) -> dict[Var, int]:
    """Returns how many elements along each of `loops` fill a cache line of a result; at most all
    elements of the loop.

    The dict lacks loops of symbolic size, and loops whose neighbouring elements are a line or more
    apart.
    """
    elements: dict[Var, int] = {}
    for var in loops:
        size = known_extent(var)
        distances = [
            abs(stride(access, var) or LINE) * group.buffers[access.buffer].dtype.bytes
            for stage in group.stages
            for access in stage.written
            if var in stage.iters and is_global(group, access.buffer)
        ]
        if size is not None and size > 1 and (shortest := min(distances, default=LINE)) < LINE:
            elements[var] = min(size, -(-LINE // shortest))
    return elements
