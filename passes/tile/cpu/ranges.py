"""Regions and spans: the part of each loop that a unit or a block covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tcc.ir.expr import extent
from tcc.ir.index import Index, Var, as_int, const, free_vars, maximum, minimum, substitute
from tcc.ir.tile import Guard, Loop, Stmts, lanes
from tcc.ir.tile.group import Access
from tcc.record import record


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


def positions(spans: Sequence[BlockRange], shape: tuple[int, ...]) -> dict[Var, Index]:
    """Each iterator as an expression over loop and lane variables of a block of `shape`."""
    lane = iter(lanes(shape))
    mapping: dict[Var, Index] = {}
    for span in spans:
        if not span.axis:
            mapping[span.var] = span.base
            continue
        own = next(lane)
        mapping[span.var] = span.base + own
    return mapping


def guards_at(access: Access, mapping: Mapping[Var, Index]) -> tuple[Guard, ...]:
    return tuple(
        Guard(substitute(g.index, mapping), substitute(g.extent, mapping)) for g in access.guards
    )


# ---- cutting ------------------------------------------------------------------------------------


def even(size: int, block: int, whole: bool) -> tuple[tuple[int, int], ...]:
    """How `size` is cut into blocks: (count, elements) of at most two kinds, the larger first.

    `whole` blocks first and then what is left (lanes of vectors), else sizes that differ by at
    most one: 49 by 6 gives (4, 6), (5, 5).
    """
    if size <= block:
        return ((1, size),)
    count, left = -(-size // block), size % block
    if not left:
        return ((count, block),)
    if whole:
        return (count - 1, block), (1, left)
    rest, more = divmod(size, count)
    if not more:
        return ((count, rest),)
    return (more, rest + 1), (count - more, rest)


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


def in_runs(
    var: Var,
    run: int,
    counter: Callable[[Index], Index],
    emit: Callable[[TileRange], Stmts],
) -> Stmts:
    """Serial: all of an iterator, `run` elements at a time, and then what is left."""
    size = extent(var)
    known = as_int(size)
    if known is not None and known <= run:
        return emit(everything(var))
    stop = size - size % run
    stmts: Stmts = []
    if as_int(stop) != 0:
        at = counter(size)
        (loop,) = free_vars(at)
        body = emit(TileRange(var, at, const(run)))
        stmts.append(Loop(loop, const(0), stop, run, (), (), tuple(body), (), ()))
    if as_int(size - stop) != 0:
        stmts += emit(TileRange(var, stop, size - stop))
    return stmts


def tiles(
    region: TileRange,
    block: int,
    whole: bool,
    counter: Callable[[Index], Index],
    emit: Callable[[BlockRange], Stmts],
) -> Stmts:
    """Serial loops over blocks of a region; the remainder of a symbolic size goes down a ladder."""
    tiled = block > 1
    known = as_int(region.size)
    if known == 0:
        return []
    if known is not None:
        stmts: Stmts = []
        done = 0
        for count, size in even(known, block, whole):
            start, done = done, done + count * size
            if count == 1:
                stmts += emit(BlockRange(region.var, region.base + start, size, tiled))
            else:
                at = counter(region.size)
                stmts.append(_loop(at, region, const(start), const(done), size, tiled, emit))
        return stmts
    stmts = []
    for first, stop, step in ladder(region.size, block):
        stmts.append(_loop(counter(region.size), region, first, stop, step, tiled, emit))
    return stmts


def _loop(
    at: Index,
    region: TileRange,
    start: Index,
    stop: Index,
    step: int,
    tiled: bool,
    emit: Callable[[BlockRange], Stmts],
) -> Loop:
    (var,) = free_vars(at)
    body = emit(BlockRange(region.var, region.base + at, step, tiled))
    return Loop(var, start, stop, step, (), (), tuple(body), (), ())


def inside(
    region: TileRange,
    tiled: bool,
    counter: Callable[[Index], Index],
    emit: Callable[[BlockRange], Stmts],
) -> Stmts:
    """A loop over those elements of a region that the iterator has, one by one: the region may
    begin before zero and end beyond the extent.  The loop variable is the position itself."""
    size = extent(region.var)
    start = maximum(0, region.base)
    stop = minimum(size, region.base + region.size)
    at = counter(size)
    (var,) = free_vars(at)
    body = emit(BlockRange(region.var, at, 1, tiled))
    return [Loop(var, start, stop, 1, (), (), tuple(body), (), ())]
