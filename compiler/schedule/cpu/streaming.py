"""The schedule of a group with a streaming loop, such as the loop over keys in flash attention.

The streaming loop runs block by block, and a tile keeps running maxima and sums between blocks.

If the rows of a tile are neighbours in memory, they are the lanes of vectors. The maxima,
exponentials and sums of 64 rows are then computed at once, and no lanes are added to each other. If
elements along the streaming loop are neighbours instead, vectors run along that loop.
"""

from dataclasses import replace

from tcc.ir.expr.scalar import StageRef
from tcc.ir.index import Var
from tcc.ir.tile.group import GroupStage, StreamLoop, TileGroup
from tcc.schedule.cpu.contraction import (
    ContractionLoops,
    blocks_of,
    contraction_loops,
    contraction_nest,
)
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.schedule import Nest, Schedule, named
from tcc.schedule.cpu.vectors import vector_block
from tcc.schedule.masked_terms import limits_of
from tcc.schedule.nest import all_accesses, contraction_factors, is_open, stride, trips, word_loop

# The usual number of elements of a block of a streaming loop. With 64 rows, the exponentials and
# sums of a block stay in the first two cache levels.
_BLOCK = 128
# The usual number of elements of a block of a streaming loop, for groups without contractions. A
# block of one row fits the first-level cache.
_LONG_BLOCK = 4096


def choose_streaming(group: TileGroup, stream: StreamLoop, core: CoreModel) -> Schedule:
    """Returns a schedule for a group with a streaming loop."""
    lanes = _lanes(group, stream, core.knobs.direction)
    multiplies = any(contraction_factors(group.stages[n]) is not None for n in stream.stages)
    tiles = _tiles(group, lanes, core) if multiplies or lanes is not stream.loop else {}
    short_loops = frozenset(v for v in group.common if v not in tiles)
    nests = tuple(
        _nest(group, n, lanes, short_loops, stream, core) for n in range(len(group.stages))
    )
    block = core.knobs.stream_block or (_BLOCK if multiplies else _LONG_BLOCK)
    by_price = "stream_block: knob stream_block, by price"
    core.because(by_price if core.knobs.stream_block else "stream_block: rows stay in cache")
    core.because("parallel: all common loops")
    core.because("skips: blocks that a mask hides")
    if not is_open(stream.loop):
        # Blocks of about equal size, near `block`.
        size = trips(stream.loop)
        block = -(-size // max(1, round(size / block)))
    named_tiles = named(tiles)
    skips = core.skips and bool(limits_of(group))
    return Schedule(named_tiles, tuple(v.name for v in group.common), nests, block, skips)


def _lanes(group: TileGroup, stream: StreamLoop, direction: int) -> Var:
    """Returns the vector loop of most stages: the streaming loop or the loop of rows.

    The loop is chosen for which more accesses have its neighbours as neighbours in memory; with
    `direction`, the other one.
    """
    score = dict.fromkeys((stream.loop, *group.common[-1:]), 0)
    for number in stream.stages:
        stage = group.stages[number]
        for access in stage.accesses.values():
            for var in score:
                step = stride(access, var)
                score[var] += (step == 1) - 2 * (step is None or step > 1)
    order = sorted(score, key=lambda v: -score[v])
    return order[direction % len(order)]


def _tiles(group: TileGroup, lanes: Var, core: CoreModel) -> dict[Var, int]:
    """Returns the elements of a tile along its loops: as many rows as four vectors have lanes."""
    if not group.common:
        return {}
    rows = lanes if lanes in group.common else group.common[-1]
    core.because("tile_sizes: four vectors of rows", None, rows)
    return {rows: min(4 * core.lanes, max(1, trips(rows)))}


def _nest(
    group: TileGroup,
    number: int,
    lanes: Var,
    short_loops: frozenset[Var],
    stream: StreamLoop,
    core: CoreModel,
) -> Nest:
    """Returns the nest of stage `number`.

    `lanes` is the vector loop of most stages. A tile has a single element along `short_loops`,
    so register blocks do not run along them.
    """
    stage = group.stages[number]
    is_repeated = not {*group.common} <= {*stage.iters}
    vector = lanes if number in stream.before else _vector(stage, lanes, stream, is_repeated)
    by_price = "vector: knob direction, by price"
    core.because(by_price if core.knobs.direction else "vector: along streamed memory", stage)
    contraction = contraction_loops(stage, vector)
    if contraction is not None and not contraction.along_both:
        rows = contraction.row_factor - short_loops
        return _contraction(number, stage, replace(contraction, row_factor=rows), core)
    if vector is None:
        return Nest((number,))
    blocks = {**_words(group, number), vector.name: vector_block(vector, stage, core)}
    return Nest((number,), (), tuple(blocks.items()), vector.name)


def _words(group: TileGroup, number: int) -> dict[str, int]:
    """Returns a block of two elements along the loop whose neighbours share words, by name."""
    loop = word_loop(group, StageRef(number, 0))
    return {} if loop is None else {loop.name: 2}


def _contraction(
    number: int,
    stage: GroupStage,
    contraction: ContractionLoops,
    core: CoreModel,
) -> Nest:
    """Returns the nest of a contraction inside the streaming loop."""
    blocks = blocks_of(contraction, core)
    nest = contraction_nest(
        (number,), (), contraction, blocks, frozenset(stage.iters), core, beyond_l2=False
    )
    names = {v.name for v in stage.iters}
    # K-blocks are not needed, because a block of the streaming loop is already in L1 or L2.
    order = tuple(name for name in nest.order if name in names)
    return replace(nest, order=order, k_blocks=(), packed=False)


def _vector(stage: GroupStage, lanes: Var, stream: StreamLoop, is_repeated: bool) -> Var | None:
    """Returns the vector loop of a stage; None without one.

    It is `lanes`, with exceptions: a stage whose results do not vary with the streaming loop, or
    which tiles repeat (`is_repeated`), has vectors along another of its loops if the neighbours
    along that loop are neighbours in memory.
    """
    loops = stage.loops
    inner = [v for v in stage.iters if v is not stream.loop and v is not lanes]
    for var in reversed(inner):
        steps = [stride(a, var) for a in all_accesses(stage)]
        if (stream.loop not in stage.iters or is_repeated) and 1 in steps and {*steps} <= {0, 1}:
            return var
    return lanes if lanes in loops else None
