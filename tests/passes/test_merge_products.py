"""Products of the same few rows become one; others stay."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tcc.ir.graph import Graph, Node, Value
from tcc.ops.algebra.movement import ConcatAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.graph.merge_matmuls import merge_matmuls

from tests.oracle.calls import calls_of
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


def meeting(seed: int) -> Graph:
    """Products of the same rows, and sums of what comes of them, chosen at random."""
    m, rng = Model("meeting"), Random(seed)
    x = m.input("x", 2, 12)
    values = [m.op("matmul", x, m.weight(12, 8)) for _ in range(rng.randint(2, 5))]
    for _ in range(rng.randint(0, 8)):
        if rng.random() < 0.5:
            values.append(m.op("tanh", rng.choice(values)))
        else:
            values.append(m.op("add", *rng.sample(values, 2)))
    return m.finish(*(m.op("tanh", m.reshape(v, 16)) for v in values))


def after(graph: Graph, node: Node) -> set[Node]:
    """The nodes that the node's result reaches without a reshape."""
    readers = [n for n in graph.nodes if node.outputs[0] in n.inputs and n.op.name != "reshape"]
    return {*readers, *(n for reader in readers for n in after(graph, reader))}


@pytest.mark.parametrize("seed", range(40))
def test_those_become_one_whose_results_meet_nowhere(seed: int, agree: Agree) -> None:
    before = meeting(seed)
    products = [n for n in before.nodes if n.op.name == "matmul"]
    reached = {n: after(before, n) for n in products}
    apart = [
        n
        for n in products
        if all(reached[n].isdisjoint(reached[o]) for o in products if o is not n)
    ]
    merged = merge_matmuls(before)
    assert ops(merged).count("matmul") == len(products) - max(len(apart) - 1, 0)
    agree(before, merged, tolerance=1e-6)


def streams(layers: int) -> Graph:
    """Two products a layer, each added to a stream of its own, which all layers make longer."""
    m = Model("streams")
    x = m.input("x", 2, 12)
    y = m.op("exp", x)
    for _ in range(layers):
        rows = m.op("softmax", x, attrs=AxisAttrs(1))
        x, y = (m.op("add", v, m.op("matmul", rows, m.weight(12, 12))) for v in (x, y))
    return m.finish(m.op("exp", x), m.op("exp", y))


def memory(layers: int) -> Graph:
    """All layers multiply the same rows."""
    m = Model("memory")
    x, rows = m.input("x", 2, 12), m.input("rows", 2, 12)
    for _ in range(layers):
        a, b = (m.op("exp", m.op("matmul", rows, m.weight(12, 8))) for _ in range(2))
        x = m.op(
            "add", x, m.op("matmul", m.op("concat", a, b, attrs=ConcatAttrs(1)), m.weight(16, 12))
        )
    return m.finish(m.op("exp", x))


@pytest.mark.parametrize("network", [streams, memory])
def test_work_grows_with_the_layers(network: Callable[[int], Graph]) -> None:
    few, many = network(50), network(100)
    assert ops(merge_matmuls(few)).count("split") == (50 if network is streams else 1)
    assert calls_of(lambda: merge_matmuls(many)) < 2.2 * calls_of(lambda: merge_matmuls(few))
