"""Regions and spans: the part of each loop that a unit or a block covers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import reduce
from typing import TypeAlias

from tcc.ir.expr import extent
from tcc.ir.index import Index, Var, as_int, ceildiv, const, maximum, minimum
from tcc.ir.tile import Guard, If, lanes
from tcc.passes.tile.emitter import Emitter
from tcc.record import record
from tcc.schedule.cpu.schedule import Vectors, even


@record
class TileRange:
    """The part of an iterator that a unit covers: `base + i` for `i < size`."""

    var: Var
    base: Index
    size: Index


@record
class BlockRange:
    """The part of an iterator a block covers: `base + lane` for `lane < size`.

    `axis` tells whether blocks have an axis for it (of `size`, maybe 1).  Lanes at or behind `stop`
    are no elements of the iterator: nothing is loaded, stored or summed there.
    """

    var: Var
    base: Index
    size: int
    axis: bool
    stop: Index | None = None


@record
class Rung:
    """A loop over blocks: `step` elements at a time from `start` to `stop`; the last of them may
    reach behind the end where `masked`."""

    start: Index
    stop: Index
    step: int
    masked: bool = False


Regions: TypeAlias = Mapping[Var, TileRange]
Spans: TypeAlias = Mapping[Var, BlockRange]


def everything(var: Var) -> TileRange:
    """All of an iterator."""
    return TileRange(var, const(0), extent(var))


def flat(span: BlockRange) -> BlockRange:
    """A span that a block does not vary along has no axis in it."""
    return BlockRange(span.var, span.base, 1, False)


def shape_of(spans: Sequence[BlockRange]) -> tuple[int, ...]:
    """The shape of a block over `spans`."""
    return tuple(s.size for s in spans if s.axis)


def limits(spans: Sequence[BlockRange], mapping: Mapping[Var, Index]) -> tuple[Guard, ...]:
    """Guards that turn off the lanes behind the ends of `spans`, at positions as in `mapping`."""
    return tuple(Guard(mapping[s.var], s.stop) for s in spans if s.axis and s.stop is not None)


def positions(spans: Sequence[BlockRange], shape: tuple[int, ...]) -> dict[Var, Index]:
    """Each iterator as an expression over loop and lane variables of a block of `shape`."""
    lane = iter(lanes(shape))
    return {s.var: s.base + next(lane) if s.axis else s.base for s in spans}


# ---- cutting ------------------------------------------------------------------------------------


def ladder(size: Index, block: int, vectors: Vectors | None = None) -> tuple[Rung, ...]:
    """How an open `size` is cut.  Each rung is code of its own, for all loops inside.

    Without `vectors`: whole blocks, parts of one, and single elements.  A part is a divisor near
    the block's root: few trips of either kind, and more of them where a single element takes as
    long as a pair.  23 by 12 gives 0..12 by 12, 12..21 by 3, 21..23 by 1.

    With masks: whole blocks, then four vectors at a time, two and one; the last of two and of one
    may reach behind the end.  155 by 64 in vectors of 16 gives 0..128 by 64, 128..160 by 32.
    Without masks: whole blocks, then vectors, halves of one, and so on down to single elements.
    """
    if vectors is None:
        part = max(n for n in range(1, block + 1) if block % n == 0 and n * n <= block)
        return _rungs(size, block, dict.fromkeys((part, 1)))
    if not vectors.masked:
        return _rungs(size, block, _halves(vectors.lanes, 1))
    return _masked_rungs(size, block, vectors.lanes)


def _halves(most: int, least: int) -> Iterator[int]:
    while most >= least:
        yield most
        most //= 2


def _rungs(size: Index, block: int, parts: Iterable[int]) -> tuple[Rung, ...]:
    """Whole blocks and then `parts` of one, without those that are never reached."""
    rungs: list[Rung] = []
    start = const(0)
    for step in (block, *(n for n in parts if n < block)):
        stop = size - size % step
        if as_int(stop - start) != 0:
            rungs.append(Rung(start, stop, step))
        start = stop
    return tuple(rungs)


def _masked_rungs(size: Index, block: int, width: int) -> tuple[Rung, ...]:
    """Whole blocks and vectors, and then a pair of vectors and a single one, of which the last may
    reach behind the end: no more vectors than hold the elements."""
    four = min(4 * width, block)
    rungs = list(_rungs(size, block, (four,)))
    start = size - size % four
    pair = 2 * width
    if pair < block:
        # What fills one vector at most is left to it.
        left = size - start + (width - 1)
        stop = start + left - left % pair
        rungs.append(Rung(start, stop, pair, True))
        start = stop
    left = size - start + (width - 1)
    rungs.append(Rung(start, start + left - left % width, width, True))
    return tuple(r for r in rungs if as_int(r.stop - r.start) != 0)


def last_part(var: Var, unit: int) -> TileRange:
    """What whole units of an open loop leave: fewer elements than a unit has."""
    size = extent(var)
    return TileRange(var, size - size % unit, size % unit)


# What is added to `emitter` while one of these ranges is at hand is done for all of their kind.


def in_blocks(
    emitter: Emitter, var: Var, run: int, firsts: Sequence[Index] = (), stops: Sequence[Index] = ()
) -> Iterator[TileRange]:
    """Serial: all of an iterator, `run` elements at a time, and then what is left; but no block
    that ends before one of `firsts` or begins at one of `stops` or behind it."""
    size = extent(var)
    known = as_int(size)
    done = size - size % run if known is None or known > run else const(0)
    if as_int(done) != 0:
        at = emitter.counter(size)
        start = run * reduce(maximum, (first // run for first in firsts), const(0))
        blocks = reduce(minimum, (ceildiv(stop, run) for stop in stops), done // run)
        with emitter.loop(at, start, run * blocks if stops else done, run):
            yield TileRange(var, at, const(run))
    if as_int(size - done) != 0:
        with emitter.body() as body:
            yield TileRange(var, done, size - done)
        for before, behind in (*((f, size) for f in firsts), *((done, s) for s in stops)):
            body = [If(before, behind, tuple(body))]
        emitter.add(*body)


def tiles(
    emitter: Emitter,
    region: TileRange,
    block: int,
    whole: bool,
    ends: bool = False,
    vectors: Vectors | None = None,
) -> Iterator[BlockRange]:
    """Serial: the blocks of a region; the remainder of a symbolic size goes down a ladder.  With
    `ends` the first and the last whole block of a static size are code of their own."""
    known = as_int(region.size)
    parts = even(known or 0, block, whole)
    if ends:
        parts = tuple(
            (n, c) for n, count in parts for c in (1, count - 2, min(1, count - 1)) if c > 0
        )
    rungs = ladder(region.size, block, vectors) if known is None else _static_rungs(parts)
    for rung in rungs:
        alone = as_int(rung.stop - rung.start) == rung.step
        at = rung.start if alone else counter_of(emitter, region, rung)
        with nullcontext() if alone else emitter.loop(at, rung.start, rung.stop, rung.step):
            yield block_at(region, rung, at, block > 1)


def counter_of(emitter: Emitter, region: TileRange, rung: Rung) -> Index:
    """A loop variable that runs over the blocks of a rung."""
    return emitter.counter(rung.stop if rung.masked else region.size)


def block_at(region: TileRange, rung: Rung, at: Index, axis: bool) -> BlockRange:
    """The block of a rung that begins `at` elements behind the first of a region."""
    stop = region.base + region.size if rung.masked else None
    return BlockRange(region.var, region.base + at, rung.step, axis, stop)


def _static_rungs(parts: Sequence[tuple[int, int]]) -> Iterator[Rung]:
    done = 0
    for size, count in parts:
        yield Rung(const(done), const(done + count * size), size)
        done += count * size


def inside(emitter: Emitter, region: TileRange, tiled: bool) -> Iterator[BlockRange]:
    """Those elements of a region that the iterator has, one by one: the region may begin before
    zero and end beyond the extent.  The loop variable is the position itself."""
    at = emitter.counter(extent(region.var))
    start = maximum(0, region.base)
    with emitter.loop(at, start, minimum(extent(region.var), region.base + region.size)):
        yield BlockRange(region.var, at, 1, tiled)
