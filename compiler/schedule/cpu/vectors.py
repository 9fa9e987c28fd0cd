"""The vector loop of each stage: the loop whose neighbours are neighbours in memory."""

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
    contracts,
    guarded,
    is_open,
    of_bytes,
    own_loops,
    points,
    row_loop,
    stride,
    trips,
    work,
)

# The fewest trips of a loop for which vectors save time although their lanes are loaded one by one.
_LEAST = 16
# The score, of at most 1, for lanes that are shuffled out of a few loaded vectors.
_NEAR = 0.3


def vector_loops(
    group: TileGroup, stage: GroupStage, *, fixed_size: bool = False, number: int | None = None
) -> dict[GroupStage, Var]:
    """Returns the vector loop of each stage that has one.

    `stage` has the most work. If a common loop suits it best, that loop is the vector loop of all
    stages. Else each stage has a vector loop of its own. A stage has no vector loop if along each
    of its loops, neighbours lie far apart in memory. With `fixed_size`, the vector loop of `stage`
    has a known size. With `number`, it is the loop of that number in `vector_choices`.

    Contractions that exchange strips of rows all use a common loop, the channels. With vectors
    along a row instead, a tile would cover a single channel.
    """
    rows = row_loop(group)
    common = tuple(v for v in group.common if v is not rows)
    loops = (*common, *_loops_inside(group, stage))
    if fixed_size:
        common, loops = (
            tuple(v for v in candidates if not is_open(v)) for candidates in (common, loops)
        )
    strips = rows is not None and contracts(stage)
    best = _best_loop(group, stage, common) if strips else None
    best = best or _best_loop(group, stage, loops)
    choices = vector_choices(group, stage)
    fixed = choices[number] if number is not None and number < len(choices) else None
    best = fixed or best
    if best is None and rows is None:
        return {}
    by_stage = {
        s: best
        if (best in common and best in s.iters) or (s is stage and fixed)
        else _best_loop(group, s, _loops_inside(group, s))
        for s in group.stages
    }
    return {s: v for s, v in by_stage.items() if v is not None}


def vector_choices(group: TileGroup, stage: GroupStage) -> Vars:
    """Returns the loops along which the vectors of `stage` may run, whatever the memory.

    There are none for stages that exchange strips of rows, and for a streaming kernel.
    """
    if row_loop(group) is not None or group.stream is not None:
        return ()
    return (*group.common, *_loops_inside(group, stage))


def stored_vector(stage: GroupStage) -> Var | None:
    """Returns the loop along which a stage stores neighbours; None if there is none.

    The loop is for a stage whose operands are loaded lane by lane: vectors along this loop still
    save time for the arithmetic and the stores.
    """
    if stage.monoid is not None or not stage.written:
        return None
    along = [v for v in stage.iters if all(stride(a, v) == 1 for a in stage.written)]
    return max((v for v in along if trips(v) >= _LEAST), key=trips, default=None)


def _loops_inside(group: TileGroup, stage: GroupStage) -> Vars:
    """Returns the loops of a stage that every tile covers whole."""
    return (*own_loops(group, stage), *stage.reduce)


def _best_loop(group: TileGroup, stage: GroupStage, loops: Vars) -> Var | None:
    """Returns the loop of `loops` that suits memory best; None if none suits it (`_smoothness`)."""
    scores = {v: smooth for v in loops[::-1] if (smooth := _smoothness(group, stage, v)) > 0}
    return max(scores, default=None, key=scores.__getitem__)


def vector_block(var: Var, stage: GroupStage, core: CoreModel) -> int:
    """Returns the elements of a register block along `var`: four vectors, or as many vectors as the
    knob `wide` says, at most half of the registers.

    If registers are few, a contraction's block has at most two vectors. A block has one vector if
    lanes are loaded one by one, or if the components of the stage depend on one another. Along a
    loop of symbolic size whose remainder is masked, a block has two vectors; but a contraction has
    four along its columns, because with smaller blocks a short row would run the code of several
    block sizes.
    """
    columns = contracts(stage) and var not in stage.reduce
    usual = 2 if core.masked and is_open(var) and not columns else 4
    few = core.count < 32 and contracts(stage)
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
    """Returns True if all operands are loaded lane by lane, because neighbours along `var` are
    neither equal nor neighbours in memory."""
    steps = [stride(a, var) for a in stage.accesses.values()]
    return bool(steps) and all(s not in (0, 1) for s in steps)


def lanes_of(stage: GroupStage, core: CoreModel) -> int:
    """Returns the number of elements of the stage in a vector.

    Types narrower than f32 are computed in f32.
    """
    return max(1, core.lanes * 4 // max(4, *(s.dtype.bytes for s in stage.body)))


def with_vectors(group: TileGroup, nest: Nest, core: CoreModel) -> Nest:
    """Returns `nest` with rules for the remainder of a vector loop of symbolic size.

    The field `vectors` then says how the last blocks are cut into vectors. Returns `nest` unchanged
    if its vector loop has no symbolic size, or if its blocks are no multiple of a vector.
    """
    stages = [group.stages[n] for n in nest.stages]
    open_loops = [
        stage for stage in stages if any(v.name == nest.vector and is_open(v) for v in stage.loops)
    ]
    lanes = min((lanes_of(stage, core) for stage in open_loops), default=1)
    if lanes == 1 or nest.block(nest.vector or "") % lanes:
        return nest
    for stage in stages:
        core.because("vectors: remainder of a symbolic size", stage)
    rows = next((row for stage in open_loops if (row := _rows_inside(nest, stage))), None)
    return replace(nest, vectors=TailVectors(lanes, core.masked, rows))


def _rows_inside(nest: Nest, stage: GroupStage) -> str | None:
    """Returns the name of a contraction's loop of rows if that loop is inside the vector loop and
    has register blocks; else None.

    A block that is one vector wide has few sums, so each addition waits for the previous one. Such
    a block gets more rows, in the registers that a full block uses for its other vectors.
    """
    factors = contraction_factors(stage)
    if factors is None or nest.vector not in nest.order:
        return None
    inside = nest.order[nest.order.index(nest.vector) :]
    varying = [{v.name for v in loops} for loops in factors.loops(stage)]
    other_factors = [names for names in varying if nest.vector not in names]
    if len(other_factors) != 1:
        return None
    rows = other_factors[0].intersection(inside, (v.name for v in stage.iters))
    return next((name for name, _ in nest.blocks if name in rows), None)


def _smoothness(group: TileGroup, stage: GroupStage, var: Var) -> float:
    """Returns how well vectors along `var` suit memory: at most 1, and 0 if they do not.

    Each access counts as often as it is executed. A read that all lanes share costs nothing if it
    is an operand of a contraction.
    """
    score = count = 0.0
    for other in group.stages:
        if other is not stage and (var not in group.common or var not in other.iters):
            continue
        is_contraction = contracts(other)
        broadcast = 1.0 if is_contraction and var in other.iters else 0.3
        for access, frequency, plain in _weighed(group, other):
            # In scratch the vector loop becomes the last axis, so its lanes are neighbours.
            step = 1 if var in access.along else stride(access, var)
            smooth = 1.0 if step == 1 else broadcast if step == 0 else -2.0
            if plain and step is not None and 1 < step <= FEW_APART:
                smooth = _NEAR  # lanes are shuffled out of a few vectors
            if step and of_bytes(other) and var in other.reduce and _has_constant(group, other):
                smooth = -2.0  # a word of a constant holds four steps of the sum
            # Guarded loads are masked, which is slower than plain loads, but far faster than lane
            # by lane.
            score += frequency * (smooth / 2 if smooth > 0 and guarded(access, var) else smooth)
            count += frequency
    if score <= 0:
        return 0.0
    fill = min(trips(var), 16) / 16
    if var not in stage.reduce:
        return score / count * fill
    # After a reduction along the lanes, the lanes are combined: once, or for every element of a
    # contraction's block.
    return score / count * fill * (0.8 if not contracts(stage) else 0.4)


@lru_cache(maxsize=256)  # callers ask for each loop of a stage
def _weighed(group: TileGroup, stage: GroupStage) -> tuple[tuple[Access, int, bool], ...]:
    """Returns (access, frequency, plain) for the accesses that decide the vector loop.

    `plain`: the access is a load without guards, in a stage that is no contraction.
    """
    is_contraction = contracts(stage)
    loads, results = work(stage), points(stage.iters)
    stores = frozenset(stage.written)
    tables = {a for node, a in stage.accesses.items() if node.indirect and not is_contraction}
    weighed = []
    for access in all_accesses(stage):
        # Constants do not count, because packing can change their storage order. Matrices of which
        # data select one are packed too; tables of which data select rows are not, so they count.
        if access in tables or not group.buffers[access.buffer].constant:
            stores_it = access in stores
            plain = not (is_contraction or stores_it or access.guards)
            weighed.append((access, results if stores_it else loads, plain))
    return tuple(weighed)


def _has_constant(group: TileGroup, stage: GroupStage) -> bool:
    return any(group.buffers[a.buffer].constant for a in stage.accesses.values())
