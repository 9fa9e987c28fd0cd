"""Chooses a schedule for a tile group from its strides and the rates and sizes of a core."""

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
    k_blocks_of,
    with_phases,
)
from tcc.schedule.cpu.contraction_tiles import footprint, is_constant, panels_outer, row_tiles
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.depthwise import window_tiles
from tcc.schedule.cpu.reasons import Because
from tcc.schedule.cpu.reused_rows import asking
from tcc.schedule.cpu.schedule import Nest, Schedule, named
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
from tcc.schedule.nest import (
    anchor,
    is_open,
    operations,
    own_loops,
    reads_here,
    row_loop,
    trips,
    weight,
)

# If the tiles of a grid have fewer operations than this, they are not cut into smaller tiles: more
# tiles would cost more time than their even distribution to threads saves.
TILE_WORK = 1 << 14


@lru_cache(1024)  # cached, because fusion and packing ask again for the same groups
def choose(group: TileGroup, core: CoreModel) -> Schedule:
    """Returns the schedule that rules and `core.knobs` choose for `group`."""
    schedule = _choose(group, core)
    nests = tuple(with_vectors(group, nest, core) for nest in schedule.nests)
    return schedule if nests == schedule.nests else replace(schedule, nests=nests)


def _choose(group: TileGroup, core: CoreModel) -> Schedule:
    """Returns the schedule of `group`, except for the field `Nest.vectors` of its nests."""
    if group.stream is not None:
        return choose_streaming(group, group.stream, core)
    main = anchor(group)
    vectors = _vectors(group, main, core.because, bool(core.knobs.fixed), core.knobs.vector)
    contraction = contraction_loops(main, vectors.get(main))
    # True if the contraction's sums wait in scratch between one K-block and the next.
    pending = contraction is not None and bool(
        k_blocks_of(group.common, contraction, blocks_of(contraction, core), core)
    )
    rows = row_loop(group)
    blocks = {s: _blocks(group, s, vectors.get(s), core) for s in group.stages}
    nest_stages = _parts(group, main, pending)
    along_of = _computed_along(group, nest_stages, vectors, blocks) if core.knobs.along else {}
    if rows is not None:
        # A first stage without a sum copies its operand, and covers few rows at a time.
        copy_blocks = {} if group.stages[0].reduce else blocks[group.stages[0]]
        tiles = {
            v: min(n, copy_blocks.get(v, n)) for v, n in blocks[main].items() if v in group.common
        }
        blocks = {s: {v: min(n, tiles.get(v, n)) for v, n in b.items()} for s, b in blocks.items()}
        core.because("tile_sizes: a block of every stage", None, *tiles)
        tiles[rows] = strip_rows(group, rows, tiles, nest_stages, core)
        parallel = tuple(v.name for v in group.common)
        core.because("parallel: all common loops")
    else:
        tiles = _tiles(group, main, contraction, nest_stages, blocks, vectors, core)
        resident = pending or len(nest_stages) > 1
        parallel = _parallel(group, vectors.get(main), contraction, tiles, resident, core)
    inside = _loops_inside(group, blocks, tiles, parallel)
    nests = []
    for stages in nest_stages:
        if stages in along_of.values():  # a reduction's nest computes these stages
            continue
        decider = deciding_stage(group, stages)
        nest = _nest(group, stages, decider, vectors.get(decider), blocks[decider], inside, core)
        core.because("stages: equal loops", decider)
        core.because("along: the reduction reads them once", decider)
        nests.append(replace(nest, along=along_of.get(stages, ())))
    named_tiles = tuple((v.name, n) for v, n in tiles.items() if v.name in parallel and n > 1)
    return Schedule(named_tiles, parallel, tuple(asking(group, nests, vectors, core)))


def _loops_inside(
    group: TileGroup,
    blocks: Mapping[GroupStage, Mapping[Var, int]],
    tiles: Mapping[Var, int],
    parallel: tuple[str, ...],
) -> frozenset[Var]:
    """Returns the loops along which a tile covers more than one register block of some stage.

    `blocks` has the register block of each stage along its loops. `tiles` has the elements of a
    tile along the loops in `parallel`. A tile covers all elements along every other loop.
    """
    return frozenset(
        v
        for stage, sizes in blocks.items()
        for v in stage.iters
        if v not in group.common or v.name not in parallel or tiles.get(v, 1) > sizes.get(v, 1)
    )


@lru_cache(maxsize=256)  # callers choose many schedules of a group, all with these vectors
def _vectors(
    group: TileGroup, main: GroupStage, because: Because, fixed_size: bool, number: int | None
) -> Mapping[GroupStage, Var]:
    """Returns the vector loop of each stage that has one.

    With `fixed_size`, the vector loop of `main` has a known size. `number` is the knob `vector`.
    """
    loops = vector_loops(group, main, fixed_size=fixed_size, number=number)
    rule = "vector: knob vector, by measuring"
    if fixed_size or number is None:
        rule = "vector: knob fixed, by price" if fixed_size else "vector: smoothest in memory"
    alone = len(group.stages) == 1
    for stage in group.stages:
        if stage in loops:
            because(rule, stage)
            continue
        inner_loops = group.common if alone else own_loops(group, stage)
        vector = transposing_vector(group, stage, inner_loops)
        if alone and vector is None:
            vector = stored_vector(stage)
        if vector is not None:
            because("vector: along the stores", stage)
            loops[stage] = vector
    return loops


def _blocks(
    group: TileGroup, stage: GroupStage, vector: Var | None, core: CoreModel
) -> dict[Var, int]:
    """Returns the register blocks along the loops of a stage."""
    stage = without_rows(group, stage, vector)
    contraction = contraction_loops(stage, vector)
    if contraction is not None:
        blocks = blocks_of(contraction, core)
        phases = loop_between_lanes(group, stage, contraction.vector)
        return with_phases(contraction, blocks, phases, core)
    any_loop = len(group.stages) == 1 or (row_loop(group) is not None and weight(stage) == 1)
    loops = stage.iters if any_loop else own_loops(group, stage)
    transposing = transposing_blocks(group, stage, vector, loops, core)
    if transposing:
        return transposing
    return {} if vector is None else {vector: vector_block(vector, stage, core)}


def _nest(
    group: TileGroup,
    stages: tuple[int, ...],
    stage: GroupStage,
    vector: Var | None,
    blocks: Mapping[Var, int],
    inside: frozenset[Var],
    core: CoreModel,
) -> Nest:
    """Returns the nest of `stages`, whose loops have the order that suits `stage`.

    `inside` are the loops along which a tile covers more than one register block.
    """
    contraction = contraction_loops(stage, vector)
    if contraction is not None and not contraction.along_both:
        constant = is_constant(group, contraction.stage, contraction.vector_factor)
        beyond_l2 = _is_beyond_l2(group, contraction, constant, core)
        copied = core.knobs.copy > 0 and not constant
        return contraction_nest(
            stages,
            group.common,
            contraction,
            blocks,
            inside,
            core,
            beyond_l2=beyond_l2,
            copied=copied,
        )
    order: tuple[str, ...] = ()
    core.because("order: neighbours before the next point", stage)
    if vector and stage.monoid is None and len(stage.body) > 1 and vector not in group.common:
        # The vector loop is the innermost, so that neighbours in memory are stored one after
        # another.
        order = tuple(v.name for v in group.common if v in stage.iters)
    return Nest(stages, order, named(blocks), vector.name if vector else None)


def _is_beyond_l2(
    group: TileGroup, contraction: ContractionLoops, constant: bool, core: CoreModel
) -> bool:
    """Returns True if a tile reads the vector operand from beyond the second-level cache.

    An operand that does not fit the second-level cache comes from beyond it. If `constant`, an
    operand that exceeds the first-level cache does too, because other kernels have evicted it since
    the last run.
    """
    size = (
        footprint(group, contraction.stage, contraction.vector_factor)
        * contraction.stage.body[0].dtype.bytes
    )
    if not contraction.rows:  # each core reads its own part of the operand once
        return size // core.cores > core.l2 // 2
    return size > (core.l1 if constant else core.l2 // 2)


def deciding_stage(group: TileGroup, stages: tuple[int, ...]) -> GroupStage:
    """Returns the stage of `stages` with the most work; the loops of their nest have its order."""
    return max((group.stages[n] for n in stages), key=operations)


# ---- nests --------------------------------------------------------------------------------------


def _parts(group: TileGroup, main: GroupStage, pending: bool) -> tuple[tuple[int, ...], ...]:
    """Returns the numbers of the stages of each loop nest.

    A stage without a reduction joins the nest of the stage before it under three conditions. The
    two stages have the same loops. The stage reads the nest's stages only at its own point, such as
    `s[i, j]` at point i, j. If `pending`, the nest does not contain `main`, because the sums of
    `main` are complete only after the last K-block.
    """
    nests: list[list[int]] = []
    for number, stage in enumerate(group.stages):
        if nests and stage.monoid is None:
            stages = [group.stages[n] for n in nests[-1]]
            same_loops = set(stage.iters) == set(stages[0].iters)
            waits = pending and main in stages
            if same_loops and not waits and not _reads_elsewhere(group, stage, nests[-1]):
                nests[-1].append(number)
                continue
        nests.append([number])
    return tuple(map(tuple, nests))


def _computed_along(
    group: TileGroup,
    parts: tuple[tuple[int, ...], ...],
    vectors: Mapping[GroupStage, Var],
    blocks: Mapping[GroupStage, Mapping[Var, int]],
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Returns a map from the nest of a reduction to the pointwise nest that is computed inside its
    loops (`along`).

    A nest is given by the numbers of its stages. The pointwise nest comes directly before the
    reduction's nest. Vectors must run along the same loop in both nests.
    """
    pairs: dict[tuple[int, ...], tuple[int, ...]] = {}
    for pointwise, part in pairwise(parts):
        reduction = group.stages[part[0]]
        loops = loops_along(group, pointwise, reduction)
        if loops is None or deciding_stage(group, part) is not reduction:
            continue
        vector = vectors.get(reduction)
        stage_vectors = [(reduction, vector)]
        for stage in (group.stages[n] for n in pointwise):
            loop = vectors.get(stage)
            stage_vectors.append((stage, loop))
            if (None if loop is None else loops.get(loop, loop)) is not vector:
                break
        else:
            if all(blocks[s].keys() <= {v} for s, v in stage_vectors):
                pairs[part] = pointwise
    return pairs


def _reads_elsewhere(group: TileGroup, stage: GroupStage, numbers: list[int]) -> bool:
    """Returns True if `stage` reads one of the stages `numbers` at a point other than its own, for
    example `s[i - 1]` at point i."""
    return any(
        source.stage in numbers and not reads_here(group, stage, node)
        for node, source in reads_of_stages(*stage.body)
    )


# ---- tiles --------------------------------------------------------------------------------------


def _tiles(
    group: TileGroup,
    main: GroupStage,
    contraction: ContractionLoops | None,
    parts: tuple[tuple[int, ...], ...],
    blocks: Mapping[GroupStage, Mapping[Var, int]],
    vectors: Mapping[GroupStage, Var],
    core: CoreModel,
) -> dict[Var, int]:
    """Returns the elements of each common loop that a tile covers."""
    tiles = {v: n for v, n in blocks[main].items() if v in group.common}
    core.because("tile_sizes: a register block", None, *tiles)
    if contraction is None or contraction.along_both:
        if len(parts) > 1:
            tiles = {v: n for v, n in tiles.items() if v is vectors.get(main)}
        else:
            windows = window_tiles(main, vectors.get(main), blocks[main], group.common, core)
            core.because("tile_sizes: rows of a window fit L1", None, *windows)
            tiles.update(windows)
        return _coarser(group, tiles, vectors.get(main), core)
    rows = [v for v in contraction.rows if v in group.common]
    lines = whole_lines(group, [v for v in group.common if v not in rows and v not in tiles])
    tiles.update(lines)
    core.because("tile_sizes: whole lines of a result", None, *lines)
    if rows:
        bounded = spreads(group)
        row_limit = resident_rows(group, main, rows, tiles, core) if bounded else ROWS
        row_limit = min(row_limit, ROWS)
        tiles.update(
            row_tiles(
                group.common, contraction, core, row_limit, lines, blocks[main], bounded=bounded
            )
        )
    return tiles


def _coarser(
    group: TileGroup, tiles: dict[Var, int], vector: Var | None, core: CoreModel
) -> dict[Var, int]:
    """Returns `tiles` with the knob `grain` times as many elements along one loop: the innermost
    common loop that is not the vector loop."""
    grain = core.knobs.grain
    rows = [v for v in group.common if v is not vector and (known_extent(v) or 0) > 1]
    if grain == 1 or not rows:
        return tiles
    core.because("tile_sizes: knob grain, by price", None, rows[-1])
    return {**tiles, rows[-1]: min(trips(rows[-1]), grain * tiles.get(rows[-1], 1))}


def _parallel(
    group: TileGroup,
    vector: Var | None,
    contraction: ContractionLoops | None,
    tiles: Mapping[Var, int],
    resident: bool,
    core: CoreModel,
) -> tuple[str, ...]:
    """Returns the loops of the launch grid, outermost first.

    The loops are in storage order, or in an order that reads a contraction's larger operand once.
    Inner loops are left out of the grid, and so covered whole by each tile, if a tile would have
    little work otherwise. If `resident`, nests exchange values in scratch. Loops of symbolic size
    then stay in the grid, because scratch has a fixed size.
    """
    order = [v for v in group.common if v is not vector]
    core.because("parallel: storage order")
    if vector is not None and vector in group.common:
        if contraction is not None and panels_outer(group, contraction, tiles, core):
            core.because("parallel: panels outside rows")
            outer = [v for v in order if v in contraction.vector_factor]
            order = [*outer, vector, *(v for v in order if v not in contraction.vector_factor)]
        else:
            order.append(vector)
    tile_work = sum(map(operations, group.stages))
    parallel: list[str] = []
    for var in order:
        little = tile_work < TILE_WORK and parallel
        if little and not (resident and is_open(var)):
            continue
        parallel.append(var.name)
        tile_work //= max(1, -(-trips(var) // tiles.get(var, 1)))
    return tuple(parallel)
