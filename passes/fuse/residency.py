"""Whether what the stages of a group exchange stays near the core that makes it."""

from __future__ import annotations

from collections.abc import Sequence

from tcc.ir.expr import extent
from tcc.ir.index import Var, as_int
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.passes.tile.cpu.scratch import held_values
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.cpu.transform_tiles import spread_pays, spreads
from tcc.schedule.nest import depends, points, product, trips, weight, work

# Operations of a kernel that one core does as soon as two would.
SMALL = 1 << 16
# Rows of a unit below which weights from far away would come too slowly for the multipliers.
_ROWS = 48


def stays_near(group: TileGroup, registers: CoreModel) -> bool:
    """Whether a unit's scratch fits half the second-level cache and, where there is a contraction,
    units keep all cores busy and use each weight often enough.

    Raises `InternalError` where the scratch is of no known size.
    """
    schedule = choose(group, registers)
    held = held_values(group, schedule)
    buffers = dict.fromkeys(h.buffer for h in held.values())
    size = sum((as_int(b.sizes[0]) or 0) * b.dtype.bytes for b in buffers)
    spread = spreads(group)
    if size > registers.l2 // 2 and not spread:
        return False
    contractions = [s for s in group.stages if product(s) is not None and s.reduce]
    if not contractions:
        return True
    units = _units(group.common, schedule)
    if units < registers.cores or (units % registers.cores and units < 4 * registers.cores):
        return False
    weighted = [s for s in contractions if _streams(group, s)]
    if spread:
        shared = [v for v in group.common if all(v in s.iters for s in group.stages)]
        apart = _units(shared, schedule)
        return all(spread_pays(group, s, size, apart, registers) for s in weighted)
    return all(_rows(group, s, schedule) >= min(_ROWS, _all_rows(group, s)) for s in weighted)


def busy(group: TileGroup, registers: CoreModel) -> bool:
    """Whether the loops that all stages share give every core something to do, where there is much
    to do."""
    amount = sum(work(s) * weight(s) for s in group.stages)
    return amount < SMALL or points(group.common) >= registers.cores


def _units(loops: Sequence[Var], schedule: Schedule) -> int:
    """Units along some loops."""
    count = 1
    for var in loops:
        if var.name in schedule.parallel:
            count *= -(-trips(var) // schedule.unit(var.name))
    return count


def _streams(group: TileGroup, stage: GroupStage) -> bool:
    """Whether the stage multiplies by a constant."""
    return any(group.buffers[a.buffer].constant for a in stage.accesses.values())


def _rows(group: TileGroup, stage: GroupStage, schedule: Schedule) -> int:
    """Results of a unit that use one weight."""
    count = 1
    for var in _row_loops(group, stage):
        size = as_int(extent(var)) or trips(var)
        unit = schedule.unit(var.name) if var.name in schedule.parallel else size
        count *= min(size, unit)
    return count


def _all_rows(group: TileGroup, stage: GroupStage) -> int:
    """Results that use one weight."""
    return points(_row_loops(group, stage))


def _row_loops(group: TileGroup, stage: GroupStage) -> tuple[Var, ...]:
    weights = {
        v
        for node, access in stage.accesses.items()
        if group.buffers[access.buffer].constant
        for v in depends(stage, node)
    }
    return tuple(v for v in stage.iters if v not in weights)
