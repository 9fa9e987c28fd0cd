"""Independent kernels of a loop body are fused where they should be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tcc.ir.graph import Graph, Value
from tcc.passes.fuse.horizontal_fusion import fuse_horizontally
from tcc.passes.fuse.partition import Group, partition

from tests.passes.fuse.models import Model
from tests.passes.layout.test_choose import planner


def united(graph: Graph) -> tuple[Group, ...]:
    prices = planner()
    groups = partition(graph, prices)
    return fuse_horizontally(graph, groups, dict.fromkeys(graph.constants, graph), prices)


def cell(wide: int = 32, *, rows: int = 1) -> tuple[Graph, Value]:
    """Returns a gated step with two results, and the result from which the other is computed."""
    m = Model("cell")
    h, c = m.input("h", rows, wide), m.input("c", rows, wide)
    enter, leave = (m.op("sigmoid", m.op("matmul", h, m.weight(wide, wide))) for _ in range(2))
    new_c = m.op(
        "add", c, m.op("mul", enter, m.op("tanh", m.op("matmul", h, m.weight(wide, wide))))
    )
    graph = m.finish(m.op("mul", leave, m.op("tanh", new_c)))
    return replace(graph, outputs=(*graph.outputs, new_c)), new_c


def test_products_and_gates_of_a_step_are_one_kernel_with_two_results() -> None:
    graph, new_c = cell()
    assert len(partition(graph, planner())) > 1
    (group,) = united(graph)
    assert set(group.members) == set(graph.nodes)
    assert group.results(graph, graph.users()) == (graph.outputs[0], new_c)


def test_a_product_of_all_that_another_makes_stays_apart() -> None:
    m = Model("gru")
    h = m.input("h", 1, 512)
    reset = m.op("sigmoid", m.op("matmul", h, m.weight(512, 512)))
    graph = m.finish(m.op("tanh", m.op("matmul", m.op("mul", reset, h), m.weight(512, 512))))
    assert len(united(graph)) == 2


@pytest.mark.parametrize("rows", [1, 3])
def test_every_node_is_in_a_group_that_runs_after_what_it_reads(rows: int) -> None:
    graph, _ = cell(rows=rows)
    ready = {*graph.inputs, *graph.constants}
    for group in united(graph):
        outputs = {v for n in group.members for v in n.outputs}
        assert {v for n in group.members for v in n.inputs if v is not None} <= ready | outputs
        ready.update(group.results(graph, graph.users()))
    assert set(graph.outputs) <= ready
