"""Products of the same few rows become one; others stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tcc.ir.graph import Graph, Value
from tcc.passes.graph.merge_matmuls import merge_matmuls

from tests.passes.fuse.models import Model

Agree = Callable[..., None]


def ops(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def heads(rows: int) -> Graph:
    """Three products of unequal width, each read in its own shape."""
    m = Model("heads")
    x = m.input("x", 1, rows, 12)

    def project(width: int) -> Value:
        y = m.op("matmul", x, m.weight(12, width))
        return m.op("exp", m.reshape(y, rows, width // 4, 4))

    return m.finish(project(16), project(4), project(8))


@pytest.mark.parametrize("rows", [1, 7, 96])
def test_products_of_few_rows_become_one(rows: int, agree: Agree) -> None:
    before = heads(rows)
    after = merge_matmuls(before)
    assert ops(after).count("matmul") == 1
    assert ops(after).count("split") == 1
    agree(before, after, tolerance=1e-6)
    assert merge_matmuls(after) is after


def test_products_of_many_rows_stay() -> None:
    graph = heads(97)
    assert merge_matmuls(graph) is graph


def test_products_that_meet_element_by_element_stay(agree: Agree) -> None:
    m = Model("gated")
    x = m.input("x", 2, 12)
    gate, up, other = (m.op("matmul", x, m.weight(12, 20)) for _ in range(3))
    met = m.op("mul", m.op("mul", gate, m.op("sigmoid", gate)), up)
    graph = m.finish(met, m.op("exp", m.reshape(other, 40)))
    assert merge_matmuls(graph) is graph


def test_outputs_and_shared_matrices_stay() -> None:
    m = Model("kept")
    x, z = m.input("x", 2, 12), m.input("z", 2, 12)
    shared = m.weight(12, 8)
    a = m.op("exp", m.reshape(m.op("matmul", x, shared), 16))
    b = m.op("exp", m.reshape(m.op("matmul", z, shared), 16))
    graph = m.finish(a, b, m.op("matmul", x, m.weight(12, 4)))
    assert merge_matmuls(graph) is graph
