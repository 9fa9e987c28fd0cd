"""Describes which part of each loop a tile covers (a region), and which part a block (a span)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import reduce
from typing import TypeAlias

from tcc.frozen import frozen
from tcc.ir.expr import extent
from tcc.ir.index import Index, Var, as_int, ceildiv, const, maximum, minimum
from tcc.ir.tile import Guard, If, lanes
from tcc.passes.tile.emitter import StatementEmitter
from tcc.schedule.cpu.schedule import TailVectors, even
from tcc.schedule.masked_terms import Ends


@frozen
class TileRange:
    """The part of an iterator that a tile covers: `base + i` for `i < size`."""

    var: Var
    base: Index
    size: Index


@frozen
class BlockRange:
    """The part of an iterator that a block covers: `base + lane` for `lane < size`.

    `axis`: if True, blocks have an axis of length `size` for the iterator; if False, `size` is 1.
    `stop`: the end of the iterator if the block may reach beyond it, else None.  Nothing is loaded,
    stored or summed at positions from `stop` on.
    """

    var: Var
    base: Index
    size: int
    axis: bool
    stop: Index | None = None


@frozen
class Rung:
    """A loop over blocks of `step` elements, from `start` to `stop`: a part of a symbolic range.

    Several rungs, a ladder, cover the range: first large blocks, then smaller ones.  If `masked`,
    the last block may reach beyond the end of the range.
    """

    start: Index
    stop: Index
    step: int
    masked: bool = False


Regions: TypeAlias = Mapping[Var, TileRange]
Spans: TypeAlias = Mapping[Var, BlockRange]


def everything(var: Var) -> TileRange:
    """Returns the whole range of an iterator."""
    return TileRange(var, const(0), extent(var))


def ends_of(ranges: Iterable[TileRange | BlockRange]) -> dict[Var, Ends]:
    """Returns the first and the last position of each range, by iterator."""
    return {r.var: (r.base, r.base + r.size - 1) for r in ranges}


def flat(span: BlockRange) -> BlockRange:
    """Returns the first element of `span`, without an axis."""
    return BlockRange(span.var, span.base, 1, False)


def shape_of(spans: Sequence[BlockRange]) -> tuple[int, ...]:
    """Returns the shape of a block over `spans`."""
    return tuple(s.size for s in spans if s.axis)


def limits(spans: Sequence[BlockRange], mapping: Mapping[Var, Index]) -> tuple[Guard, ...]:
    """Returns guards that mask the lanes beyond the ends of `spans`.

    `mapping` has the position along each iterator, as a formula of the lane variables.
    """
    return tuple(Guard(mapping[s.var], s.stop) for s in spans if s.axis and s.stop is not None)


def positions(spans: Sequence[BlockRange], shape: tuple[int, ...]) -> dict[Var, Index]:
    """Returns the position along each iterator, as a formula of the lane variables of a block of
    `shape`."""
    lane = iter(lanes(shape))
    return {s.var: s.base + next(lane) if s.axis else s.base for s in spans}


# ---- cutting ------------------------------------------------------------------------------------


def ladder(size: Index, block: int, vectors: TailVectors | None = None) -> tuple[Rung, ...]:
    """Returns the rungs into which a symbolic `size` is cut.

    The code of a block is emitted once for each rung.  There are three kinds of ladders:

    Without `vectors`: full blocks, then parts of a block, then single elements.  The size of a part
    is the largest divisor of `block` up to its square root, so that the loops over parts and over
    elements are both short.  A size of 23 with blocks of 12 gives 0..12 by 12, 12..21 by 3, 21..23
    by 1.

    With vectors that can be masked: full blocks, then four vectors at a time, then two, then one.
    The last blocks of two vectors and of one may reach beyond the end.  A size of 155 with blocks
    of 64 and vectors of 16 gives 0..128 by 64, 128..160 by 32.

    With vectors that cannot be masked: full blocks, then vectors, then halves of a vector, and so
    on down to single elements.
    """
    if vectors is None:
        part = max(n for n in range(1, block + 1) if block % n == 0 and n * n <= block)
        return _rungs(size, block, dict.fromkeys((part, 1)))
    if not vectors.masked:
        return _rungs(size, block, _halves(vectors.lanes, 1))
    return _masked_rungs(size, block, vectors.lanes)


def _halves(largest: int, smallest: int) -> Iterator[int]:
    while largest >= smallest:
        yield largest
        largest //= 2


def _rungs(size: Index, block: int, parts: Iterable[int]) -> tuple[Rung, ...]:
    """Returns a rung of full blocks, then a rung for each size in `parts`, without empty rungs."""
    rungs: list[Rung] = []
    start = const(0)
    for step in (block, *(n for n in parts if n < block)):
        stop = size - size % step
        if as_int(stop - start) != 0:
            rungs.append(Rung(start, stop, step))
        start = stop
    return tuple(rungs)


def _masked_rungs(size: Index, block: int, width: int) -> tuple[Rung, ...]:
    """Returns rungs of full blocks, of four vectors, of two vectors and of one vector.

    `width` is the number of elements of a vector.  The last two rungs may reach beyond the end, but
    have no vector that lies beyond it completely.
    """
    four = min(4 * width, block)
    rungs = list(_rungs(size, block, (four,)))
    start = size - size % four
    pair = 2 * width
    if pair < block:
        # If at most one vector remains after pairs of vectors, the last rung computes it.
        remaining = size - start + (width - 1)
        stop = start + remaining - remaining % pair
        rungs.append(Rung(start, stop, pair, True))
        start = stop
    remaining = size - start + (width - 1)
    rungs.append(Rung(start, start + remaining - remaining % width, width, True))
    return tuple(r for r in rungs if as_int(r.stop - r.start) != 0)


def last_part(var: Var, tile_size: int) -> TileRange:
    """Returns the part of a symbolic loop that remains after its full tiles."""
    size = extent(var)
    return TileRange(var, size - size % tile_size, size % tile_size)


# Each generator below yields a range after it has opened a loop in `emitter`. Statements that the
# caller adds before it asks for the next range become the body of that loop.


def in_blocks(
    emitter: StatementEmitter,
    var: Var,
    block: int,
    firsts: Sequence[Index] = (),
    stops: Sequence[Index] = (),
) -> Iterator[TileRange]:
    """Adds a loop over the blocks of an iterator and yields their range, then yields the remainder.

    Blocks have `block` elements.  A block [begin, end) is left out if `end` is at most one of
    `firsts`, or if `begin` is at least one of `stops`.
    """
    size = extent(var)
    static_size = as_int(size)
    full_size = size - size % block if static_size is None or static_size > block else const(0)
    if as_int(full_size) != 0:
        counter = emitter.counter(size)
        start = block * reduce(maximum, (first // block for first in firsts), const(0))
        blocks = reduce(minimum, (ceildiv(stop, block) for stop in stops), full_size // block)
        with emitter.loop(counter, start, block * blocks if stops else full_size, block):
            yield TileRange(var, counter, const(block))
    if as_int(size - full_size) != 0:
        with emitter.body() as body:
            yield TileRange(var, full_size, size - full_size)
        for before, behind in (*((f, size) for f in firsts), *((full_size, s) for s in stops)):
            body = [If(before, behind, tuple(body))]
        emitter.add(*body)


def tiles(
    emitter: StatementEmitter,
    region: TileRange,
    block: int,
    full_blocks: bool,
    ends: bool = False,
    vectors: TailVectors | None = None,
) -> Iterator[BlockRange]:
    """Adds loops over the blocks of a region, and yields the block of each loop.

    A symbolic size is cut by `ladder`.  In a static size, all blocks but the last are full if
    `full_blocks`; otherwise block sizes differ by at most one.  `ends`: the first and the last full
    block of a static size get code of their own.
    """
    static_size = as_int(region.size)
    parts = even(static_size or 0, block, full_blocks)
    if ends:
        parts = tuple(
            (n, c) for n, count in parts for c in (1, count - 2, min(1, count - 1)) if c > 0
        )
    rungs = ladder(region.size, block, vectors) if static_size is None else _static_rungs(parts)
    for rung in rungs:
        single = as_int(rung.stop - rung.start) == rung.step
        start = rung.start if single else counter_of(emitter, region, rung)
        with nullcontext() if single else emitter.loop(start, rung.start, rung.stop, rung.step):
            yield block_at(region, rung, start, block > 1)


def counter_of(emitter: StatementEmitter, region: TileRange, rung: Rung) -> Index:
    """Returns a variable for the loop over the blocks of a rung."""
    return emitter.counter(rung.stop if rung.masked else region.size)


def block_at(region: TileRange, rung: Rung, start: Index, axis: bool) -> BlockRange:
    """Returns the block of a rung that begins `start` elements after the beginning of a region."""
    stop = region.base + region.size if rung.masked else None
    return BlockRange(region.var, region.base + start, rung.step, axis, stop)


def _static_rungs(parts: Sequence[tuple[int, int]]) -> Iterator[Rung]:
    start = 0
    for size, count in parts:
        yield Rung(const(start), const(start + count * size), size)
        start += count * size


def inside(emitter: StatementEmitter, region: TileRange, tiled: bool) -> Iterator[BlockRange]:
    """Adds a loop over the elements of a region inside the iterator's range, and yields a block of
    a single element.

    The region may begin before zero and end beyond the iterator's extent.  The loop variable is the
    position along the iterator.  `tiled`: the block has an axis for the iterator.
    """
    position = emitter.counter(extent(region.var))
    start = maximum(0, region.base)
    with emitter.loop(position, start, minimum(extent(region.var), region.base + region.size)):
        yield BlockRange(region.var, position, 1, tiled)
