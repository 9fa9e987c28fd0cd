"""Prefetches data that a kernel will need soon: weights, rows, and lines of results.

Weights.  A panel is some columns of a weight, and a K-block is some consecutive steps of the sum
over its rows.  The K-blocks of a panel follow each other in memory.  While a kernel multiplies one
K-block, it prefetches the next.  The register blocks of a tile's rows share this work: each
prefetches a part of the next K-block, a few cache lines with every step of the sum.

A long part is divided into streams, which begin some pages apart, and a line of each stream is
prefetched in turn.  One core then keeps more of memory's banks busy, and the hardware prefetcher
follows each stream.  Measured with one row of results on two cores: 24 GB/s in order, 31.5 with 8
streams, 33.5 with 16 streams, and 33 if each step prefetches neighbouring lines.  Streams that do
not begin at pages are slower: 28 GB/s with 8 streams (layout/weights.py).

Rows.  If a tile reads its rows in several passes, one pass prefetches the row of the next tile.

Results.  A point may have several results that lie apart, for example in a tile of a transformed
convolution.  While it is computed, the lines of a later point's results are prefetched.
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
from tcc.zipped import zip_equal

# Bytes of a cache line.
_LINE = 64
# A part of a K-block is divided into at most _STREAMS streams. Each has at least _PAGE bytes, a
# page, because the hardware prefetcher stops at the end of a page.
_STREAMS = 16
_PAGE = 4096
# If the number of rows is symbolic, only the first rows of a tile prefetch the next K-block, at
# most this many. If all rows of a full tile shared this work, a tile with fewer rows would leave
# parts out.
_FEW_ROWS = 16
# The next point's results are prefetched only if a point has at least this many results that lie
# apart.
_SEPARATE_RESULTS = 4
# A line is prefetched this many blocks along the vector loop before it is used.
_LATER = 4


def next_k_block(context: Surroundings, steps: Sequence[BlockRange]) -> None:
    """Emits the part of the next K-block's prefetches that belongs to one step of a sum.

    `steps` are the current blocks of the summed loops.  Emits none if the size of a K-block is
    symbolic.
    """
    node = _streamed(context)
    if node is None:
        return
    access, outer = context.stage.accesses[node], context.outer
    index = access.offset
    spans = [flat(s) for s in (*outer, *steps)]
    # Loops that do not occur in the index read the same elements again, so they are left out.
    steps = [s for s in steps if s.var in free_vars(index)]
    ranges = [context.k_blocks.get(s.var) or everything(s.var) for s in steps]
    rows = [s for s in outer if s.var not in free_vars(index)]
    covered = [context.regions[s.var] for s in rows]
    row_limits = [bounds(r.size)[1] for r in covered]
    if None in (*row_limits, *(as_int(r.size) for r in ranges)):
        return
    vector = next(s for s in outer if s.var.name == context.nest.vector)
    count = prod(n or 1 for n in row_limits)
    # If tiles may have few rows, the first rows prefetch all of the next K-block.
    few_rows = any(as_int(r.size) is None for r in covered) and count > _FEW_ROWS
    count = _FEW_ROWS if few_rows else count
    length = prod(as_int(r.size) or 1 for r in ranges)
    # For each step of the sum, a block of rows prefetches this many elements of the next K-block.
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
        # A prefetch has the same data-dependent indices as the read for which it prefetches.
        indirect = CoreStageScalars(context, spans).chosen(node)
        for place in places:
            context.emitter.add(
                Prefetch(buffer, (first + place,), indirect, level=context.nest.ahead)
            )
    context.emitter.add(*([If(block_position, const(count), tuple(hints))] if few_rows else hints))


def next_row(context: Surroundings, vector: BlockRange) -> None:
    """Emits the prefetches that belong to one step of a pass over a row.

    The prefetched elements have the positions of the current block `vector`, in the next row.
    """
    at = {s.var: s.base for s in (*context.outer, vector)}
    for access in next_rows(context.group, context.stage, vector.var):
        _prefetch(context, access, substitute(access.offset, at) + trips(vector.var), vector.size)


def next_results(context: Surroundings) -> None:
    """Emits prefetches of the lines in which a later point stores its results, if they lie apart.

    The later point is `_LATER` blocks further along the vector loop, or the next point of another
    loop if the vector loop is short.  The results of a point are in several rows of an image, so
    the hardware prefetcher does not predict their lines.  A line must be loaded before it is
    written.
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

    Each step of the sum prefetches `lines` lines.  If there are fewer streams than lines, a step
    prefetches equally many lines of each stream.  If there are more, a step prefetches one line of
    some of the streams, and the streams take turns.
    """
    limit = min(_STREAMS, size // _PAGE)
    return max((n for n in range(1, limit + 1) if n % lines == 0 or lines % n == 0), default=1)


def _turns(number: Index, steps: int, lines: int, streams: int) -> list[Index]:
    """Returns the indices of the lines, within a part, that step `number` of `steps` prefetches.

    They are the next lines of all streams, or of some streams if streams take turns (`_streams`).
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
    """Returns the read to prefetch: one that varies with the vector loop; None without one.

    Among several reads, it is the read that moves to another element at the most steps of the sum.
    For a quantised weight, the levels move at each step, but a scale stays for many steps.
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
    """Returns the number of steps of the sum at which an access moves to other elements."""
    moves = free_vars(access.offset)
    return prod(known_extent(v) or 1 for v in stage.reduce if v in moves)


def _position(spans: Sequence[BlockRange], regions: Sequence[TileRange]) -> Index:
    """Returns how many elements of `regions` come before the current block, which is `spans`."""
    position, together = const(0), 1
    for span, region in zip_equal(spans, regions):
        position = position * region.size + (span.base - region.base) * together
        together *= span.size
    return position
