"""Axes of one element or none have no loop, and reads beyond their ends still give the fill."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Trace
from tcc.ir.expr import ExprBuilder
from tcc.ir.graph import GraphBuilder
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.ops.expression import ExpressionAttrs
from tcc.ops.formula import fn
from tcc.passes.pipeline import lower
from tcc.passes.place import LoweringContext
from tcc.passes.quantize.precision import FULL
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.schedule.cpu.core import TYPICAL_CORE

from tests.lib.oracle.program.evaluate import evaluate_program


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize(("size", "shift"), [(1, -1), (1, 0), (1, 1), (0, 0)])
def test_neighbours_of_the_only_element(size: int, shift: int, total: bool, device: bool) -> None:
    b = ExprBuilder(tensor(F32, 3, 1))
    i, j = b.iters(3, size)
    (k,) = b.iters(1)
    body = fn("exp", b.read(0, i, k if total else j))
    first = b.stage((i, j), body, over=(k,) if total else (), monoid="sum" if total else None)
    i, j = b.iters(3, 1)
    b.stage((i, j), b.read(first, i, j + shift, fill=5.0))
    graph = GraphBuilder("unit")
    x = graph.input("x", tensor(F32, 3, 1))
    network = graph.finish(graph.add(OPS["expression"], [x], ExpressionAttrs(b.done())))
    lowered = (
        lower(network, LoweringContext(BlockChooser(), arena_planner(), FULL), Trace())
        if device
        else lower(
            network, LoweringContext(CoreChooser(TYPICAL_CORE), arena_planner(), FULL), Trace()
        )
    )
    x_array = np.array([[0.0], [1.0], [2.0]], np.float32)
    (output,) = evaluate_program(lowered.program, lowered.kernels, [x_array], np.zeros(0, np.uint8))
    reference = np.exp(x_array) if size and not shift else np.full((3, 1), 5.0)
    np.testing.assert_allclose(output, reference, rtol=1e-6, atol=1e-6)


def test_an_operand_without_elements_is_its_fill_all_over() -> None:
    b = ExprBuilder(tensor(F32, 0, 40))
    i, j = b.iters(1, 44)
    b.stage((i, j), fn("add", b.read(0, i, j - 1, fill=5.0), 1.0))
    graph = GraphBuilder("none")
    x = graph.input("x", tensor(F32, 0, 40))
    network = graph.finish(graph.add(OPS["expression"], [x], ExpressionAttrs(b.done())))
    lowered = lower(
        network, LoweringContext(CoreChooser(TYPICAL_CORE), arena_planner(), FULL), Trace()
    )
    empty = np.zeros((0, 40), np.float32)
    (output,) = evaluate_program(lowered.program, lowered.kernels, [empty], np.zeros(0, np.uint8))
    np.testing.assert_array_equal(output, np.full((1, 44), 6.0, np.float32))
