"""The vector loop of each stage: the one whose neighbours lie side by side."""

from dataclasses import replace
from functools import lru_cache

from tcc.ir.expr import MONOIDS, known_extent
from tcc.ir.index import Var, Vars
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.schedule import Nest, Vectors
from tcc.schedule.nest import (
    FEW_APART,
    all_accesses,
    contraction_factors,
    depends,
    guarded,
    of_bytes,
    own_loops,
    points,
    row_loop,
    stride,
    trips,
    work,
)

# Trips that a loop of lanes loaded one by one must have.
_LEAST = 16
# How well lanes that are loaded out of a few vectors suit memory, where 1 is best.
_NEAR = 0.3


def vector_loops(
    group: TileGroup, stage: GroupStage, *, known: bool = False
) -> dict[GroupStage, Var]:
    """For each stage its vector loop: a common one if that suits `stage`, the one with most work,
    else one of its own.  Stages without a smooth loop have none.  `known`: that of `stage` is one
    of known size.

    Stages that exchange strips of rows share the channels: whichever has most work, a common loop
    suits all of them, while vectors along a row would leave units of one channel."""
    rows = row_loop(group)
    common = tuple(v for v in group.common if v is not rows)
    loops = (*common, *_own(group, stage))
    if known:
        common, loops = (
            tuple(v for v in each if known_extent(v) is not None) for each in (common, loops)
        )
    best = None if rows is None else _best_loop(group, stage, common)
    best = best or _best_loop(group, stage, loops)
    if best is None and rows is None:
        return {}
    found = {
        s: best if best in common and best in s.iters else _best_loop(group, s, _own(group, s))
        for s in group.stages
    }
    return {s: v for s, v in found.items() if v is not None}


def stored_vector(stage: GroupStage) -> Var | None:
    """The loop along which a stage without a smooth loop stores: its arithmetic and its stores are
    worth vectors although operands are loaded lane by lane."""
    if stage.monoid is not None or not stage.written:
        return None
    along = [v for v in stage.iters if all(stride(a, v) == 1 for a in stage.written)]
    return max((v for v in along if trips(v) >= _LEAST), key=trips, default=None)


def _own(group: TileGroup, stage: GroupStage) -> Vars:
    return (*own_loops(group, stage), *stage.reduce)


def _best_loop(group: TileGroup, stage: GroupStage, loops: Vars) -> Var | None:
    found = {v: smooth for v in loops[::-1] if (smooth := _smoothness(group, stage, v)) > 0}
    return max(found, default=None, key=found.__getitem__)


def vector_block(var: Var, stage: GroupStage, registers: CoreModel) -> int:
    """Four vectors, or as many as knobs say: half of the registers at most, two for a contraction's
    accumulators where registers are few, and one where the values that a reduction carries, or the
    results of a point, depend on one another.  Two of an open size whose remainder is masked, the
    columns of a contraction apart: a row shorter than a block passes the code of every part of
    one."""
    columns = contraction_factors(stage) is not None and var not in stage.reduce
    usual = 2 if registers.masked and known_extent(var) is None and not columns else 4
    few = registers.count < 32 and contraction_factors(stage) is not None
    apart = stage.monoid is not None and MONOIDS[stage.monoid].parts
    tied = len(stage.body) > 1 and not apart
    one = tied or _lane_by_lane(stage, var)
    most = 1 if one else 2 if few else registers.count // 2
    full = min(registers.knobs.wide or usual, most) * lanes_of(stage, registers)
    size = known_extent(var)
    return full if size is None else max(1, min(size, full))


def _lane_by_lane(stage: GroupStage, var: Var) -> bool:
    """Whether no operand's neighbours along `var` lie side by side, or are one."""
    steps = [stride(a, var) for a in stage.accesses.values()]
    return bool(steps) and all(s not in (0, 1) for s in steps)


def lanes_of(stage: GroupStage, registers: CoreModel) -> int:
    """Elements of the stage in a vector; types narrower than f32 are computed there."""
    return max(1, registers.lanes * 4 // max(4, *(s.dtype.bytes for s in stage.body)))


def with_vectors(group: TileGroup, nest: Nest, registers: CoreModel) -> Nest:
    """`nest`, with the vectors into which the remainder of its vector loop is cut if that has an
    open size."""
    stages = [group.stages[n] for n in nest.stages]
    open_loops = [
        stage
        for stage in stages
        if any(v.name == nest.vector and known_extent(v) is None for v in stage.loops)
    ]
    lanes = min((lanes_of(stage, registers) for stage in open_loops), default=1)
    if lanes == 1 or nest.block(nest.vector or "") % lanes:
        return nest
    rows = next((row for stage in open_loops if (row := _rows_inside(nest, stage))), None)
    return replace(nest, vectors=Vectors(lanes, registers.masked, rows))


def _rows_inside(nest: Nest, stage: GroupStage) -> str | None:
    """The loop of a contraction's rows inside the vector loop, along which register blocks run.

    A block of one vector has few sums, each of which waits for its last value: it may have more
    rows in the registers that other vectors would take."""
    factors = contraction_factors(stage)
    if factors is None or nest.vector not in nest.order:
        return None
    inside = nest.order[nest.order.index(nest.vector) :]
    varying = [{v.name for v in depends(stage, f)} for f in (factors.a, factors.b)]
    others = [names for names in varying if nest.vector not in names]
    if len(others) != 1:
        return None
    rows = others[0].intersection(inside, (v.name for v in stage.iters))
    return next((name for name, _ in nest.blocks if name in rows), None)


def _smoothness(group: TileGroup, stage: GroupStage, var: Var) -> float:
    """How well blocks along `var` suit memory: one at best, weighed by how often each access runs.

    A contraction's other operand is broadcast for free.
    """
    total = count = 0.0
    for other in group.stages:
        if other is not stage and (var not in group.common or var not in other.iters):
            continue
        product = contraction_factors(other) is not None
        broadcast = 1.0 if product and var in other.iters else 0.3
        for access, k_blocks, plain in _weighed(group, other):
            # Scratch puts the vector loop last.
            step = 1 if var in access.along else stride(access, var)
            smooth = 1.0 if step == 1 else broadcast if step == 0 else -2.0
            if plain and step is not None and 1 < step <= FEW_APART:
                smooth = _NEAR  # lanes come out of a few vectors
            if step and of_bytes(other) and var in other.reduce and _has_constant(group, other):
                smooth = -2.0  # constants lie in words, four steps of the sum in each
            # Loads that lanes may leave are masked: slower, but far from one by one.
            total += k_blocks * (smooth / 2 if smooth > 0 and guarded(access, var) else smooth)
            count += k_blocks
    if total <= 0:
        return 0.0
    fill = min(trips(var), 16) / 16
    if var not in stage.reduce:
        return total / count * fill
    # A reduction along the vector needs a horizontal step at its end, for every element of a
    # contraction's block.
    return total / count * fill * (0.8 if contraction_factors(stage) is None else 0.4)


@lru_cache(maxsize=256)  # asked about each loop
def _weighed(group: TileGroup, stage: GroupStage) -> tuple[tuple[Access, int, bool], ...]:
    """The accesses that speak for or against a vector loop: each with how often it runs, and
    whether it is a plain load."""
    product = contraction_factors(stage) is not None
    loads, stored = work(stage), points(stage.iters)
    stores = frozenset(stage.written)
    tables = {a for node, a in stage.accesses.items() if node.indirect and not product}
    weighed = []
    for access in all_accesses(stage):
        # Constants may be stored in another order, matrices that data choose too; tables whose
        # rows data choose lie as they are.
        if access in tables or not group.buffers[access.buffer].constant:
            stores_it = access in stores
            plain = not (product or stores_it or access.guards)
            weighed.append((access, stored if stores_it else loads, plain))
    return tuple(weighed)


def _has_constant(group: TileGroup, stage: GroupStage) -> bool:
    return any(group.buffers[a.buffer].constant for a in stage.accesses.values())
