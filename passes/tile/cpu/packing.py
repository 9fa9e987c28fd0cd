"""Operands of products that are computed: a run of one, made in scratch for all rows of a unit.

for i by 6: sums += x[i, k] * (level[k, j] * scale[k, j])
  ->  for k: p[k, j] = level[k, j] * scale[k, j];  for i by 6: sums += x[i, k] * p[k, j]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tcc.ir.expr import extent
from tcc.ir.expr.scalar import Scalar
from tcc.ir.index import Index, Var, as_int, const
from tcc.ir.tile import MemorySpace, Stmts, Store, TileBuffer
from tcc.ir.tile.group import TileGroup
from tcc.passes.tile.cpu.body import Around, BodyEmitter
from tcc.passes.tile.cpu.ranges import BlockRange, Regions, everything, flat, positions, tiles
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.nest import depends, product


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A `factor` of a sum of products in scratch, for one block of the results' loops and a run of
    the sum.  `steps` are elements between neighbours along each loop that it has an axis for."""

    factor: Scalar
    buffer: TileBuffer
    steps: tuple[tuple[Var, int], ...]

    def offset(self, mapping: Mapping[Var, Index], starts: Mapping[Var, Index]) -> Index:
        """Where the element at `mapping` lies, in a block and run that begin at `starts`."""
        at = const(0)
        for var, step in self.steps:
            at = at + (mapping[var] - starts.get(var, const(0))) * step
        return at


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
    factors = product(stage)
    runs = dict(nest.runs)
    sizes = {v: runs.get(v.name, as_int(extent(v))) for v in stage.reduce}
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


def starts_of(spans: Mapping[Var, BlockRange], runs: Regions) -> dict[Var, Index]:
    """Where the block and the run at hand begin."""
    return {v: s.base for v, s in spans.items()} | {v: r.base for v, r in runs.items()}


def fill(
    packed: Packed,
    around: Around,
    nest: Nest,
    spans: Mapping[Var, BlockRange],
    runs: Regions,
    counter: Callable[[Index], Index],
) -> Stmts:
    """Makes the run at hand: `spans` has a block of each loop that the factor varies with but
    those of the sum."""
    own = {v for v, _ in packed.steps}
    starts = starts_of(spans, runs)
    axes = [s for v, s in spans.items() if v in own and s.axis]
    axes.sort(key=lambda s: s.var.name == nest.vector)
    fixed = [flat(s) for s in spans.values() if s not in axes]

    def walk(loops: list[Var], done: list[BlockRange]) -> Stmts:
        if loops:
            region = runs.get(loops[0]) or everything(loops[0])
            block = nest.block(loops[0].name)
            return tiles(region, block, True, counter, lambda span: walk(loops[1:], [*done, span]))
        summed = [s for s in done if s.axis]
        lanes = [*axes[:-1], *summed, *axes[-1:]]
        emitter = BodyEmitter(around, [*lanes, *fixed, *(s for s in done if not s.axis)])
        shape = tuple(s.size for s in lanes)
        made = emitter.value(packed.factor, shape)
        at = packed.offset(positions(emitter.spans, shape), starts)
        return [*emitter.stmts, Store(packed.buffer, (at,), made)]

    return walk([*around.stage.reduce], [])
