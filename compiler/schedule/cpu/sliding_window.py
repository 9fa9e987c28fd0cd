"""How many rows a unit makes where stages read each other through windows.

Neighbouring units make the rows at their border twice, so strips are best high; but what the stages
exchange has to stay in a core's second-level cache, and all cores are to end at one time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, prod

from tcc.ir.expr import known_extent
from tcc.ir.expr.scalar import reads_of_stages
from tcc.ir.index import Var, as_int
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.nest import (
    contraction_factors,
    depends,
    own_loops,
    points,
    reads_here,
    row_loop,
    trips,
    weight,
    work,
)

# A core's cycles to write a byte for a later kernel and to read it there: from memory or a shared
# cache, and from the second-level caches, which another core's may be.
_FAR = 0.25
_NEAR = 0.1
# Cycles that one more kernel takes to start on all cores.
_LAUNCH = 6000
# Rows of a strip that are tried: a bound of the effort, for images are no higher.
_MOST = 1 << 10
# The share of the second-level cache that a strip may take.
_SHARE = 0.6


def without_rows(group: TileGroup, stage: GroupStage, vector: Var | None) -> GroupStage:
    """`stage` without the loops that register blocks do not run along: those that run row by row,
    and those over more images than a row is wide.  Neighbours in a row share columns and lines."""
    rows = row_loop(group)
    if rows is None:
        return stage
    apart = (rows,) if stage.strip is None else (rows, stage.strip.rows)
    most = max(map(trips, own_loops(group, stage)), default=inf)
    left = (v for v in stage.iters if v is vector or (v not in apart and trips(v) <= most))
    return replace(stage, iters=tuple(left))


def strip_rows(
    group: TileGroup,
    rows: Var,
    units: Mapping[Var, int],
    parts: Sequence[Sequence[int]],
    registers: CoreModel,
) -> int:
    """Rows of a unit that covers `units` of the other common loops: those that make the busiest
    core end first, among those whose strips fit."""
    exchanged = _exchanged(group, parts)
    room = registers.l2 * _SHARE
    found, least = 1, inf
    for count in range(1, min(trips(rows), _MOST) + 1):
        sizes = {**units, rows: count}
        if sum(_strip_bytes(group, s, sizes) for s in exchanged) > room:
            break
        cycles = _busiest(group, rows, sizes, registers)
        if cycles < least:
            found, least = count, cycles
    return found


def kept_gain(group: TileGroup, schedule: Schedule, registers: CoreModel) -> float:
    """Cycles that the stages of `group` save as one kernel, over kernels that exchange their
    results through memory: the traffic, the launches, less the rows that are made twice.  Negative
    where strips are of no use."""
    if not _channel_by_channel(group, registers):
        return -1.0
    exchanged = _exchanged(group, [n.stages for n in schedule.nests])
    saved = 0.0
    for stage in exchanged:
        if all(
            group.stages[n].monoid is None for n in schedule.nest(group.stages.index(stage)).stages
        ):
            continue  # no kernel of its own would have made it
        size = points(stage.iters) * _element(stage)
        price = _NEAR if size <= registers.l2 * registers.cores // 2 else _FAR
        saved += size * price / registers.cores + _LAUNCH
    rows = row_loop(group)
    if rows is None:
        return saved
    alone = sum(_cycles(s, registers) for s in group.stages) / registers.cores
    return saved + alone - _busiest(group, rows, _unit_sizes(group, schedule), registers)


def _channel_by_channel(group: TileGroup, registers: CoreModel) -> bool:
    """Whether windows slide over each channel alone, and channels fill vectors: a unit then takes
    a block of them, and high strips.  Windows over all channels gain nothing (measured), and of
    two kernels only sums are worth joining, to each other or to a copy of what they read: other
    stages belong to the sum that they complete."""
    rows = row_loop(group)
    others = [v for v in group.common if v is not rows and _fills(v, registers)]
    sums = [s for s in group.stages if s.reduce]
    least = 2 if weight(group.stages[0]) > 1 else 1
    summed = len(sums) >= least and all(contraction_factors(s) is not None for s in sums)
    return rows is not None and bool(others) and summed


def _fills(var: Var, registers: CoreModel) -> bool:
    """Whether a loop is long enough for vectors, by proof: images are not as many as channels."""
    return (known_extent(var) or 0) >= registers.lanes


def strips_fit(group: TileGroup, schedule: Schedule, registers: CoreModel) -> bool:
    """Whether strips are of use, and what a unit's nests exchange and the weights that all units
    use stay in a core's second-level cache."""
    if not _channel_by_channel(group, registers):
        return False
    sizes = _unit_sizes(group, schedule)
    exchanged = _exchanged(group, [n.stages for n in schedule.nests])
    strips = sum(_strip_bytes(group, s, sizes) for s in exchanged)
    constants = [b for b in group.buffers if b.constant]
    weights = sum((as_int(b.size) or 0) * b.dtype.bytes for b in constants)
    return strips <= registers.l2 * _SHARE and strips + weights <= registers.l2


def _exchanged(group: TileGroup, parts: Sequence[Sequence[int]]) -> list[GroupStage]:
    """Stages whose results another of the nests `parts` reads."""
    nest = {number: n for n, part in enumerate(parts) for number in part}
    found: dict[int, None] = {}
    for number, stage in enumerate(group.stages):
        for node, source in reads_of_stages(*stage.body):
            if nest[source.stage] != nest[number] or not reads_here(group, stage, node):
                found[source.stage] = None
    return [group.stages[n] for n in sorted(found)]


def _unit_sizes(group: TileGroup, schedule: Schedule) -> dict[Var, int]:
    return {v: schedule.unit(v.name) for v in group.common}


def _busiest(group: TileGroup, rows: Var, sizes: Mapping[Var, int], registers: CoreModel) -> float:
    """Cycles of the core that makes most, with units of `sizes`."""
    # Of open loops, images say, there may be a single trip.
    loops = [v for v in group.common if v is not rows and known_extent(v) is not None]
    others = max(prod(-(-trips(v) // sizes.get(v, 1)) for v in loops), 1)  # 0: of no elements
    units = others * -(-trips(rows) // sizes[rows])
    unit = sum(_cycles(s, registers) * _share(s, rows, sizes[rows]) for s in group.stages) / others
    return -(-units // registers.cores) * unit


def _share(stage: GroupStage, rows: Var, count: int) -> float:
    """The share of a stage's rows that a unit of `count` rows makes."""
    own, made = (rows, count)
    if stage.strip is not None:
        own, made = stage.strip.rows, stage.strip.count(count)
    return min(1.0, made / max(trips(own), 1))  # 0: of no elements


def _cycles(stage: GroupStage, registers: CoreModel) -> float:
    """Cycles of all of a stage on one core, from near caches."""
    steps = work(stage) / registers.lanes
    factors = contraction_factors(stage)
    if factors is None or not stage.reduce:
        return steps * weight(stage) / registers.fmas
    # Where both factors run over all of the result, each product loads one of its own.
    a, b = (depends(stage, f) & {*stage.iters} for f in (factors.a, factors.b))
    return steps / (registers.loads / 2 if a <= b or b <= a else registers.fmas)


def _strip_bytes(group: TileGroup, stage: GroupStage, sizes: Mapping[Var, int]) -> int:
    """Bytes of scratch for a stage of which a unit of `sizes` makes what others need."""
    strip = stage.strip
    if strip is None:
        return 0
    others = prod(
        min(trips(v), sizes.get(v, 1))
        for v in group.common
        if v in stage.iters and v is not strip.rows
    )
    return strip.width * strip.count(sizes[strip.loop]) * others * _element(stage)


def _element(stage: GroupStage) -> int:
    return sum(s.dtype.bytes for s in stage.body)
