"""Chooses a schedule for a tile group from its strides and the numbers of a target's cores."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from tcc.ir.expr import known_extent
from tcc.ir.expr.scalar import reads_of_stages
from tcc.ir.index import Var
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.schedule.cpu.along import loops_along
from tcc.schedule.cpu.contraction import (
    ROWS,
    ContractionLoops,
    blocks_of,
    contraction_loops,
    contraction_nest,
    footprint,
    is_constant,
    k_blocks_of,
    panels_outer,
    row_units,
    with_phases,
)
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.depthwise import window_units
from tcc.schedule.cpu.reused_rows import asking
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.cpu.shared_lines import whole_lines
from tcc.schedule.cpu.sliding_window import strip_rows, without_rows
from tcc.schedule.cpu.streaming import choose_streaming
from tcc.schedule.cpu.transform_tiles import resident_rows, spreads
from tcc.schedule.cpu.transpose_tiles import (
    loop_between_lanes,
    transposing_blocks,
    transposing_vector,
)
from tcc.schedule.cpu.vectors import (
    stored_vector,
    vector_block,
    vector_loops,
    with_vectors,
)
from tcc.schedule.nest import anchor, own_loops, reads_here, row_loop, trips, weight, work

# Work (body operations) below which cutting a unit further costs more than it balances.
UNIT_WORK = 1 << 14


def choose(group: TileGroup, registers: CoreModel) -> Schedule:
    """A schedule for `group`."""
    schedule = _choose(group, registers)
    nests = tuple(with_vectors(group, nest, registers) for nest in schedule.nests)
    return schedule if nests == schedule.nests else replace(schedule, nests=nests)


def _choose(group: TileGroup, registers: CoreModel) -> Schedule:
    if group.stream is not None:
        return choose_streaming(group, group.stream, registers)
    main = anchor(group)
    vectors = _vectors(group, main, known=bool(registers.knobs.known))
    contraction = contraction_loops(main, vectors.get(main))
    rows = row_loop(group)
    blocks = {s: _blocks(group, s, vectors.get(s), registers) for s in group.stages}
    parts = _parts(group, main, contraction, registers)
    before = _along(group, parts, vectors, blocks) if registers.knobs.along else {}
    if rows is not None:
        copied = {} if group.stages[0].reduce else blocks[group.stages[0]]  # in few rows at a time
        units = {v: min(n, copied.get(v, n)) for v, n in blocks[main].items() if v in group.common}
        blocks = {s: {v: min(n, units.get(v, n)) for v, n in b.items()} for s, b in blocks.items()}
        units[rows] = strip_rows(group, rows, units, parts, registers)
        parallel = tuple(v.name for v in group.common)
    else:
        units = _units(group, main, contraction, parts, blocks, vectors, registers)
        resident = len(parts) > 1 or _waits(group, contraction, registers)
        parallel = _parallel(
            group, main, vectors.get(main), contraction, units, resident, registers
        )
    inside = frozenset(
        v
        for s in group.stages
        for v in s.iters
        if v not in group.common or v.name not in parallel or units.get(v, 1) > blocks[s].get(v, 1)
    )
    nests = []
    for stages in parts:
        first = _first(group, stages)
        nest = _nest(group, stages, first, vectors.get(first), blocks[first], inside, registers)
        nests.append(nest)
    nests = [
        replace(n, along=before.get(n.stages, ())) for n in nests if n.stages not in before.values()
    ]
    named = tuple((v.name, n) for v, n in units.items() if v.name in parallel and n > 1)
    return Schedule(named, parallel, tuple(asking(group, nests, vectors, registers.l2)))


@lru_cache(maxsize=256)  # of a group many schedules are tried
def _vectors(group: TileGroup, main: GroupStage, *, known: bool) -> Mapping[GroupStage, Var]:
    found = vector_loops(group, main, known=known)
    if len(group.stages) == 1:
        transposing = (
            None if found else transposing_vector(group, main, group.common) or stored_vector(main)
        )
        return found if transposing is None else {main: transposing}
    for stage in group.stages:
        own = own_loops(group, stage)
        transposing = None if stage in found else transposing_vector(group, stage, own)
        if transposing is not None:
            found[stage] = transposing
    return found


def _blocks(
    group: TileGroup, stage: GroupStage, vector: Var | None, registers: CoreModel
) -> dict[Var, int]:
    stage = without_rows(group, stage, vector)
    contraction = contraction_loops(stage, vector)
    if contraction is not None:
        blocks = blocks_of(contraction, registers)
        return with_phases(
            contraction, blocks, loop_between_lanes(group, stage, contraction.vector)
        )
    alone = len(group.stages) == 1 or (row_loop(group) is not None and weight(stage) == 1)
    loops = stage.iters if alone else own_loops(group, stage)
    transposing = transposing_blocks(group, stage, vector, loops, registers)
    if transposing:
        return transposing
    return {} if vector is None else {vector: vector_block(vector, stage, registers)}


def _nest(
    group: TileGroup,
    stages: tuple[int, ...],
    stage: GroupStage,
    vector: Var | None,
    blocks: Mapping[Var, int],
    inside: frozenset[Var],
    registers: CoreModel,
) -> Nest:
    contraction = contraction_loops(stage, vector)
    if contraction is not None and not contraction.both:
        far = _far(group, contraction, registers)
        constant = is_constant(group, contraction.stage, contraction.this)
        copied = registers.knobs.copy > 0 and not constant
        return contraction_nest(
            stages, group.common, contraction, blocks, inside, registers, far=far, copied=copied
        )
    named = tuple((v.name, n) for v, n in blocks.items() if n > 1)
    order: tuple[str, ...] = ()
    if vector and stage.monoid is None and len(stage.body) > 1 and vector not in group.common:
        # What lies side by side comes before the next point.
        order = tuple(v.name for v in group.common if v in stage.iters)
    return Nest(stages, order, named, vector.name if vector else None)


def _far(group: TileGroup, contraction: ContractionLoops, registers: CoreModel) -> bool:
    """Whether the vector operand comes from beyond the second-level cache: it does not fit, or it
    is a weight, which other kernels' data displaced since the last run."""
    size = (
        footprint(group, contraction.stage, contraction.this)
        * contraction.stage.body[0].dtype.bytes
    )
    if not contraction.rows:  # each core walks a part of its own, once
        return size // registers.cores > registers.l2 // 2
    cold = is_constant(group, contraction.stage, contraction.this)
    return size > (registers.l1 if cold else registers.l2 // 2)


def _first(group: TileGroup, stages: tuple[int, ...]) -> GroupStage:
    """The stage that decides the loops of a nest."""
    return max((group.stages[n] for n in stages), key=lambda s: work(s) * weight(s))


# ---- nests --------------------------------------------------------------------------------------


def _parts(
    group: TileGroup, main: GroupStage, contraction: ContractionLoops | None, registers: CoreModel
) -> tuple[tuple[int, ...], ...]:
    """Stages that share a nest: those without a reduction follow the stage before them, where the
    loops are the same; but not one whose sums wait from K-block to K-block."""
    found: list[list[int]] = []
    for number, stage in enumerate(group.stages):
        if found and stage.monoid is None:
            before = [group.stages[n] for n in found[-1]]
            same = set(stage.iters) == set(before[0].iters)
            waits = main in before and _waits(group, contraction, registers)
            if same and not waits and not _reads_away(group, stage, found[-1]):
                found[-1].append(number)
                continue
        found.append([number])
    return tuple(map(tuple, found))


def _along(
    group: TileGroup,
    parts: tuple[tuple[int, ...], ...],
    vectors: Mapping[GroupStage, Var],
    blocks: Mapping[GroupStage, Mapping[Var, int]],
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The parts that are made along the part behind them: pointwise stages along a reduction that
    reads them, where vectors run the same way in both."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for before, part in pairwise(parts):
        reduction = group.stages[part[0]]
        loops = loops_along(group, before, reduction)
        if loops is None or _first(group, part) is not reduction:
            continue
        vector = vectors.get(reduction)
        sides = [(reduction, vector)]
        for stage in (group.stages[n] for n in before):
            own = vectors.get(stage)
            sides.append((stage, own))
            if (None if own is None else loops.get(own, own)) is not vector:
                break
        else:
            if all(blocks[s].keys() <= {v} for s, v in sides):
                found[part] = before
    return found


def _waits(group: TileGroup, contraction: ContractionLoops | None, registers: CoreModel) -> bool:
    return contraction is not None and bool(
        k_blocks_of(group.common, contraction, blocks_of(contraction, registers), registers)
    )


def _reads_away(group: TileGroup, stage: GroupStage, numbers: list[int]) -> bool:
    """Whether a stage reads one of `numbers` anywhere but at the point it was just computed."""
    return any(
        source.stage in numbers and not reads_here(group, stage, node)
        for node, source in reads_of_stages(*stage.body)
    )


# ---- units --------------------------------------------------------------------------------------


def _units(
    group: TileGroup,
    main: GroupStage,
    contraction: ContractionLoops | None,
    parts: tuple[tuple[int, ...], ...],
    blocks: Mapping[GroupStage, Mapping[Var, int]],
    vectors: Mapping[GroupStage, Var],
    registers: CoreModel,
) -> dict[Var, int]:
    """Elements of each common loop that a unit covers."""
    units = {v: n for v, n in blocks[main].items() if v in group.common}
    if contraction is None or contraction.both:
        if len(parts) > 1:
            units = {v: n for v, n in units.items() if v is vectors.get(main)}
        else:
            units.update(
                window_units(main, vectors.get(main), blocks[main], group.common, registers)
            )
        return _coarser(group, units, vectors.get(main), registers.knobs.grain)
    rows = [v for v in contraction.rows if v in group.common]
    lines = whole_lines(group, [v for v in group.common if v not in rows and v not in units])
    units.update(lines)
    if rows:
        bound = spreads(group)
        most = resident_rows(group, main, rows, units, registers) if bound else ROWS
        most = min(most, ROWS)
        units.update(
            row_units(group.common, contraction, registers, most, lines, blocks[main], bound=bound)
        )
    return units


def _coarser(
    group: TileGroup, units: dict[Var, int], vector: Var | None, grain: int
) -> dict[Var, int]:
    """Units that cover `grain` times as much of the innermost loop beside the vector loop."""
    rows = [v for v in group.common if v is not vector and (known_extent(v) or 0) > 1]
    if grain == 1 or not rows:
        return units
    return {**units, rows[-1]: min(trips(rows[-1]), grain * units.get(rows[-1], 1))}


def _parallel(
    group: TileGroup,
    main: GroupStage,
    vector: Var | None,
    contraction: ContractionLoops | None,
    units: Mapping[Var, int],
    resident: bool,
    registers: CoreModel,
) -> tuple[str, ...]:
    """Storage order; but a contraction's larger operand is walked once, by the outer loops.

    Loops inside which a unit would have little to do stay whole, but for those of symbolic size
    where values are `resident` from nest to nest: scratch has a size.
    """
    order = [v for v in group.common if v is not vector]
    if vector is not None and vector in group.common:
        if contraction is not None and panels_outer(group, contraction, units, registers):
            outer = [v for v in order if v in contraction.this]
            order = [*outer, vector, *(v for v in order if v not in contraction.this)]
        else:
            order.append(vector)
    unit = sum(work(s) * weight(s) for s in group.stages)
    parallel: list[str] = []
    for var in order:
        little = unit < UNIT_WORK and parallel
        if little and not (resident and known_extent(var) is None):
            continue
        parallel.append(var.name)
        unit //= max(1, -(-trips(var) // units.get(var, 1)))
    return tuple(parallel)
