"""Cost models without links or without compute, and plans whose costs have closed forms.

The closed forms come from the solver tests of Alpa (playground/auto_sharding_solver). An all_reduce
of b bytes among n ranks costs 1 + 2 (n - 1) / n b, other work costs nothing, and all ranks divide
each matmul.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import pytest
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.costs import (
    Cluster,
    LinkRate,
    RankRates,
    change_seconds,
    one_host,
    rank_bytes,
    with_costs,
)
from tcc.distributed.facts import planned
from tcc.distributed.mesh import Mesh
from tcc.distributed.problem import (
    FORBIDDEN,
    Problem,
    ProblemEdge,
    ProblemNode,
    ProblemWriter,
    cost_of,
    largest_values,
)
from tcc.distributed.routes import route
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.types import F32, tensor
from tcc.ops import OPS

from .one_axis import mesh_strategies
from .test_shard import add, block, mlp

CONTRACTIONS = ("matmul",)


@pytest.mark.parametrize("sizes", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("graph", [mlp(4, 8, 64), block(4, 8, 64)], ids=["mlp", "block"])
def test_free_links_divide_every_matmul_and_free_compute_none(
    graph: Graph, sizes: tuple[int, ...]
) -> None:
    cluster = Cluster(Mesh(sizes), (RankRates(),) * len(sizes))
    for name in ("zero-links", "zero-compute"):
        choice = mesh_strategies(graph, with_costs(cluster, name), partition_solver())
        for node, items in choice.items():
            if name == "zero-compute":
                assert all("split" not in repr(s) and "partial" not in repr(s) for s in items)
            elif node.op.name in CONTRACTIONS:
                assert all(s.blocks for s in items), (node.outputs[0].name, items)


def test_a_constant_counts_once_however_often_a_node_reads_it() -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, 8, 8))
    weight = b.constant(np.ones((8, 8), np.float32), "w")
    (square,) = b.add(OPS["matmul"], [weight, weight])
    root, fault = b.add(OPS["cholesky"], [weight])
    graph = b.finish([b.add(OPS["add"], [x, square])[0], root, fault])
    rates = RankRates(operations=inf, memory_bytes=1.0)
    writer = ProblemWriter(graph, one_host(2, rates), {}, ())
    costs = [min(node.costs) for node in writer.problem().nodes[:3]]
    # The host function reads 256 bytes, and writes 256 bytes and a 4-byte flag.
    assert costs == [256 * 10**9, 516 * 10**9, 0]


# ---- memory for a part of the weights ------------------------------------------------------------


def bytes_between_ranks(graph: Graph, share: float) -> float:
    """Returns the least bytes that a rank sends if its memory holds only a share of the weights."""
    weights = sum(rank_bytes(value.type) for value in graph.constants)
    memory = int(share * weights) + largest_values(graph)
    rates = RankRates(latency=0.0, link_bytes=1.0, memory=memory)
    cluster = with_costs(one_host(2, rates), "zero-compute")
    return float(planned(graph, cluster, partition_solver(), {}).facts["seconds"])


def layers(count: int, width: int) -> Graph:
    """Returns alternating matmuls and elementwise functions."""
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, 4, width))
    for number in range(count):
        weight = b.constant(np.full((width, width), number + 1, np.float32), f"w{number}")
        x = add(b, "relu", add(b, "matmul", x, weight))
    return b.finish([x])


@pytest.mark.parametrize(("count", "share"), [(2, 0.6), (4, 0.6), (2, 0.5), (6, 0.5)])
def test_two_layers_cost_an_all_reduce(count: int, share: float) -> None:
    all_reduce = 4 * 64 * 4  # half the bytes, in both directions
    assert bytes_between_ranks(layers(count, 64), share) == count // 2 * all_reduce


def test_a_layer_of_an_encoder_costs_at_most_two_all_reduces() -> None:
    graph, all_reduce = block(4, 8, 64), 8 * 64 * 4
    # Norms and biases fit beside half of the matrices.
    assert bytes_between_ranks(graph, 0.52) == 2 * all_reduce
    # One matrix fits beside the halves of the others; then an all_to_all is enough.
    assert 0 < bytes_between_ranks(graph, 0.6) <= 2 * all_reduce
    assert bytes_between_ranks(graph, 1.0) == 0


# ---- closed forms of Alpa ------------------------------------------------------------------------


def alpa(sizes: Sequence[int], betas: Sequence[float], gathers: bool = True) -> Cluster:
    """Returns a mesh in which an all_reduce of b bytes takes 1 + beta 2 (n - 1) / n b seconds."""
    cluster = []
    for size, beta in zip(sizes, betas, strict=True):
        # Alpa prices an all_to_all as if n / 2 times the bytes went through the link.
        kinds = {"any": (1.0, beta), "all_to_all": (1.0, beta * size / 2)}
        if not gathers:
            kinds |= dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), (1e6, beta))
        links = tuple(
            LinkRate(("a", "a"), kind, 0, latency, 1 / seconds)
            for kind, (latency, seconds) in kinds.items()
        )
        cluster.append(RankRates(np.inf, np.inf, links=links))
    return Cluster(Mesh(tuple(sizes)), tuple(cluster))


def objective(
    graph: Graph, cluster: Cluster, updates: dict[str, str], batch: bool = False
) -> float:
    """Returns the seconds of the best plan in which all ranks divide each matmul.

    `updates` maps the name of a weight's new value to the name of the weight; both have the same
    sharding. With `batch`, the first axis of the mesh divides batches.
    """
    writer = ProblemWriter(graph, cluster, {}, ())
    problem = writer.problem()
    nodes, edges = list(problem.nodes), list(problem.edges)
    names = {node.outputs[0].name: n for n, node in enumerate(graph.nodes)}
    for number, node in enumerate(graph.nodes):
        if node.op.name in CONTRACTIONS:
            before = nodes[number]
            costs = [
                cost
                if all(s.blocks for s in items)
                and (not batch or repr(items[0].results[0]) == "split(0)")
                else FORBIDDEN
                for cost, items in zip(before.costs, writer.strategies[number], strict=True)
            ]
            nodes[number] = ProblemNode(costs, before.usages, before.life)

    def price(axis, type_, source, result):
        return change_seconds(type_, source, result, cluster.mesh.sizes[axis], cluster.rates[axis])

    for new, weight in updates.items():
        first, second = names[weight], names[new]
        type_ = graph.nodes[first].outputs[0].type
        table = []
        for result_strategy in writer.strategies[first]:
            for updated in writer.strategies[second]:
                source, result = (
                    tuple(s.results[0] for s in items) for items in (updated, result_strategy)
                )
                steps = route(type_, source, result, cluster.mesh.sizes, price)
                table.append(FORBIDDEN if steps is None else round(steps.price * 1e9))
        edges.append(ProblemEdge((first, second), table))
    problem_of_all = Problem(nodes, edges, None)
    return cost_of(problem_of_all, partition_solver()(problem_of_all)) / 1e9


def training(count: int, batch: int, hidden: int) -> tuple[Graph, dict[str, str]]:
    """Returns a training step of a chain of matmuls, and a dict of weight names by new values."""
    b = GraphBuilder("training")
    x, label = (b.input(name, tensor(F32, batch, hidden)) for name in ("x", "label"))
    weights, inputs = [], []
    for number in range(count):
        start = b.constant(np.full((hidden, hidden), number + 1, np.float32), f"c{number}")
        weights.append(add(b, "relu", start))  # all readers share this weight
        inputs.append(x)
        x = add(b, "matmul", x, weights[-1])
    gradient = add(b, "relu", add(b, "sub", x, label))
    updates = {}
    for number in reversed(range(count)):
        transposed = add(b, "transpose", inputs[number], perm=(1, 0))
        change = add(b, "matmul", transposed, gradient)
        new = add(b, "relu", add(b, "sub", weights[number], change))
        updates[new.name] = weights[number].name
        if number:
            back = add(b, "transpose", weights[number], perm=(1, 0))
            gradient = add(b, "matmul", gradient, back)
    return b.finish([]), updates


@pytest.mark.parametrize(
    ("count", "batch", "hidden", "sizes", "betas", "expected"),
    [
        (2, 1024, 128, (4,), (1.0,), 196_610.02),
        (2, 128, 1024, (4,), (1.0,), 786_433.01),
        (12, 1024, 128, (4,), (1.0,), 1_179_660.12),
        (12, 128, 1024, (4,), (1.0,), 8_650_763.11),
        (2, 1024, 128, (4, 8), (1.0, 0.01), 26_872.03),
        (2, 1024, 128, (8, 4), (1.0, 0.01), 58_330.03),
    ],
)
def test_the_cost_of_training_steps_equals_the_closed_forms(
    count: int,
    batch: int,
    hidden: int,
    sizes: tuple[int, ...],
    betas: tuple[float, ...],
    expected: float,
) -> None:
    graph, updates = training(count, batch, hidden)
    seconds = objective(graph, alpa(sizes, betas), updates)
    assert seconds == pytest.approx(expected, rel=1e-3)


def test_an_all_reduce_of_two_axes_takes_less_than_the_closed_form() -> None:
    graph, updates = training(12, 1024, 128)
    seconds = objective(graph, alpa((4, 8), (1.0, 0.01)), updates)
    inside = 1 + 0.01 * 7 / 8 * 128 * 128 * 4  # a reduce_scatter, and an all_gather
    between = 1 + 2 * 3 / 4 * 128 * 128 * 4 / 8
    assert seconds == pytest.approx(12 * (2 * inside + between), rel=1e-3)
    assert seconds < 172_702.23


def attention(batch: int, tokens: int, hidden: int, heads: int) -> Graph:
    """Returns attention with its four matmuls; a function of its result is the output."""
    b = GraphBuilder("attention")
    x = b.input("x", tensor(F32, batch, tokens, hidden))
    weights = (
        b.constant(np.full((hidden, hidden), n, np.float32), "wqkvo"[n]) for n in range(1, 5)
    )
    parts = []
    for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        y = add(b, "matmul", x, next(weights))
        shape = tensor(F32, batch, tokens, heads, hidden // heads).shape
        parts.append(add(b, "transpose", add(b, "reshape", y, shape=shape), perm=perm))
    scores = add(b, "softmax", add(b, "matmul", parts[0], parts[1]), axis=3)
    mixed = add(b, "transpose", add(b, "matmul", scores, parts[2]), perm=(0, 2, 1, 3))
    heads_together = add(b, "reshape", mixed, shape=x.type.shape)
    y = add(b, "exp", add(b, "matmul", heads_together, next(weights)))
    return b.finish([y])


def test_attention_without_gathers_costs_an_all_reduce() -> None:
    graph = attention(4, 128, 512, 8)
    seconds = objective(graph, alpa((4,), (1.0,), gathers=False), {})
    assert seconds == pytest.approx(1_572_865.01, rel=1e-3)
