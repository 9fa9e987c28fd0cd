"""Top-k of few elements by reductions handles order, ties, infinities and NaN."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Trace
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import const
from tcc.ir.op import Array
from tcc.ir.types import dtype_of
from tcc.ops.data.data_dependent import TopKAttrs
from tcc.passes.graph.small_top_k import small_top_k
from tcc.passes.pipeline import GraphSettings, lower, run_pipeline
from tcc.passes.place import LoweringContext
from tcc.passes.quantize.precision import FULL
from tcc.passes.tile.gpu.plan import BlockChooser

from tests.draws import RNG, seeded
from tests.lib.oracle.program.evaluate import evaluate_program
from tests.passes.fuse.models import Model

with seeded("test_few_largest: rows"):
    ROWS: dict[str, Array] = {
        "random": RNG.standard_normal((5, 13)).astype(np.float32),
        "equal": RNG.integers(0, 3, (5, 13)).astype(np.float32),
        "masked": np.where(RNG.random((5, 13)) < 0.9, -np.inf, 1.0).astype(np.float32),
        "odd": np.where(RNG.random((5, 13)) < 0.3, np.nan, np.inf).astype(np.float32),
        "integers": RNG.integers(-3, 3, (5, 13)),
        "lowest": np.full((5, 13), np.iinfo(np.int64).min),
    }


def best(x: Array, axis: int, count: int, largest: bool = True) -> Graph:
    m = Model("best")
    value = m.input("x", *x.shape, dtype=dtype_of(x))
    attrs = TopKAttrs(axis, const(count), largest, True)
    return m.finish(*m.ops("top_k", value, attrs=attrs))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", list(ROWS))
def test_as_the_op_says(name: str, axis: int, count: int) -> None:
    graph = best(ROWS[name], axis, count)
    changed = small_top_k(graph)
    assert [n.op.name for n in changed.nodes] == ["expression"]
    reference = evaluate_graph(graph, {"x": ROWS[name]})
    outputs = evaluate_graph(changed, {"x": ROWS[name]})
    for value, other in zip(graph.outputs, changed.outputs, strict=True):
        np.testing.assert_array_equal(outputs[other.name], reference[value.name])


def test_block_kernels_find_them() -> None:
    graph = best(ROWS["equal"], 1, 3)
    lowering = lower(
        run_pipeline(graph, 2, Trace(), settings=GraphSettings(small_top_k=True)),
        LoweringContext(BlockChooser(), arena_planner(), FULL),
        Trace(),
    )
    section = np.zeros(0, np.uint8)
    outputs = evaluate_program(lowering.program, lowering.kernels, [ROWS["equal"]], section)
    reference = evaluate_graph(graph, {"x": ROWS["equal"]})
    for value, array in zip(graph.outputs, outputs, strict=True):
        np.testing.assert_array_equal(array, reference[value.name])


def test_many_and_smallest_ones_are_left() -> None:
    for graph in (best(ROWS["random"], 1, 9), best(ROWS["random"], 1, 2, largest=False)):
        assert small_top_k(graph) is graph
