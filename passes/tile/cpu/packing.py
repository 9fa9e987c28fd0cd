"""Packs operands of contractions: stores a K-block (some consecutive steps k) of the operand in
scratch, once for all rows of a tile.

    for i by 6: sums += x[i, k] * (level[k, j] * scale[k, j])
      ->  for k: p[k, j] = level[k, j] * scale[k, j];  for i by 6: sums += x[i, k] * p[k, j]
"""

from math import ceil

from tcc.ir.expr import known_extent
from tcc.ir.index import Var, const
from tcc.ir.tile import MemorySpace, Store, TileBuffer
from tcc.ir.tile.group import TileGroup
from tcc.passes.tile.cpu.body import CoreStageScalars, Surroundings
from tcc.passes.tile.cpu.ranges import BlockRange, everything, flat, positions, shape_of, tiles
from tcc.passes.tile.cpu.scratch import Packed
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.nest import contraction_factors, depends, neighbours


def packed_factors(group: TileGroup, schedule: Schedule) -> dict[int, Packed]:
    """Returns the scratch of each operand that `schedule` packs, by the number of its stage."""
    factors: dict[int, Packed] = {}
    for nest in schedule.nests:
        for number in nest.stages if nest.packed else ():
            packed = _packed(f"p{len(factors)}", group, nest, number)
            if packed is not None:
                factors[number] = packed
    return factors


def _packed(name: str, group: TileGroup, nest: Nest, number: int) -> Packed | None:
    """Returns the scratch of the packed operand of stage `number`.

    None if its size is symbolic, or if the stage has no single vector operand.
    """
    stage = group.stages[number]
    factors = contraction_factors(stage)
    k_blocks = dict(nest.k_blocks)
    sizes = {v: k_blocks.get(v.name, known_extent(v)) for v in stage.reduce}
    vector = next((v for v in stage.iters if v.name == nest.vector), None)
    if factors is None or vector is None:
        return None
    vector_factors = [f for f in factors.operands if vector in depends(stage, f)]
    if len(vector_factors) != 1:
        return None
    blocks = [
        (v, nest.block(v.name)) for v in stage.iters if v in depends(stage, vector_factors[0])
    ]
    axes = [*((v, n) for v, n in blocks if n > 1 and v is not vector), *sizes.items()]
    steps: dict[Var, int] = {}
    # Neighbours along the innermost summed loop share a word.
    inner, word = stage.reduce[-1], neighbours(stage)
    step = word
    for var, size in reversed([*axes, (vector, nest.block(vector.name))]):
        if size is None:
            return None
        steps[var] = step
        step *= ceil(size / word) if var is inner else size
    buffer = TileBuffer(name, vector_factors[0].dtype, (const(step),), MemorySpace.LOCAL)
    return Packed(vector_factors[0], buffer, tuple(steps.items()), inner, word)


def fill(packed: Packed, context: Surroundings) -> None:
    """Emits the code that computes the current K-block of a packed operand in its scratch.

    `context` has the current block of each loop on which the operand depends, except for summed
    loops.
    """
    packed_loops = {v for v, _ in packed.steps}
    axes = [s for s in context.outer if s.var in packed_loops and s.axis]
    axes.sort(key=lambda s: s.var.name == context.nest.vector)
    fixed = [flat(s) for s in context.outer if s not in axes]

    def walk(loops: list[Var], spans: list[BlockRange]) -> None:
        if loops:
            region = context.k_blocks.get(loops[0]) or everything(loops[0])
            for span in tiles(context.emitter, region, context.nest.block(loops[0].name), True):
                walk(loops[1:], [*spans, span])
            return
        lanes = [*axes[:-1], *(s for s in spans if s.axis), *axes[-1:]]
        all_spans = [*lanes, *fixed, *(s for s in spans if not s.axis)]
        shape = shape_of(lanes)
        block = CoreStageScalars(context, all_spans).value(packed.factor, shape)
        at = packed.offset(positions(all_spans, shape), context.starts)
        context.emitter.add(Store(packed.buffer, (at,), block))

    walk([*context.stage.reduce], [])
