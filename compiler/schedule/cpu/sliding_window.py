"""The number of rows that a tile computes if stages read each other through sliding windows.

A strip is the rows of a stage that a tile computes for the tile's later stages. Two neighbouring
tiles both compute the rows at their border, so tiles of many rows repeat the least work. But the
values that stages exchange have to fit a core's second-level cache, and all cores should end at the
same time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, prod

from tcc.ir.expr import known_extent
from tcc.ir.expr.scalar import Read, reads_of_stages
from tcc.ir.index import Var
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.nest import (
    constant_bytes,
    contraction_factors,
    contracts,
    is_open,
    own_loops,
    points,
    reads_here,
    row_loop,
    tile_count,
    trips,
    weight,
    work,
)

# Cycles that a byte costs which one kernel writes and a later kernel reads. _FAR: through memory or
# a shared cache. _NEAR: through second-level caches, possibly another core's.
_FAR = 0.25
_NEAR = 0.1
# Cycles to start one more kernel on all cores.
_LAUNCH = 6000
# The most rows of a tile that are tried, to bound the effort; images are no higher.
_MOST = 1 << 10
# The fraction of L2 that the strips of a tile may take.
_SHARE = 0.6


def without_rows(group: TileGroup, stage: GroupStage, vector: Var | None) -> GroupStage:
    """Returns `stage` with only the loops along which register blocks may run.

    The row loops are left out. A loop is left out too if it has more trips than every loop that
    tiles cover whole; for example, a loop over 64 images of 32 columns. So blocks run along the
    columns of a row. Neighbours in a row share elements of a window, and cache lines.
    """
    rows = row_loop(group)
    if rows is None:
        return stage
    row_loops = (rows,) if stage.strip is None else (rows, stage.strip.rows)
    widest = max(map(trips, own_loops(group, stage)), default=inf)
    loops = (v for v in stage.iters if v is vector or (v not in row_loops and trips(v) <= widest))
    return replace(stage, iters=tuple(loops))


def strip_rows(
    group: TileGroup,
    rows: Var,
    tiles: Mapping[Var, int],
    parts: Sequence[Sequence[int]],
    core: CoreModel,
) -> int:
    """Returns the number of rows of a tile; `tiles` has its elements along the other common loops.

    Among the numbers with which the strips fit the second-level cache, it is the one with which the
    busiest core takes the fewest cycles. Without contractions, whose arithmetic hides loads from
    that cache, the strips fit the first-level cache, beside the operand's rows. `parts` has the
    stages of each nest.
    """
    contracting = any(map(contracts, group.stages))
    rule = "tile_sizes: strips fit L2" if contracting else "tile_sizes: strips fit L1"
    core.because(rule, None, rows)
    exchanged = _exchanged(group, parts)
    room = (core.l2 if contracting else core.l1 / 2) * _SHARE
    best, fewest = 1, inf
    for count in range(1, min(trips(rows), _MOST) + 1):
        sizes = {**tiles, rows: count}
        if sum(_strip_bytes(group, s, sizes) for s in exchanged) > room:
            break
        cycles = _busiest(group, rows, sizes, core)
        if cycles < fewest:
            best, fewest = count, cycles
    return best


def kept_gain(group: TileGroup, schedule: Schedule, core: CoreModel) -> float:
    """Returns the cycles that one kernel of all stages saves; negative if it takes longer.

    The alternative is a kernel for each stage; these kernels exchange their results through memory.
    One kernel saves traffic and launches, but computes some rows twice.
    """
    if not _channel_by_channel(group, core):
        return -1.0
    exchanged = _exchanged(group, [n.stages for n in schedule.nests])
    saved = 0.0
    for stage in exchanged:
        if all(
            group.stages[n].monoid is None for n in schedule.nest(group.stages.index(stage)).stages
        ):
            continue  # without a reduction, it would be part of another kernel
        size = points(stage.iters) * _element(stage)
        cycles = _NEAR if size <= core.l2 * core.cores // 2 else _FAR
        saved += size * cycles / core.cores + _LAUNCH
    rows = row_loop(group)
    if rows is None:
        return saved
    separate = sum(_cycles(s, core) for s in group.stages) / core.cores
    return saved + separate - _busiest(group, rows, _unit_sizes(group, schedule), core)


def _channel_by_channel(group: TileGroup, core: CoreModel) -> bool:
    """Returns True if windows slide over each channel by itself, and the channels fill vectors.

    A tile then covers a block of channels and many rows. If windows read all channels, joining
    kernels gains nothing (measured). Only sums are worth joining to each other, and only sums and
    extrema to a copy of their operand. A stage without a sum belongs to the kernel of the sum whose
    results it reads.
    """
    rows = row_loop(group)
    # Loops over channels often fill a vector surely, by their known size. Loops over images do not.
    channel_loops = [
        v for v in group.common if v is not rows and (known_extent(v) or 0) >= core.lanes
    ]
    first, sums = group.stages[0], [s for s in group.stages if s.reduce]
    copies = first not in sums and isinstance(first.body[0], Read)
    fewest = 2 if weight(first) > 1 else 1
    summed = len(sums) >= fewest and (copies or all(map(contracts, sums)))
    return rows is not None and bool(channel_loops) and summed


def strips_fit(group: TileGroup, schedule: Schedule, core: CoreModel) -> bool:
    """Returns True if one kernel of all stages is worthwhile and fits a core's second-level cache.

    The cache has to hold the values that a tile's nests exchange, and the weights that all tiles
    use.
    """
    if not _channel_by_channel(group, core):
        return False
    sizes = _unit_sizes(group, schedule)
    exchanged = _exchanged(group, [n.stages for n in schedule.nests])
    strips = sum(_strip_bytes(group, s, sizes) for s in exchanged)
    weights = constant_bytes(group.buffers)
    return strips <= core.l2 * _SHARE and strips + weights <= core.l2


def _exchanged(group: TileGroup, parts: Sequence[Sequence[int]]) -> list[GroupStage]:
    """Returns the stages whose results are exchanged in scratch.

    A result is exchanged in scratch if a stage of another nest reads it, or if a stage of the same
    nest reads it at another point than its own. `parts` has the stages of each nest.
    """
    nest = {number: n for n, part in enumerate(parts) for number in part}
    numbers: dict[int, None] = {}
    for number, stage in enumerate(group.stages):
        for node, source in reads_of_stages(*stage.body):
            if nest[source.stage] != nest[number] or not reads_here(group, stage, node):
                numbers[source.stage] = None
    return [group.stages[n] for n in sorted(numbers)]


def _unit_sizes(group: TileGroup, schedule: Schedule) -> dict[Var, int]:
    return {v: schedule.tile_size(v.name) for v in group.common}


def _busiest(group: TileGroup, rows: Var, sizes: Mapping[Var, int], core: CoreModel) -> float:
    """Returns the cycles of the core with the most work; `sizes` has the elements of a tile."""
    # A symbolic loop, such as one over images, may have a single trip.
    loops = [v for v in group.common if v is not rows and not is_open(v)]
    other_tiles = max(tile_count(loops, sizes), 1)  # a loop without elements has 0 tiles
    tiles = other_tiles * -(-trips(rows) // sizes[rows])
    cycles = (
        sum(_cycles(s, core) * _share(s, rows, sizes[rows]) for s in group.stages) / other_tiles
    )
    return -(-tiles // core.cores) * cycles


def _share(stage: GroupStage, rows: Var, count: int) -> float:
    """Returns the fraction of a stage's rows that a tile of `count` rows computes."""
    rows_loop, computed = (rows, count)
    if stage.strip is not None:
        rows_loop, computed = stage.strip.rows, stage.strip.count(count)
    return min(1.0, computed / max(trips(rows_loop), 1))  # a loop without elements has 0 trips


def _cycles(stage: GroupStage, core: CoreModel) -> float:
    """Returns the cycles of a whole stage on one core, with all operands in near caches."""
    steps = work(stage) / core.lanes
    factors = contraction_factors(stage)
    if factors is None or not stage.reduce:
        return steps * weight(stage) / core.fmas
    # If both factors depend on all loops of the result, no multiply-add shares a loaded factor.
    a, b = (loops & {*stage.iters} for loops in factors.loops(stage))
    return steps / (core.loads / 2 if a <= b or b <= a else core.fmas)


def _strip_bytes(group: TileGroup, stage: GroupStage, sizes: Mapping[Var, int]) -> int:
    """Returns the bytes of a stage's strip: the rows that a tile stores in scratch.

    Returns 0 for a stage without a strip. `sizes` has the elements of a tile along the common
    loops.
    """
    strip = stage.strip
    if strip is None:
        return 0
    other_elements = prod(
        min(trips(v), sizes.get(v, 1))
        for v in group.common
        if v in stage.iters and v is not strip.rows
    )
    return strip.width * strip.count(sizes[strip.loop]) * other_elements * _element(stage)


def _element(stage: GroupStage) -> int:
    """Returns the bytes of one element of a stage, summed over its components."""
    return sum(s.dtype.bytes for s in stage.body)
