"""Prefetches data that a kernel will need soon: weights, rows, and lines of results.

Weights.  K-blocks of a weight panel lie one after the other in memory.  While a kernel uses one
K-block, it prefetches the next.  The blocks of rows of a tile share this work: each prefetches its
part of the next K-block, a few cache lines with every step of the sum.

A long part is divided into streams, which begin some pages apart, and a line of each stream is
prefetched in turn.  One core then keeps more of memory's banks busy, and the hardware prefetcher
follows each stream.  Measured with one row of results on two cores: 24 GB/s in order, 31.5 with 8
streams, 33.5 with 16 streams, and 33 where a step prefetches neighbouring lines.  Streams that do
not begin at pages are slower: 28 GB/s with 8 streams (layout/weights.py).

Rows.  One of a tile's passes over its row prefetches the row of the next tile.

Results.  A point may have several results, for example a tile of a transformed convolution.  It
prefetches the lines of its neighbour's results.
"""

from collections.abc import Sequence
from math import ceil, prod

from tcc.ir.expr import known_extent
from tcc.ir.expr.scalar import Read
from tcc.ir.index import Index, Var, as_int, bounds, const, free_vars, substitute
from tcc.ir.tile import If, MemorySpace, Prefetch
from tcc.ir.tile.group import Access, GroupStage
from tcc.passes.tile.cpu.body import CoreStageScalars, Surroundings
from tcc.passes.tile.cpu.ranges import BlockRange, TileRange, everything, flat
from tcc.schedule.cpu.reused_rows import next_rows
from tcc.schedule.nest import stride, trips

# Bytes of a cache line.
_LINE = 64
# A part is divided into at most _STREAMS streams of at least _PAGE bytes. A stream has at least a
# page, because the hardware prefetcher stops at the end of a page.
_STREAMS = 16
_PAGE = 4096
# The number of rows that prefetch the next K-block, where the last tile may have few rows.  Only
# computed rows prefetch, so a share for each row of a full tile would leave gaps.
_FEW_ROWS = 16
# Prefetching the next point's results is worthwhile if a point has at least this many separate
# results.
_SEPARATE_RESULTS = 4
# The number of blocks of the vector loop between a prefetch and its use.
_LATER = 4


def next_k_block(context: Surroundings, steps: Sequence[BlockRange]) -> None:
    """Emits the prefetches of the next K-block that belong to one step of a sum.

    Emits none if the size of a K-block is symbolic.
    """
    node = _streamed(context)
    if node is None:
        return
    access, outer = context.stage.accesses[node], context.outer
    index = access.offset
    spans = [flat(s) for s in (*outer, *steps)]
    # Steps along loops that the index does not contain read the same elements again.
    steps = [s for s in steps if s.var in free_vars(index)]
    ranges = [context.k_blocks.get(s.var) or everything(s.var) for s in steps]
    rows = [s for s in outer if s.var not in free_vars(index)]
    covered = [context.regions[s.var] for s in rows]
    row_limits = [bounds(r.size)[1] for r in covered]
    if None in (*row_limits, *(as_int(r.size) for r in ranges)):
        return
    vector = next(s for s in outer if s.var.name == context.nest.vector)
    count = prod(n or 1 for n in row_limits)
    # The last tile of a symbolic loop may have few rows: its first ones prefetch everything.
    few_rows = any(as_int(r.size) is None for r in covered) and count > _FEW_ROWS
    count = _FEW_ROWS if few_rows else count
    length = prod(as_int(r.size) or 1 for r in ranges)
    # Each element of the sum prefetches this many elements of the next K-block.
    share_of_element = ceil(vector.size * prod(s.size for s in rows) / count)
    share = vector.size * length // count
    mapping = {s.var: s.base for s in outer} | {r.var: r.base for r in ranges}
    first = substitute(index, mapping) + vector.size * length
    buffer = context.buffers[access.buffer]
    block_position = _position(rows, covered)
    first = first + block_position * share
    index = _position(steps, ranges)
    step = prod(s.size for s in steps)
    line = _LINE // buffer.dtype.bytes
    lines = ceil(share_of_element * step / line)
    streams = _streams(lines, share * buffer.dtype.bytes)
    if streams < 2 or share_of_element * step < line:
        places = [index * share_of_element + n * line for n in range(lines)]
    else:
        turns = _turns(index // step, ceil(length / step), lines, streams)
        places = [turn * line for turn in turns]
    with context.emitter.body() as hints:
        # The index of the prefetch may depend on data.
        indirect = CoreStageScalars(context, spans).chosen(node)
        for place in places:
            context.emitter.add(
                Prefetch(buffer, (first + place,), indirect, level=context.nest.ahead)
            )
    context.emitter.add(*([If(block_position, const(count), tuple(hints))] if few_rows else hints))


def next_row(context: Surroundings, vector: BlockRange) -> None:
    """Emits the prefetches that belong to one step of a pass over a row.

    The prefetched elements are at the same position in the next row.
    """
    at = {s.var: s.base for s in (*context.outer, vector)}
    for access in next_rows(context.group, context.stage, vector.var):
        _prefetch(context, access, substitute(access.offset, at) + trips(vector.var), vector.size)


def next_results(context: Surroundings) -> None:
    """Emits prefetches of the lines to which a later point writes several separate results.

    The later point is some blocks further along the vector loop.  If that loop is short, it is the
    next point of another loop.  The lines belong to several rows of an image, which the hardware
    prefetcher does not predict.  They are prefetched because a line is loaded before it is written.
    """
    outer = context.outer
    rows = [s for s in outer if s.var.name != context.nest.vector]
    vector = next((s for s in outer if s.var.name == context.nest.vector), None)
    if len(context.stage.body) < _SEPARATE_RESULTS or not rows or vector is None:
        return
    position: dict[Var, Index] = {s.var: s.base for s in outer}
    span = vector if trips(vector.var) > 2 * _LATER * vector.size else rows[-1]
    position[span.var] = span.base + (_LATER if span is vector else 1) * span.size
    for access in context.stage.written:
        scope = context.buffers[access.buffer].scope
        if scope is not MemorySpace.LOCAL and stride(access, vector.var) == 1:
            _prefetch(context, access, substitute(access.offset, position), vector.size, write=True)


def _prefetch(
    context: Surroundings, access: Access, first: Index, size: int, *, write: bool = False
) -> None:
    """Emits prefetches of the cache lines of `size` elements, from the element `first` on."""
    buffer, level = context.buffers[access.buffer], context.nest.ahead or 1
    line = _LINE // buffer.dtype.bytes
    for n in range(ceil(size / line)):
        context.emitter.add(Prefetch(buffer, (first + n * line,), level=level, write=write))


def _streams(lines: int, size: int) -> int:
    """Returns the number of streams into which a part of `size` bytes is divided.

    Every step of the sum prefetches `lines` lines.  These are equally many lines of each stream, or
    one line each of some of the streams, which then take turns.
    """
    limit = min(_STREAMS, size // _PAGE)
    return max((n for n in range(1, limit + 1) if n % lines == 0 or lines % n == 0), default=1)


def _turns(number: Index, steps: int, lines: int, streams: int) -> list[Index]:
    """Returns the line numbers, within a part, that step `number` of `steps` prefetches.

    They are the next lines of each stream, or of the streams whose turn it is.
    """
    if streams <= lines:
        lines_of_stream = lines // streams
        start = number * lines_of_stream
        return [
            start + (n % streams * steps * lines_of_stream + n // streams) for n in range(lines)
        ]
    turns = streams // lines
    length = ceil(steps / turns)
    start = number % turns * (lines * length) + number // turns
    return [start + n * length for n in range(lines)]


def _streamed(context: Surroundings) -> Read | None:
    """Returns the read to prefetch: one whose place depends on the vector loop.

    Among several reads, it is that which moves at the largest number of steps of the sum.  Weights
    move at each step, whereas many steps share one scale.  None if there is no read to prefetch.
    """
    accesses = context.stage.accesses
    reads = [
        n
        for n, a in accesses.items()
        if isinstance(n.source, int)
        and any(v.name == context.nest.vector for v in free_vars(a.offset))
    ]
    return max(reads, key=lambda n: _steps(context.stage, accesses[n]), default=None)


def _steps(stage: GroupStage, access: Access) -> int:
    """Returns the number of steps of the sum at which an access moves."""
    moves = free_vars(access.offset)
    return prod(known_extent(v) or 1 for v in stage.reduce if v in moves)


def _position(spans: Sequence[BlockRange], regions: Sequence[TileRange]) -> Index:
    """Returns the number of elements of `regions` that are computed before the block `spans`."""
    position, together = const(0), 1
    for span, region in zip(spans, regions, strict=True):
        position = position * region.size + (span.base - region.base) * together
        together *= span.size
    return position
