"""Runs expressions as block kernels: storage, block schedule, lowering, verifiers, evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tcc.ir.expr import Expr, extent
from tcc.ir.index import Var, evaluate
from tcc.ir.layout import row_major
from tcc.ir.tile import Stmt, TileKernel, TileLoop
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.tile.verify_gpu import verify_blocks
from tcc.ir.types import TensorType
from tcc.passes.fuse.structure import Storage, build_group
from tcc.passes.tile.gpu.lower import lower_blocks
from tcc.schedule.gpu.choose import choose_blocks
from tcc.schedule.gpu.schedule import BlockSchedule

from tests.passes.tile.cpu.tiles import Array, run_kernel

Chooser = Callable[[TileGroup], BlockSchedule]


@dataclass(frozen=True)
class Built:
    """A block kernel with its group and its schedule."""

    group: TileGroup
    schedule: BlockSchedule
    kernel: TileKernel


def build(expr: Expr, chooser: Chooser = choose_blocks) -> Built:
    """Returns the verified block kernel of `expr` with row-major storage."""
    group = group_of(expr)
    schedule = chooser(group)
    kernel = lower_blocks(group, schedule)
    verify_kernel(kernel)
    verify_blocks(kernel)
    return Built(group, schedule, kernel)


def group_of(expr: Expr) -> TileGroup:
    """Returns the group of `expr` with row-major storage."""
    operands = [_plain(t) for t in expr.params if t is not None]
    return build_group(expr, operands, [_plain(t) for t in expr.types])


def run(
    expr: Expr,
    operands: Sequence[Array],
    sizes: Mapping[str, int],
    chooser: Chooser = choose_blocks,
) -> tuple[Array, ...]:
    """Returns the results of `expr`, computed by its block kernel."""
    return run_kernel(build(expr, chooser).kernel, expr.types, operands, sizes)


def drawn(rng: np.random.Generator) -> Chooser:
    """Returns a chooser of random block schedules, which nobody would want but which all must be
    right."""

    def axes(loops: Sequence[Var], sizes: Sequence[int]) -> list[tuple[str, int]]:
        names = [str(n) for n in rng.permutation([v.name for v in loops])]
        tiles_drawn: list[tuple[str, int]] = []
        while names:
            count = int(rng.integers(1, len(names) + 1))
            tiles_drawn.append(("+".join(names[:count]), int(rng.choice(sizes))))
            names = names[count:]
        return tiles_drawn

    def schedule(group: TileGroup) -> BlockSchedule:
        parallel = axes(group.common, (1, 2, 4, 16))
        blocks = dict(parallel)
        for stage in group.stages:
            for loops in (stage.iters, stage.reduce):
                other_loops = [
                    v for v in loops if v not in group.cut and v.name not in _names(blocks)
                ]
                blocks.update(axes(other_loops, (1, 2, 8, 16, 64)))
        if group.stream is not None:
            blocks[group.stream.loop.name] = int(rng.choice((1, 2, 16)))
        return BlockSchedule(tuple(blocks.items()), tuple(n for n, _ in parallel), 4, 2)

    return schedule


def _names(blocks: Mapping[str, int]) -> set[str]:
    return {part for name in blocks for part in name.split("+")}


def steps(kernel: TileKernel, sizes: Mapping[str, int]) -> int:
    """Returns the number of statements that a run of all tiles evaluates."""
    units = prod(int(evaluate(extent(a), sizes)) for a in kernel.axes)
    return units * _steps(kernel.body, dict(sizes) | {a.name: 0 for a in kernel.axes})


def _steps(body: Sequence[Stmt], values: Mapping[str, int]) -> int:
    total = 0
    for node in body:
        trips = 1
        if isinstance(node, TileLoop):
            trips = int(evaluate(node.stop, values)) * _steps(
                node.body, {**values, node.var.name: 0}
            )
        total += trips
    return total


def statements(body: Sequence[Stmt]) -> list[Stmt]:
    """Returns all statements, also from loops."""
    nodes: list[Stmt] = []
    for node in body:
        nodes.append(node)
        if isinstance(node, TileLoop):
            nodes += statements(node.body)
    return nodes


def _plain(type_: TensorType) -> Storage:
    return Storage(type_.dtype, type_.shape, row_major(type_.shape))
