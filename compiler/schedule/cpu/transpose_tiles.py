"""Blocks of stages that transpose their operands: reads run along one loop, writes along another.

y[i, j] = x[j, i]        16 x 16: loads along j, stores along i, exchanged in registers
"""

from tcc.ir.expr import known_extent
from tcc.ir.index import Var, Vars, const, linear_in
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.vectors import lanes_of
from tcc.schedule.cpu.work import is_global
from tcc.schedule.nest import FEW_APART, guarded, stride, trips

# If at least this many elements of a block are neighbours in memory, it is faster to transpose the
# block in registers than to move its elements one by one.
_LEAST = 3


def transposing_vector(group: TileGroup, stage: GroupStage, loops: Vars) -> Var | None:
    """Returns the vector loop, one of `loops`, of a stage whose stores and reads run along
    different loops.

    It is the loop along which the stage stores neighbours. If that loop is short, it is the longest
    loop along which a read reads neighbours. Returns None if stores and reads run along one loop.
    """
    if stage.monoid is not None:
        return None
    store_loops = [_unguarded_run(stage, a) for a in stage.written]
    read_loops = [_runs(stage, a) for a in _moving(group, stage)]
    if (
        not store_loops
        or None in store_loops
        or len(set(store_loops)) > 1
        or store_loops[0] not in loops
    ):
        return None
    differs = any(v is not None and v is not store_loops[0] for v in read_loops)
    # If the loop of the stores is too short to fill vectors, they run along the longest loop.
    if differs and trips(store_loops[0]) >= _LEAST:
        long = max((v for v in (store_loops[0], *read_loops) if v is not None), key=trips)
        return store_loops[0] if trips(store_loops[0]) >= 16 else long
    return None


def transposing_blocks(
    group: TileGroup,
    stage: GroupStage,
    vector: Var | None,
    loops: Vars,
    core: CoreModel,
) -> dict[Var, int]:
    """Returns square blocks along the vector loop and the loop along which another access runs.

    Both loops are among `loops`. For a reduction only stores count, because its loads do not stay
    in registers. The result is empty if all accesses run along the vector loop.
    """
    if len(stage.body) > 1 or vector not in loops or vector is None:
        return {}
    lanes = lanes_of(stage, core)
    stores = stage.written
    moving = _moving(group, stage) if stage.monoid is None else []
    if max(len(moving), len(stores)) * lanes > core.count:
        return {}  # the registers cannot hold a square block of each access
    for access in (*moving, *stores):
        along = _unguarded_run(stage, access) if access in stores else _runs(stage, access)
        if along not in loops or along is vector or not _is_apart(access, vector):
            continue
        if along is not None and trips(along) >= _LEAST:
            core.because("blocks: square of a transpose", stage, along, vector)
            return {v: max(1, min(trips(v), lanes)) for v in (along, vector)}
    return {}


def loop_between_lanes(group: TileGroup, stage: GroupStage, vector: Var) -> Var | None:
    """Returns the loop of `stage` whose results fill the space between neighbouring lanes of
    `vector`; None if there is none.

    For example, it is the loop q over phases of a transposed convolution y[2*w + q], with lanes
    along w.
    """
    results = [
        access
        for other in group.stages
        for access in other.written
        if is_global(group, access.buffer)
    ]
    for var in stage.iters:
        count = known_extent(var)
        if count is None or not 1 < count <= FEW_APART:
            continue
        if results and all(
            stride(access, var) == 1 and stride(access, vector) == count for access in results
        ):
            return var
    return None


def _is_apart(access: Access, vector: Var) -> bool:
    """Returns True if lanes along `vector` lie at equal distances of more than one element.

    The distance may be symbolic.
    """
    linear = linear_in(access.offset, vector)
    return linear is not None and linear[0] not in (const(0), const(1))


def _moving(group: TileGroup, stage: GroupStage) -> list[Access]:
    """Returns the reads of a stage whose operands are no constants."""
    return [a for a in stage.accesses.values() if not group.buffers[a.buffer].constant]


def _runs(stage: GroupStage, access: Access) -> Var | None:
    """Returns the loop whose neighbours are neighbours in memory for an access; None without one.

    For a load its guards do not matter, because lanes outside of them are masked.
    """
    loops = [v for v in stage.iters if stride(access, v) == 1 and trips(v) > 1]
    return loops[-1] if loops else None


def _unguarded_run(stage: GroupStage, access: Access) -> Var | None:
    """Returns the loop whose neighbours are neighbours in memory, if no guard varies with it."""
    loop = _runs(stage, access)
    return None if loop is None or guarded(access, loop) else loop
