"""Operands of products that are computed: a K-block of one, made in scratch for all rows of a unit.

for i by 6: sums += x[i, k] * (level[k, j] * scale[k, j])
  ->  for k: p[k, j] = level[k, j] * scale[k, j];  for i by 6: sums += x[i, k] * p[k, j]
"""

from tcc.ir.expr import known_extent
from tcc.ir.index import Var, const
from tcc.ir.tile import MemorySpace, Store, TileBuffer
from tcc.ir.tile.group import TileGroup
from tcc.passes.tile.cpu.body import StageScalars, Surroundings
from tcc.passes.tile.cpu.ranges import BlockRange, everything, flat, positions, shape_of, tiles
from tcc.passes.tile.cpu.scratch import Packed
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.nest import contraction_factors, depends


def packed_factors(group: TileGroup, schedule: Schedule) -> dict[int, Packed]:
    """Scratch for the operands that `schedule` wants packed, by the stage that multiplies them."""
    found: dict[int, Packed] = {}
    for nest in schedule.nests:
        for number in nest.stages if nest.packed else ():
            made = _packed(f"p{len(found)}", group, nest, number)
            if made is not None:
                found[number] = made
    return found


def _packed(name: str, group: TileGroup, nest: Nest, number: int) -> Packed | None:
    stage = group.stages[number]
    factors = contraction_factors(stage)
    k_blocks = dict(nest.k_blocks)
    sizes = {v: k_blocks.get(v.name, known_extent(v)) for v in stage.reduce}
    vector = next((v for v in stage.iters if v.name == nest.vector), None)
    if factors is None or vector is None:
        return None
    own = [f for f in (factors.a, factors.b) if vector in depends(stage, f)]
    if len(own) != 1:
        return None
    blocks = [(v, nest.block(v.name)) for v in stage.iters if v in depends(stage, own[0])]
    axes = [*((v, n) for v, n in blocks if n > 1 and v is not vector), *sizes.items()]
    steps: dict[Var, int] = {}
    step = 1
    for var, size in reversed([*axes, (vector, nest.block(vector.name))]):
        if size is None:
            return None
        steps[var] = step
        step *= size
    buffer = TileBuffer(name, own[0].dtype, (const(step),), MemorySpace.LOCAL)
    return Packed(own[0], buffer, tuple(steps.items()))


def fill(packed: Packed, around: Surroundings) -> None:
    """Makes the K-block at hand: `around` has a block of each loop that the factor varies with but
    those of the sum."""
    own = {v for v, _ in packed.steps}
    axes = [s for s in around.outer if s.var in own and s.axis]
    axes.sort(key=lambda s: s.var.name == around.nest.vector)
    fixed = [flat(s) for s in around.outer if s not in axes]

    def walk(loops: list[Var], done: list[BlockRange]) -> None:
        if loops:
            region = around.k_blocks.get(loops[0]) or everything(loops[0])
            for span in tiles(around.emitter, region, around.nest.block(loops[0].name), True):
                walk(loops[1:], [*done, span])
            return
        lanes = [*axes[:-1], *(s for s in done if s.axis), *axes[-1:]]
        spans = [*lanes, *fixed, *(s for s in done if not s.axis)]
        shape = shape_of(lanes)
        made = StageScalars(around, spans).value(packed.factor, shape)
        at = packed.offset(positions(spans, shape), around.starts)
        around.emitter.add(Store(packed.buffer, (at,), made))

    walk([*around.stage.reduce], [])
