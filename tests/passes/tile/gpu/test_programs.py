"""Programs of block kernels, run by the evaluator, agree with the graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.ir.graph import Graph
from tcc.ir.program import Program
from tcc.ir.program.verify import verify_program
from tcc.ir.tile import TileKernel
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.tile.verify_gpu import verify_blocks
from tcc.passes.memory.in_place import update_in_place
from tcc.passes.memory.plan_arena import plan_arena
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import lower_node
from tcc.passes.tile.gpu.plan import BlockChooser

from tests.passes.fuse.models import MODELS
from tests.passes.placing import place_graph
from tests.passes.tile.cpu.test_programs import SIZES, Array, check, symbols


def lowered(graph: Graph) -> tuple[Program, list[TileKernel], Array]:
    """Returns the planned program of `graph`, its block kernels, and its weight section."""
    planner = BlockChooser()
    placed = place_graph(graph, model=planner)
    program, table, weights = lower_program(placed, planner, lower_node)
    names = tuple(f"kernel{n}" for n in range(len(table.bounds)))
    program, kernels = update_in_place(replace(program, kernels=names), table.bounds)
    section = [part() for part in weights.parts()]
    packed = np.concatenate(section) if section else np.zeros(0, np.uint8)
    return plan_arena(program, arena_planner()), list(kernels), packed


@pytest.mark.parametrize("name", list(MODELS))
def test_program_agrees_with_graph(name: str) -> None:
    graph = MODELS[name]()
    lowering = lowered(graph)
    verify_program(lowering[0])
    for kernel in lowering[1]:
        verify_kernel(kernel)
        verify_blocks(kernel)
    for size in SIZES if symbols(graph) else SIZES[:1]:
        check(graph, lowering, size)
