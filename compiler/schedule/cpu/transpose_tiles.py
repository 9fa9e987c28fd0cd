"""Blocks of stages that turn their operands: what is read runs along one loop, what is written
along another.

    y[i, j] = x[j, i]        16 x 16: loads along j, stores along i, exchanged in registers
"""

from tcc.ir.expr import known_extent
from tcc.ir.index import Var, Vars, const, linear_in
from tcc.ir.tile import MemorySpace
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.vectors import lanes_of
from tcc.schedule.nest import FEW_APART, guarded, stride, trips

# Neighbours in memory from which on exchanging in registers beats element by element.
_LEAST = 3


def transposing_vector(group: TileGroup, stage: GroupStage, loops: Vars) -> Var | None:
    """The loop, one of `loops`, along which a stage that has no smooth loop stores, if what it
    reads runs along another."""
    if stage.monoid is not None:
        return None
    stored = [_along(stage, a) for a in stage.written]
    read = [_runs(stage, a) for a in _moving(group, stage)]
    if not stored or None in stored or len(set(stored)) > 1 or stored[0] not in loops:
        return None
    other = any(v is not None and v is not stored[0] for v in read)
    # Where the stores run along a short loop, vectors are filled along the long one.
    if other and trips(stored[0]) >= _LEAST:
        long = max((v for v in (stored[0], *read) if v is not None), key=trips)
        return stored[0] if trips(stored[0]) >= 16 else long
    return None


def transposing_blocks(
    group: TileGroup,
    stage: GroupStage,
    vector: Var | None,
    loops: Vars,
    registers: CoreModel,
) -> dict[Var, int]:
    """Square blocks along the vector loop and the one along which another access runs, both of
    `loops`; of a reduction's accesses, which it does not hold at once, only its stores count."""
    if len(stage.body) > 1 or vector not in loops or vector is None:
        return {}
    lanes = lanes_of(stage, registers)
    stores = stage.written
    moving = _moving(group, stage) if stage.monoid is None else []
    if max(len(moving), len(stores)) * lanes > registers.count:
        return {}  # a square block of each would not fit the registers
    for access in (*moving, *stores):
        along = _along(stage, access) if access in stores else _runs(stage, access)
        if along not in loops or along is vector or not _is_apart(access, vector):
            continue
        if along is not None and trips(along) >= _LEAST:
            return {v: max(1, min(trips(v), lanes)) for v in (along, vector)}
    return {}


def loop_between_lanes(group: TileGroup, stage: GroupStage, vector: Var) -> Var | None:
    """The loop of `stage` whose results lie between those of neighbouring lanes and fill the space
    there, as the phases of a transposed convolution do; None where there is no such loop."""
    results = [
        access
        for other in group.stages
        for access in other.written
        if group.buffers[access.buffer].scope is not MemorySpace.LOCAL
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
    """Whether lanes along `vector` lie evenly, some elements from one another: so many as are known
    or as an open size has."""
    linear = linear_in(access.offset, vector)
    return linear is not None and linear[0] not in (const(0), const(1))


def _moving(group: TileGroup, stage: GroupStage) -> list[Access]:
    """The operands that are not constants."""
    return [a for a in stage.accesses.values() if not group.buffers[a.buffer].constant]


def _runs(stage: GroupStage, access: Access) -> Var | None:
    """The loop along which an access runs through memory; loads that lanes leave are masked."""
    found = [v for v in stage.iters if stride(access, v) == 1 and trips(v) > 1]
    return found[-1] if found else None


def _along(stage: GroupStage, access: Access) -> Var | None:
    """The loop along which an access runs through memory, unchecked."""
    found = _runs(stage, access)
    return None if found is None or guarded(access, found) else found
