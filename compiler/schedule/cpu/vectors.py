"""The vector loop of each stage: the loop whose neighbours lie side by side in memory."""

from dataclasses import replace
from functools import lru_cache

from tcc.ir.expr import MONOIDS, known_extent
from tcc.ir.index import Var, Vars
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.schedule import Nest, TailVectors
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

# Fewest trips for which a loop is worth vectors whose lanes are loaded one by one.
_LEAST = 16
# The score of lanes that are shuffled out of a few vectors; 1 is best.
_NEAR = 0.3


def vector_loops(
    group: TileGroup, stage: GroupStage, *, fixed_size: bool = False
) -> dict[GroupStage, Var]:
    """Returns the vector loop of each stage.

    It is a common loop if one suits `stage`, which has the most work; else each stage has a loop of
    its own. Stages have none if no loop runs smoothly through memory. `fixed_size`: the loop of
    `stage` must have a known size.

    Stages that exchange strips of rows all use a common loop, the channels, whichever of them has
    the most work. Vectors along a row would leave tiles of one channel.
    """
    rows = row_loop(group)
    common = tuple(v for v in group.common if v is not rows)
    loops = (*common, *_loops_inside(group, stage))
    if fixed_size:
        common, loops = (
            tuple(v for v in candidates if known_extent(v) is not None)
            for candidates in (common, loops)
        )
    best = None if rows is None else _best_loop(group, stage, common)
    best = best or _best_loop(group, stage, loops)
    if best is None and rows is None:
        return {}
    by_stage = {
        s: best
        if best in common and best in s.iters
        else _best_loop(group, s, _loops_inside(group, s))
        for s in group.stages
    }
    return {s: v for s, v in by_stage.items() if v is not None}


def stored_vector(stage: GroupStage) -> Var | None:
    """Returns the loop along which a stage stores, although its operands are loaded lane by lane;
    None if there is none.

    Its arithmetic and stores are worth vectors.
    """
    if stage.monoid is not None or not stage.written:
        return None
    along = [v for v in stage.iters if all(stride(a, v) == 1 for a in stage.written)]
    return max((v for v in along if trips(v) >= _LEAST), key=trips, default=None)


def _loops_inside(group: TileGroup, stage: GroupStage) -> Vars:
    """Returns the loops of a stage that every tile covers whole."""
    return (*own_loops(group, stage), *stage.reduce)


def _best_loop(group: TileGroup, stage: GroupStage, loops: Vars) -> Var | None:
    """Returns the smoothest of `loops`; None if none is smooth."""
    scores = {v: smooth for v in loops[::-1] if (smooth := _smoothness(group, stage, v)) > 0}
    return max(scores, default=None, key=scores.__getitem__)


def vector_block(var: Var, stage: GroupStage, core: CoreModel) -> int:
    """Returns the elements of a block along `var`: four vectors or what the knobs say, at most half
    of the registers.

    A contraction's accumulators take at most two vectors if registers are few. A block is one
    vector if lanes are loaded one by one, or if the components of the stage depend on one another.
    It is two vectors for a symbolic size with a masked remainder, except for the columns of a
    contraction: a row shorter than a block runs the code of every part of a block.
    """
    columns = contraction_factors(stage) is not None and var not in stage.reduce
    usual = 2 if core.masked and known_extent(var) is None and not columns else 4
    few = core.count < 32 and contraction_factors(stage) is not None
    independent = stage.monoid is not None and MONOIDS[stage.monoid].parts
    tied = len(stage.body) > 1 and not independent
    one = tied or _lane_by_lane(stage, var)
    limit = 1 if one else 2 if few else core.count // 2
    rule = "blocks: knob wide, by price" if core.knobs.wide else "blocks: vectors in registers"
    core.because(rule, stage, var)
    full = min(core.knobs.wide or usual, limit) * lanes_of(stage, core)
    size = known_extent(var)
    return full if size is None else max(1, min(size, full))


def _lane_by_lane(stage: GroupStage, var: Var) -> bool:
    """Returns True if no operand has neighbouring or equal elements for neighbours along `var`, so
    that all lanes are loaded one by one."""
    steps = [stride(a, var) for a in stage.accesses.values()]
    return bool(steps) and all(s not in (0, 1) for s in steps)


def lanes_of(stage: GroupStage, core: CoreModel) -> int:
    """Returns the elements of the stage in a vector; types narrower than f32 are computed in
    f32."""
    return max(1, core.lanes * 4 // max(4, *(s.dtype.bytes for s in stage.body)))


def with_vectors(group: TileGroup, nest: Nest, core: CoreModel) -> Nest:
    """Returns `nest` with the vectors into which the remainder of a vector loop of symbolic size is
    cut."""
    stages = [group.stages[n] for n in nest.stages]
    open_loops = [
        stage
        for stage in stages
        if any(v.name == nest.vector and known_extent(v) is None for v in stage.loops)
    ]
    lanes = min((lanes_of(stage, core) for stage in open_loops), default=1)
    if lanes == 1 or nest.block(nest.vector or "") % lanes:
        return nest
    for stage in stages:
        core.because("vectors: remainder of a symbolic size", stage)
    rows = next((row for stage in open_loops if (row := _rows_inside(nest, stage))), None)
    return replace(nest, vectors=TailVectors(lanes, core.masked, rows))


def _rows_inside(nest: Nest, stage: GroupStage) -> str | None:
    """Returns the loop of a contraction's rows that runs inside the vector loop in register blocks;
    else None.

    A block of one vector has few sums, and each addition waits for the one before. So it may have
    more rows, in the registers of the missing vectors.
    """
    factors = contraction_factors(stage)
    if factors is None or nest.vector not in nest.order:
        return None
    inside = nest.order[nest.order.index(nest.vector) :]
    varying = [{v.name for v in depends(stage, f)} for f in (factors.a, factors.b)]
    other_factors = [names for names in varying if nest.vector not in names]
    if len(other_factors) != 1:
        return None
    rows = other_factors[0].intersection(inside, (v.name for v in stage.iters))
    return next((name for name, _ in nest.blocks if name in rows), None)


def _smoothness(group: TileGroup, stage: GroupStage, var: Var) -> float:
    """Returns how well blocks along `var` suit memory, at most 1.

    Accesses are weighted by their frequency. A contraction's other operand is broadcast for free.
    """
    score = count = 0.0
    for other in group.stages:
        if other is not stage and (var not in group.common or var not in other.iters):
            continue
        contracts = contraction_factors(other) is not None
        broadcast = 1.0 if contracts and var in other.iters else 0.3
        for access, frequency, plain in _weighed(group, other):
            # Scratch makes the vector loop its last axis.
            step = 1 if var in access.along else stride(access, var)
            smooth = 1.0 if step == 1 else broadcast if step == 0 else -2.0
            if plain and step is not None and 1 < step <= FEW_APART:
                smooth = _NEAR  # lanes are shuffled out of a few vectors
            if step and of_bytes(other) and var in other.reduce and _has_constant(group, other):
                smooth = -2.0  # constants lie in words of four steps of the sum
            # Guarded loads are masked: slower, but far faster than one by one.
            score += frequency * (smooth / 2 if smooth > 0 and guarded(access, var) else smooth)
            count += frequency
    if score <= 0:
        return 0.0
    fill = min(trips(var), 16) / 16
    if var not in stage.reduce:
        return score / count * fill
    # A reduction along the vector needs a horizontal step at its end, for every element of a
    # contraction's block.
    return score / count * fill * (0.8 if contraction_factors(stage) is None else 0.4)


@lru_cache(maxsize=256)  # asked for each loop
def _weighed(group: TileGroup, stage: GroupStage) -> tuple[tuple[Access, int, bool], ...]:
    """Returns the accesses that count for or against a vector loop: each with its frequency, and
    True if it is a plain load."""
    contracts = contraction_factors(stage) is not None
    loads, results = work(stage), points(stage.iters)
    stores = frozenset(stage.written)
    tables = {a for node, a in stage.accesses.items() if node.indirect and not contracts}
    weighed = []
    for access in all_accesses(stage):
        # The order of constants can be chosen, also that of matrices selected by data. Tables whose
        # rows are selected by data keep their order.
        if access in tables or not group.buffers[access.buffer].constant:
            stores_it = access in stores
            plain = not (contracts or stores_it or access.guards)
            weighed.append((access, results if stores_it else loads, plain))
    return tuple(weighed)


def _has_constant(group: TileGroup, stage: GroupStage) -> bool:
    return any(group.buffers[a.buffer].constant for a in stage.accesses.values())
