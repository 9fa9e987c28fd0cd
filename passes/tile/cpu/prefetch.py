"""Prefetches of the K-block of a weight panel that follows the one in use.

Panels lie one after the other, and so do their K-blocks: what comes next begins where the K-block
at hand ends.  The rows of a unit share the work: while a block of rows uses the K-block at hand it
asks for its part of the next one, a few cache lines with every step of the sum.

A long part is asked for at several places, some pages apart, a line of each in turn: one core then
keeps more of memory's banks busy, and the cache's own prefetcher follows each of the streams.
Measured with one row of results on two cores: 24 GB/s in order, 31.5 with 8 streams, 33.5 with 16,
33 where a step asks for neighbouring lines; 28 with 8 that begin amid pages (layout/weights.py).

Likewise one of a unit's passes over its row asks for the row of the unit after it, and a point that
has several results, as a tile of a transformed convolution has, for the lines of its neighbour's.
"""

from collections.abc import Sequence
from math import ceil, prod

from tcc.ir.expr import known_extent
from tcc.ir.expr.scalar import Read
from tcc.ir.index import Index, Var, as_int, bounds, const, free_vars, substitute
from tcc.ir.tile import If, MemorySpace, Prefetch
from tcc.ir.tile.group import Access, GroupStage
from tcc.passes.tile.cpu.body import StageScalars, Surroundings
from tcc.passes.tile.cpu.ranges import BlockRange, TileRange, everything, flat
from tcc.schedule.cpu.reused_rows import next_rows
from tcc.schedule.nest import stride, trips

# Bytes of a cache line.
_LINE = 64
# Streams into which a part is divided, and the least bytes of each: the page that the cache's own
# prefetcher stays in.
_STREAMS = 16
_PAGE = 4096
# Rows of a last unit that ask for all of the next K-block: where its hints are, for it may have
# fewer rows than the unit before it.
_FEW_ROWS = 16
# Results of a point that lie apart, from which on hints for those of the next are worth it.
_APART = 4
# Blocks of the vector loop from a hint to what it is for.
_LATER = 4


def next_run(around: Surroundings, reduce: Sequence[BlockRange]) -> None:
    """The hints of one step of a sum; none where the size of a K-block is open."""
    node = _streamed(around)
    if node is None:
        return
    access, outer = around.stage.accesses[node], around.outer
    at = access.offset
    spans = [flat(s) for s in (*outer, *reduce)]
    # One element may hold several steps of the sum.
    reduce = [s for s in reduce if s.var in free_vars(at)]
    ranges = [around.k_blocks.get(s.var) or everything(s.var) for s in reduce]
    rows = [s for s in outer if s.var not in free_vars(at)]
    covered = [around.regions[s.var] for s in rows]
    most = [bounds(r.size)[1] for r in covered]
    if None in (*most, *(as_int(r.size) for r in ranges)):
        return
    vector = next(s for s in outer if s.var.name == around.nest.vector)
    count = prod(n or 1 for n in most)
    # The last unit of an open loop may have few rows: the first of them ask for all.
    few = any(as_int(r.size) is None for r in covered) and count > _FEW_ROWS
    count = _FEW_ROWS if few else count
    length = prod(as_int(r.size) or 1 for r in ranges)
    # Each element of the sum asks for `each` elements of the next K-block.
    each = ceil(vector.size * prod(s.size for s in rows) / count)
    share = vector.size * length // count
    mapping = {s.var: s.base for s in outer} | {r.var: r.base for r in ranges}
    first = substitute(at, mapping) + vector.size * length
    buffer = around.buffers[access.buffer]
    row = _position(rows, covered)
    first = first + row * share
    at = _position(reduce, ranges)
    step = prod(s.size for s in reduce)
    line = _LINE // buffer.dtype.bytes
    lines = ceil(each * step / line)
    streams = _streams(lines, share * buffer.dtype.bytes)
    if streams < 2 or each * step < line:
        places = [at * each + n * line for n in range(lines)]
    else:
        turns = _turns(at // step, ceil(length / step), lines, streams)
        places = [turn * line for turn in turns]
    with around.emitter.body() as hints:
        # Which element it is may be chosen by data.
        indirect = StageScalars(around, spans).chosen(node)
        for place in places:
            around.emitter.add(
                Prefetch(buffer, (first + place,), indirect, level=around.nest.ahead)
            )
    around.emitter.add(*([If(row, const(count), tuple(hints))] if few else hints))


def next_row(around: Surroundings, vector: BlockRange) -> None:
    """The hints of one step of a pass over rows: what the next row has at the same place."""
    at = {s.var: s.base for s in (*around.outer, vector)}
    for access in next_rows(around.group, around.stage, vector.var):
        _ask(around, access, substitute(access.offset, at) + trips(vector.var), vector.size)


def next_results(around: Surroundings) -> None:
    """Hints of a point whose several results lie apart: where those of a later block go, further
    along the vector loop or, where that is short, at the next point.

    They are lines of several rows of an image, which the cache's own prefetcher does not foresee,
    and a line that is to be written has to come first as well.
    """
    outer = around.outer
    rows = [s for s in outer if s.var.name != around.nest.vector]
    vector = next((s for s in outer if s.var.name == around.nest.vector), None)
    if len(around.stage.body) < _APART or not rows or vector is None:
        return
    at: dict[Var, Index] = {s.var: s.base for s in outer}
    span = vector if trips(vector.var) > 2 * _LATER * vector.size else rows[-1]
    at[span.var] = span.base + (_LATER if span is vector else 1) * span.size
    for access in around.stage.written:
        scope = around.buffers[access.buffer].scope
        if scope is not MemorySpace.LOCAL and stride(access, vector.var) == 1:
            _ask(around, access, substitute(access.offset, at), vector.size, write=True)


def _ask(
    around: Surroundings, access: Access, first: Index, size: int, *, write: bool = False
) -> None:
    """Hints for the lines of `size` elements."""
    buffer, level = around.buffers[access.buffer], around.nest.ahead or 1
    line = _LINE // buffer.dtype.bytes
    for n in range(ceil(size / line)):
        around.emitter.add(Prefetch(buffer, (first + n * line,), level=level, write=write))


def _streams(lines: int, size: int) -> int:
    """Into how many streams a part of `size` bytes is divided, of which every step of the sum asks
    for `lines` lines: for as many of each, or of a number of them in turn."""
    most = min(_STREAMS, size // _PAGE)
    return max((n for n in range(1, most + 1) if n % lines == 0 or lines % n == 0), default=1)


def _turns(number: Index, steps: int, lines: int, streams: int) -> list[Index]:
    """Which lines of a part step `number` of `steps` asks for: the next ones of each stream."""
    if streams <= lines:
        each = lines // streams
        at = number * each
        return [at + (n % streams * steps * each + n // streams) for n in range(lines)]
    turns = streams // lines
    length = ceil(steps / turns)
    at = number % turns * (lines * length) + number // turns
    return [at + n * length for n in range(lines)]


def _streamed(around: Surroundings) -> Read | None:
    """The read that varies with the vector loop; of several the one that moves most often, for a
    scale is shared by many steps."""
    accesses = around.stage.accesses
    found = [
        n
        for n, a in accesses.items()
        if isinstance(n.source, int)
        and any(v.name == around.nest.vector for v in free_vars(a.offset))
    ]
    return max(found, key=lambda n: _steps(around.stage, accesses[n]), default=None)


def _steps(stage: GroupStage, access: Access) -> int:
    moves = free_vars(access.offset)
    return prod(known_extent(v) or 1 for v in stage.reduce if v in moves)


def _position(spans: Sequence[BlockRange], regions: Sequence[TileRange]) -> Index:
    """How many elements of `regions` come before a block, in the order of the loops over blocks."""
    at, together = const(0), 1
    for span, region in zip(spans, regions, strict=True):
        at = at * region.size + (span.base - region.base) * together
        together *= span.size
    return at
