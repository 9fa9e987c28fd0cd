"""Parts of a price that need no state: the loops of a stage, and the time of several resources."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from math import ceil, prod

from tcc.ir.index import Var, Vars
from tcc.ir.tile.group import GroupStage
from tcc.schedule.cpu.schedule import Nest
from tcc.schedule.cpu.work import StageWork
from tcc.schedule.footprint import Touch
from tcc.schedule.nest import contracts, neighbours, points, trips


@dataclass(slots=True)
class CoreCycles:
    """Cycles on one core, summed over all blocks of all tiles.

    `compute` is arithmetic, `ports` loads and stores, and `either` the two combined (`combined`).
    """

    compute: float = 0.0
    ports: float = 0.0
    either: float = 0.0


def follows(stage: GroupStage) -> set[Var]:
    """Returns the loops that decide which part of a stage a tile computes.

    They are the loops of its result and, if a tile computes a strip (some rows) of the stage, the
    common loop that decides which rows.
    """
    return {*stage.iters, *(() if stage.strip is None else (stage.strip.loop,))}


def vector_of(nest: Nest, stage: GroupStage, spans: Mapping[Var, int]) -> Var | None:
    """Returns the loop along which a stage's vectors run: the nest's vector loop.

    If a pointwise stage does not have this loop, its vectors run along the last of its loops along
    which a block has several elements. A reduction without this loop has no vectors: the result is
    None.
    """
    vector = next((v for v in stage.loops if v.name == nest.vector), None)
    if vector is None and not stage.reduce:
        return next((v for v in reversed(stage.iters) if spans.get(v, 1) > 1), None)
    return vector


def with_parts(
    nest: Nest,
    work: StageWork,
    vector: Var | None,
    spans: Mapping[Var, int],
    tile: Mapping[Var, int],
) -> StageWork:
    """Adds the work of scalars that vary with some loops only (`StageWork.parts`).

    `spans` and `tile` are the sizes of a block and of a tile along loops. A block of a pointwise
    stage computes each element of a scalar once. The scalar stands before the innermost loops of
    the tile with which it does not vary (`passes.tile.cpu.invariants`). A reduction is taken to
    compute each element once.
    """
    if not work.parts:
        return work
    blocks, lanes = dict(nest.blocks), {vector: work.lanes}
    loops = sorted(work.stage.loops, key=lambda v: [*nest.order, v.name].index(v.name))
    vectors = {v: ceil(spans.get(v, 1) / lanes.get(v, 1)) for v in loops}
    counts = {v: min(trips(v), tile.get(v, trips(v))) / blocks.get(v.name, 1) for v in loops}
    ops, heavy = work.ops, work.heavy
    for varies, part_ops, part_heavy in work.parts:
        equal_loops = [v for v in loops if v not in varies]
        uses = max(1.0, points(equal_loops) / work.lanes)
        if not work.stage.reduce:
            fixed = equal_loops + [v for v in loops if counts[v] <= 1]
            inner = takewhile(fixed.__contains__, reversed(loops))
            uses = prod(vectors[v] for v in equal_loops) * prod(
                max(1, ceil(counts[v])) for v in inner
            )
        ops, heavy = ops + part_ops / uses, heavy + part_heavy / uses
    return replace(work, ops=ops, heavy=heavy)


def first_pass(busy: float, cold: float, reuse: float) -> float:
    """Returns the time of a kernel whose constant is not prefetched.

    The kernel reads the constant `reuse` times. The first pass takes at least `cold`, the time in
    which memory delivers the constant. `busy` is the time of all passes if none waits for memory.
    Operands that are read in order cause no waits, because the cache prefetches them.
    """
    return max(cold, busy / reuse) + busy * (1 - 1 / reuse)


def lane_distance(stage: GroupStage, touch: Touch) -> int:
    """Returns the distance in elements between neighbouring lanes of a contraction's operand.

    It is 1, except in a packed constant: there a 32-bit word holds several steps of the sum for one
    lane, so that the distance is the number of elements of a word.
    """
    if not contracts(stage) or not touch.constant:
        return 1
    return max(neighbours(stage), 2 if touch.size == 2 else 1)


def inside_scratch(stage: GroupStage, nest: Nest, loop: Var, cut: Vars) -> Vars:
    """Returns the loops of a stage that lie inside `loop` in the scratch to which it writes.

    `loop` is one of `cut`, the loops that tiles cut.  If the vector loop of the stage is one of
    them too, it is innermost.  The loops that tiles do not cut come next, as
    `passes/tile/cpu/scratch.py` stores them.  A strip has the rows of its tile only, and counts as
    if `loop` were innermost.
    """
    if stage.strip is not None or loop not in stage.iters or loop.name == nest.vector:
        return ()
    order = sorted(stage.iters, key=lambda v: (v in cut and v.name == nest.vector, v not in cut))
    return tuple(order[order.index(loop) + 1 :])


def combined(a: float, b: float, rivals: float) -> float:
    """Returns the time of two resources that work at once; alone they take `a` and `b`.

    It is (a**rivals + b**rivals) ** (1 / rivals).
    """
    longest = max(a, b)
    return longest and longest * (1 + (min(a, b) / longest) ** rivals) ** (1 / rivals)
