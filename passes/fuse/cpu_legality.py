"""What may be one kernel on cores: operands are loaded evenly, and what stages exchange stays near
the core that makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tcc.errors import TccError
from tcc.ir.expr import Expr
from tcc.ir.expr.scalar import Cast, Read
from tcc.ir.index import Var, as_int
from tcc.ir.tile import MemorySpace
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.passes.fuse.combine import read_plainly
from tcc.passes.fuse.structure import build_group, row_major_storage, steps_evenly
from tcc.passes.tile.cpu.scratch import resident_values
from tcc.schedule.backend import AnySchedule, KernelModel
from tcc.schedule.cpu.candidates import candidates
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import TYPICAL_CORE, CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.cpu.sliding_window import kept_gain, strips_fit
from tcc.schedule.cpu.transform_tiles import spread_pays, spreads
from tcc.schedule.nest import (
    contraction_factors,
    depends,
    of_bytes,
    points,
    row_loop,
    trips,
    weight,
    work,
)

# Operations of a kernel that one core does as soon as two would.
SMALL = 1 << 16
# Elements of a total that units do not make again and again.
_LARGE = 1 << 12
# Rows of a unit below which weights from far away would come too slowly for the multipliers.
_ROWS = 48


class CpuKernels(KernelModel):
    """What passes may see of a core; prices need a `pricer`."""

    def __init__(self, core: CoreModel, pricer: Pricer | None = None) -> None:
        self.core, self.pricer = core, pricer
        self.limits = replace(core.limits, near=core.l2 // 2)

    def legal(self, expr: Expr, constants: Sequence[bool]) -> bool:
        return is_cpu_kernel(expr, tuple(constants), self.core)

    def gain(self, group: TileGroup) -> float:
        return kept_gain(group, choose(group, self.core), self.core)

    def candidates(self, group: TileGroup) -> Sequence[Schedule]:
        return candidates(group, self.core)

    def price(self, group: TileGroup, schedule: AnySchedule) -> float:
        assert self.pricer is not None
        assert isinstance(schedule, Schedule)
        return self.pricer.price(group, schedule).seconds


# A core with 512-bit vectors, for those who only want to see what a model becomes.
TYPICAL = CpuKernels(TYPICAL_CORE)


def stays_near(group: TileGroup, registers: CoreModel) -> bool:
    """Whether a unit's scratch fits half the second-level cache and, where there is a contraction,
    units keep all cores busy and use each weight often enough.

    Raises `InternalError` where the scratch is of no known size.
    """
    schedule = choose(group, registers)
    resident = resident_values(group, schedule)
    buffers = dict.fromkeys(h.buffer for h in resident.values())
    size = sum((as_int(b.sizes[0]) or 0) * b.dtype.bytes for b in buffers)
    spread = spreads(group)
    if size > registers.l2 // 2 and not spread:
        return False
    contractions = [s for s in group.stages if contraction_factors(s) is not None and s.reduce]
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
        parallel = var.name in schedule.parallel
        count *= min(trips(var), schedule.unit(var.name)) if parallel else trips(var)
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


@lru_cache(maxsize=4096)  # groups are cut and joined again in search of the cheapest
def is_cpu_kernel(expr: Expr, constants: tuple[bool, ...], registers: CoreModel) -> bool:
    """Whether a kernel of `expr`, with everything row-major, loads its contractions' operands
    evenly and holds between its stages no more than a core's cache does."""
    storage = row_major_storage(expr, constants)
    try:
        group = build_group(expr, *storage, collapsed=False, limits=registers.limits)
        if not all(map(loads_evenly, group.stages)) or _totals_again(group):
            return False
        if len(group.stages) > 1 and not busy(group, registers):
            return False
        if not any(b.scope is MemorySpace.LOCAL for b in group.buffers):
            return True
        built = build_group(expr, *storage, limits=registers.limits)
        if row_loop(built) is not None:
            return strips_fit(built, choose(built, registers), registers)
        return read_plainly(expr) and stays_near(built, registers)
    except TccError:
        return False


def _totals_again(group: TileGroup) -> bool:
    """Whether every unit of a product would make a total over all of a large value."""
    totals = (s for s in group.stages if s.reduce and not points(s.iters) > 1)
    large = any(points(s.reduce) > _LARGE for s in totals)
    return large and any(s.iters and contraction_factors(s) is not None for s in group.stages)


def loads_evenly(stage: GroupStage) -> bool:
    """Whether a contraction multiplies elements as they lie, at even distances along every loop."""
    factors = contraction_factors(stage)
    if factors is None:
        return True
    loaded = (
        s.arg if of_bytes(stage) and isinstance(s, Cast) else s for s in (factors.a, factors.b)
    )
    if factors.a is not factors.b and not all(isinstance(s, Read) for s in loaded):
        return False  # a factor is read once for every element it meets
    return steps_evenly(stage)
