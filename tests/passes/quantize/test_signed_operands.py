"""8-bit matmuls become exact matmuls of signed bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Trace
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.program.verify import verify_program
from tcc.ir.tile import Contract, TileKernel
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.tile.verify_gpu import verify_blocks
from tcc.ir.types import I8
from tcc.passes.pipeline import lower
from tcc.passes.place import LoweringContext
from tcc.passes.program.lowered import Lowered
from tcc.passes.quantize.precision import FULL
from tcc.passes.tile.gpu.plan import BlockChooser

from tests.lib.oracle.program.evaluate import evaluate_program
from tests.passes.tile.gpu.bytes import GRAPHS, inputs_of
from tests.passes.tile.gpu.tiles import statements


def lowered(graph: Graph) -> Lowered:
    return lower(graph, LoweringContext(BlockChooser(), arena_planner(), FULL), Trace())


def contracts(kernels: tuple[TileKernel, ...]) -> list[Contract]:
    return [s for k in kernels for s in statements(k.body) if isinstance(s, Contract)]


@pytest.mark.parametrize("name", list(GRAPHS))
def test_sums_are_exact(name: str) -> None:
    graph = GRAPHS[name]()
    made = lowered(graph)
    names = tuple(f"kernel{n}" for n in range(len(made.kernels)))
    verify_program(replace(made.program, kernels=names))
    for kernel in made.kernels:
        verify_kernel(kernel)
        verify_blocks(kernel)
    section = [part() for part in made.weights.parts()]
    packed = np.concatenate(section) if section else np.zeros(0, np.uint8)
    inputs = inputs_of(graph)
    ordered = [inputs[v.name] for v in graph.inputs]
    actual = evaluate_program(made.program, list(made.kernels), ordered, packed)
    wanted = evaluate_graph(graph, inputs)
    for value, array in zip(graph.outputs, actual, strict=True):
        np.testing.assert_array_equal(array, wanted[value.name])


# The number of kernels, and whether bytes are multiplied by a matrix instruction.
STRUCTURE = {
    "signed": (1, True),
    "unsigned": (2, True),  # a kernel adds sums of rows
    "mixed": (1, True),
    "symmetric": (1, True),
    "column": (2, True),
    "both": (2, True),
    "no_constant": (2, True),  # a kernel adds sums of columns
    "long": (2, True),  # parts of sums, and the sum of the parts
    "one_row": (1, False),
    "requantised": (1, True),
    "convolved": (1, True),
}


@pytest.mark.parametrize("name", list(STRUCTURE))
def test_bytes_are_multiplied_as_matrices(name: str) -> None:
    made = lowered(GRAPHS[name]())
    found = contracts(made.kernels)
    assert (len(made.kernels), bool(found)) == STRUCTURE[name]
    assert all(c.a.dtype is c.b.dtype is I8 and c.a.shape[-1] >= 32 for c in found)
