"""The schedule of a group that streams along a loop, a block at a time.

Rows of a unit are the lanes of vectors where what is walked lies along a product's sum: maxima,
exponentials and totals of 64 rows are then made side by side, and nothing is added across lanes.
Where it lies along the streaming loop, the vectors run there.
"""

from dataclasses import replace

from tcc.ir.expr import known_extent
from tcc.ir.index import Var
from tcc.ir.tile.group import GroupStage, StreamLoop, TileGroup
from tcc.schedule.cpu.contraction import (
    ContractionLoops,
    blocks_of,
    contraction_loops,
    contraction_nest,
)
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.cpu.vectors import vector_block
from tcc.schedule.masked_terms import limits_of
from tcc.schedule.nest import all_accesses, contraction_factors, stride, trips

# Steps of a streaming loop in a run: exponentials and sums of 64 rows then stay in the first two
# caches.
_RUN = 128
# The same where nothing is multiplied: a row of a unit fits the first-level cache.
_LONG_RUN = 4096


def choose_streaming(group: TileGroup, stream: StreamLoop, registers: CoreModel) -> Schedule:
    """A schedule for a group with a streaming loop."""
    lanes = _lanes(group, stream)
    multiplies = any(contraction_factors(group.stages[n]) is not None for n in stream.stages)
    units = _units(group, lanes, registers) if multiplies or lanes is not stream.loop else {}
    nests = tuple(_nest(group, n, lanes, stream, registers) for n in range(len(group.stages)))
    run = registers.knobs.stream_block or (_RUN if multiplies else _LONG_RUN)
    if known_extent(stream.loop) is not None:
        run = _run(trips(stream.loop), run)
    named = tuple((v.name, n) for v, n in units.items() if n > 1)
    skips = registers.skips and bool(limits_of(group))
    return Schedule(named, tuple(v.name for v in group.common), nests, run, skips)


def _run(size: int, most: int) -> int:
    """Runs of about equal size."""
    return -(-size // max(1, round(size / most)))


def _lanes(group: TileGroup, stream: StreamLoop) -> Var:
    """The vector loop of most stages: the streaming loop, or rows, whichever lies along memory."""
    score = {v: 0 for v in (stream.loop, *group.common[-1:])}
    for number in stream.stages:
        stage = group.stages[number]
        for access in stage.accesses.values():
            for var in score:
                step = stride(access, var)
                score[var] += (step == 1) - 2 * (step is None or step > 1)
    return max(score, key=lambda v: score[v])


def _units(group: TileGroup, lanes: Var, registers: CoreModel) -> dict[Var, int]:
    """Rows of a unit: four vectors of them."""
    if not group.common:
        return {}
    rows = lanes if lanes in group.common else group.common[-1]
    return {rows: min(4 * registers.lanes, max(1, trips(rows)))}


def _nest(
    group: TileGroup, number: int, lanes: Var, stream: StreamLoop, registers: CoreModel
) -> Nest:
    stage = group.stages[number]
    own = lanes if number in stream.before else _vector(stage, lanes, stream)
    contraction = contraction_loops(stage, own)
    if contraction is not None and not contraction.both:
        return _product(group, number, stage, contraction, registers)
    if own is None:
        return Nest((number,))
    return Nest((number,), (), ((own.name, vector_block(own, stage, registers)),), own.name)


def _product(
    group: TileGroup,
    number: int,
    stage: GroupStage,
    contraction: ContractionLoops,
    registers: CoreModel,
) -> Nest:
    blocks = blocks_of(contraction, registers)
    nest = contraction_nest(
        (number,), (), contraction, blocks, frozenset(stage.iters), registers, far=False
    )
    order = tuple(v.name for v in stage.iters if v.name in nest.order)
    # A block of the streaming loop is at hand already.
    order = tuple(n for n in nest.order if n in order)
    return replace(nest, order=order, k_blocks=(), packed=False)


def _vector(stage: GroupStage, lanes: Var, stream: StreamLoop) -> Var | None:
    """The vector loop of a stage: one of its own that lies along memory where it has results of
    its own, else that of the others."""
    loops = stage.loops
    inner = [v for v in stage.iters if v is not stream.loop and v is not lanes]
    for var in reversed(inner):
        steps = [stride(a, var) for a in all_accesses(stage)]
        if stream.loop not in stage.iters and steps and 1 in steps and _smooth(steps):
            return var
    return lanes if lanes in loops else None


def _smooth(steps: list[int | None]) -> bool:
    return all(step in (0, 1) for step in steps)
