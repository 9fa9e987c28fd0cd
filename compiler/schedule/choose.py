"""Chooses a schedule for a tile group from its strides and the numbers of a target's cores."""

from __future__ import annotations

from collections.abc import Mapping

from tcc.ir.expr import extent
from tcc.ir.group import GroupStage, TileGroup
from tcc.ir.index import Var, as_int
from tcc.ir.scalar import Read, StageRef, walk
from tcc.schedule.contraction import (
    ROWS,
    Sides,
    blocks_of,
    contraction_nest,
    footprint,
    panels_outer,
    row_units,
    rows_of,
    runs_of,
    sides_of,
)
from tcc.schedule.nest import anchor, trips, weight, work
from tcc.schedule.registers import Registers
from tcc.schedule.schedule import Nest, Schedule
from tcc.schedule.vectors import vector_block, vector_loops

__all__ = ["Registers", "choose"]

# Work (body operations) below which cutting a unit further costs more than it balances.
UNIT_WORK = 1 << 14


def choose(group: TileGroup, registers: Registers) -> Schedule:
    """A schedule for `group`."""
    main = anchor(group)
    vectors = vector_loops(group, main)
    sides = sides_of(main, vectors.get(main))
    parts = _parts(group, main, sides, registers)
    blocks = {s: _blocks(s, vectors.get(s), registers) for s in group.stages}
    units = _units(group, main, sides, parts, blocks, vectors, registers)
    parallel = _parallel(group, main, vectors.get(main), sides, units, registers)
    inside = frozenset(
        v
        for s in group.stages
        for v in s.iters
        if v not in group.common or v.name not in parallel or units.get(v, 1) > blocks[s].get(v, 1)
    )
    nests = []
    for stages in parts:
        first = max((group.stages[n] for n in stages), key=lambda s: work(s) * weight(s))
        nests.append(
            _nest(group, stages, first, vectors.get(first), blocks[first], inside, registers)
        )
    named = tuple((v.name, n) for v, n in units.items() if v.name in parallel and n > 1)
    return Schedule(named, parallel, tuple(nests))


def _blocks(stage: GroupStage, vector: Var | None, registers: Registers) -> dict[Var, int]:
    sides = sides_of(stage, vector)
    if sides is not None:
        return blocks_of(stage, sides, registers)
    return {} if vector is None else {vector: vector_block(vector, stage, registers)}


def _nest(
    group: TileGroup,
    stages: tuple[int, ...],
    stage: GroupStage,
    vector: Var | None,
    blocks: Mapping[Var, int],
    inside: frozenset[Var],
    registers: Registers,
) -> Nest:
    sides = sides_of(stage, vector)
    if sides is not None and not sides.both:
        size = footprint(group, stage, sides.this) * stage.body[0].dtype.bytes
        if not rows_of(stage, sides):  # each core walks a part of its own, once
            size //= registers.cores
        far = size > registers.l2 // 2
        return contraction_nest(stages, stage, sides, blocks, inside, far=far)
    named = tuple((v.name, n) for v, n in blocks.items() if n > 1)
    return Nest(stages, (), named, None if vector is None else vector.name)


# ---- nests --------------------------------------------------------------------------------------


def _parts(
    group: TileGroup, main: GroupStage, sides: Sides | None, registers: Registers
) -> tuple[tuple[int, ...], ...]:
    """Stages that share a nest: those without a reduction follow the stage before them, where the
    loops are the same; but not one whose sums wait from run to run."""
    found: list[list[int]] = []
    for number, stage in enumerate(group.stages):
        if found and stage.monoid is None:
            before = [group.stages[n] for n in found[-1]]
            same = set(stage.iters) == set(before[0].iters)
            waits = any(s is main and _waits(s, sides, registers) for s in before)
            if same and not waits and not _reads_away(stage, found[-1]):
                found[-1].append(number)
                continue
        found.append([number])
    return tuple(map(tuple, found))


def _waits(stage: GroupStage, sides: Sides | None, registers: Registers) -> bool:
    return sides is not None and bool(runs_of(stage, sides, blocks_of(stage, sides, registers)))


def _reads_away(stage: GroupStage, numbers: list[int]) -> bool:
    """Whether a stage reads one of `numbers` anywhere but at the point it was just computed."""
    return any(
        isinstance(node, Read)
        and isinstance(node.source, StageRef)
        and node.source.stage in numbers
        and node in stage.accesses
        for node in walk(*stage.body)
    )


# ---- units --------------------------------------------------------------------------------------


def _units(
    group: TileGroup,
    main: GroupStage,
    sides: Sides | None,
    parts: tuple[tuple[int, ...], ...],
    blocks: Mapping[GroupStage, Mapping[Var, int]],
    vectors: Mapping[GroupStage, Var],
    registers: Registers,
) -> dict[Var, int]:
    """Elements of each common loop that a unit covers."""
    units = {v: n for v, n in blocks[main].items() if v in group.common}
    if sides is None or sides.both:
        if len(parts) > 1:
            return {v: n for v, n in units.items() if v is vectors.get(main)}
        return units
    rows = [v for v in rows_of(main, sides) if v in group.common]
    if rows and all(as_int(extent(v)) is not None for v in rows):
        units.update(row_units(main, group.common, sides, registers, ROWS))
    elif len(parts) > 1 and rows:
        units.update(dict.fromkeys(rows, 1))
        block = blocks[main].get(rows[-1], 1)
        units[rows[-1]] = 64 // block * block
    return units


def _parallel(
    group: TileGroup,
    main: GroupStage,
    vector: Var | None,
    sides: Sides | None,
    units: Mapping[Var, int],
    registers: Registers,
) -> tuple[str, ...]:
    """Storage order; but a contraction's larger operand is walked once, by the outer loops.

    Loops inside which a unit would have little to do stay whole.
    """
    order = [v for v in group.common if v is not vector]
    if vector is not None and vector in group.common:
        if sides is not None and panels_outer(group, main, sides, units, registers):
            outer = [v for v in order if v in sides.this]
            order = [*outer, vector, *(v for v in order if v not in sides.this)]
        else:
            order.append(vector)
    unit = sum(work(s) * weight(s) for s in group.stages)
    parallel: list[str] = []
    for var in order:
        if unit < UNIT_WORK and parallel:
            break
        parallel.append(var.name)
        unit //= max(1, -(-trips(var) // units.get(var, 1)))
    return tuple(parallel)
