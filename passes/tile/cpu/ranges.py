"""Regions and spans: the part of each loop that a unit or a block covers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import reduce
from typing import TypeAlias

from tcc.ir.expr import extent
from tcc.ir.index import Index, Var, as_int, ceildiv, const, maximum, minimum
from tcc.ir.tile import If, lanes
from tcc.passes.tile.emitter import Emitter
from tcc.record import record
from tcc.schedule.cpu.schedule import even


@record
class TileRange:
    """The part of an iterator that a unit covers: `base + i` for `i < size`."""

    var: Var
    base: Index
    size: Index


@record
class BlockRange:
    """The part of an iterator a block covers: `base + lane` for `lane < size`.

    `axis` tells whether blocks have an axis for it (of `size`, maybe 1).
    """

    var: Var
    base: Index
    size: int
    axis: bool


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


def positions(spans: Sequence[BlockRange], shape: tuple[int, ...]) -> dict[Var, Index]:
    """Each iterator as an expression over loop and lane variables of a block of `shape`."""
    lane = iter(lanes(shape))
    return {s.var: s.base + next(lane) if s.axis else s.base for s in spans}


# ---- cutting ------------------------------------------------------------------------------------


def ladder(size: Index, block: int) -> tuple[tuple[Index, Index, int], ...]:
    """How an open `size` is cut: (start, stop, step) of loops over whole blocks, over parts of one,
    and one by one.  23 by 12 gives 0..12 by 12, 12..20 by 4, 20..23 by 1.

    A part is a divisor near the block's root: few trips of either kind.  Each kind is code of its
    own, for all loops inside.
    """
    rungs: list[tuple[Index, Index, int]] = []
    part = max(n for n in range(1, block + 1) if block % n == 0 and n * n <= block * 3 // 2)
    start = const(0)
    for step in dict.fromkeys((block, part, 1)):
        stop = size - size % step
        if as_int(stop - start) != 0:
            rungs.append((start, stop, step))
        start = stop
    return tuple(rungs)


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
    emitter: Emitter, region: TileRange, block: int, whole: bool, ends: bool = False
) -> Iterator[BlockRange]:
    """Serial: the blocks of a region; the remainder of a symbolic size goes down a ladder.  With
    `ends` the first and the last whole block of a static size are code of their own."""
    known = as_int(region.size)
    parts = even(known or 0, block, whole)
    if ends:
        parts = tuple(
            (n, c) for n, count in parts for c in (1, count - 2, min(1, count - 1)) if c > 0
        )
    cuts = ladder(region.size, block) if known is None else _cuts(parts)
    for start, stop, step in cuts:
        alone = as_int(stop - start) == step
        at = start if alone else emitter.counter(region.size)
        with nullcontext() if alone else emitter.loop(at, start, stop, step):
            yield BlockRange(region.var, region.base + at, step, block > 1)


def _cuts(parts: Sequence[tuple[int, int]]) -> Iterator[tuple[Index, Index, int]]:
    done = 0
    for size, count in parts:
        yield const(done), const(done + count * size), size
        done += count * size


def inside(emitter: Emitter, region: TileRange, tiled: bool) -> Iterator[BlockRange]:
    """Those elements of a region that the iterator has, one by one: the region may begin before
    zero and end beyond the extent.  The loop variable is the position itself."""
    at = emitter.counter(extent(region.var))
    start = maximum(0, region.base)
    with emitter.loop(at, start, minimum(extent(region.var), region.base + region.size)):
        yield BlockRange(region.var, at, 1, tiled)
