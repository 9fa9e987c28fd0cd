"""Finds the blocks of a streaming loop that a tile needs, so that masked blocks are skipped.

    s[i, j] = select(j <= i + off, x[i, j], -inf) ;  m[i] = max(j) s ;  l[i] = sum(j) exp(s - m)
      a tile has rows i from b to b + 63  ->  its streaming loop ends at min(keys, b + off + 64)

A tile needs a block if an element of the block may change an accumulator.
`tcc.schedule.masked_terms` derives these elements.
"""

from collections.abc import Sequence

from tcc.ir.expr import extent, nest_size
from tcc.ir.index import Index, Var, as_int, ceildiv, const, divisor_of, maximum, minimum
from tcc.ir.tile.group import TileGroup
from tcc.passes.tile.gpu.axes import Axis, AxisRange
from tcc.schedule.masked_terms import limits_of, needed


def needed_steps(
    group: TileGroup, along: Axis, tile_parts: Sequence[AxisRange]
) -> tuple[Index, Index]:
    """Returns (first, stop): a tile needs the blocks `first` to `stop` - 1 of the streaming loop.

    `along` is the axis of the streaming loop.  `tile_parts` are the parts of the parallel axes that
    the tile covers.  If `stop` is not greater than `first`, the tile needs no block.
    """
    start, stop = const(0), along.steps
    ends = {var: _range(var, tile_parts) for part in tile_parts for var in part.axis.loops}
    firsts, stops = needed(limits_of(group), ends)
    for first in firsts:
        start = maximum(start, first // along.block)
    for end in stops:
        stop = minimum(stop, ceildiv(end, along.block))
    return start, stop


def _range(var: Var, tile_parts: Sequence[AxisRange]) -> tuple[Index, Index]:
    """Returns the smallest and the largest value of a parallel loop in a tile."""
    part = next(p for p in tile_parts if var in p.axis.loops)
    loops = part.axis.loops
    inner = nest_size(loops[loops.index(var) + 1 :])
    if var is loops[0]:
        low, high = (bound // inner for bound in (part.base, part.base + part.axis.block - 1))
        return low, minimum(high, extent(var) - 1)
    low, size = part.base // inner % extent(var), as_int(inner)
    if size is None:
        return const(0), extent(var) - 1
    # A tile may continue into the next iteration of the outer loop. Then it covers the end and the
    # start of the loop `var`.
    high = minimum(low - (1 - part.axis.block) // size, extent(var) - 1)
    may_wrap = divisor_of(inner * extent(var)) % part.axis.block
    return const(0) if may_wrap else low, high
