"""Plans on meshes of two axes give the results of one rank, equal the best plans by brute force,
and find the cheapest paths of resharding."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.costs import (
    Cluster,
    RankRates,
    change_seconds,
    one_host,
    rank_bytes,
    work_seconds,
)
from tcc.distributed.exchanges import Division, check_exchanges
from tcc.distributed.facts import planned
from tcc.distributed.mesh import Mesh
from tcc.distributed.offers import NodeStrategies, expr_of, mesh_offers
from tcc.distributed.plan import fixed_strategies, plan_of, plan_text, read_plan
from tcc.distributed.routes import mesh_type, route
from tcc.distributed.shard import sharded_with_arrays
from tcc.distributed.sharding import WHOLE, Partial, Shardings, Split
from tcc.distributed.solve import solved
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import without_dead
from tcc.ir.graph.verify import verify_graph
from tcc.ir.index import const
from tcc.ir.types import F32, tensor

from tests.part import part

from .lockstep import on_ranks
from .networks import add
from .one_axis import mesh_sharded, mesh_strategies, predicted_seconds
from .test_shard import block, fused_block, mlp
from .test_solve import network

SQUARE = Mesh((2, 2))
FAST = RankRates(operations=1e9, memory_bytes=1e10, link_bytes=1e10, latency=1e-7)
SLOW = RankRates(operations=1e9, memory_bytes=1e10, link_bytes=1e9, latency=1e-6)
CLUSTER = Cluster(SQUARE, (SLOW, FAST))


def check(graph: Graph, choice: dict[Node, NodeStrategies], mesh: Mesh, seed: int = 0) -> None:
    """Checks that all ranks have equal results, that one rank gives the same results, and that the
    proof accepts all exchanges."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in graph.inputs:
        shape = [int(dim.const) for dim in value.type.shape]
        feeds[value.name] = rng.normal(size=shape).astype(np.float32)
    (expected,) = on_ranks(graph, feeds, 1)
    divided, arrays = sharded_with_arrays(graph, choice, mesh.axes)
    verify_graph(divided)
    check_exchanges(Division(graph, choice, mesh, divided, arrays))
    ranks = on_ranks(divided, feeds, mesh.ranks)
    for outputs in ranks:
        for name, reference in expected.items():
            np.testing.assert_allclose(outputs[name], reference, rtol=1e-4, atol=1e-4)
            assert outputs[name].tobytes() == ranks[0][name].tobytes()


@pytest.mark.parametrize("seed", part("pairs of strategies", range(40), 2))
def test_any_pair_of_strategies_computes_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = without_dead(network(seed)) if seed % 4 else block(4, 8, 16)
    mesh = Mesh([(2, 2), (2, 3), (3, 2)][seed % 3] if seed % 4 else (2, 2))
    offered = mesh_offers(graph, mesh.axes)
    choice = {node: items[int(rng.integers(len(items)))] for node, items in offered.items()}
    check(graph, choice, mesh, seed)


@pytest.mark.parametrize("seed", part("padding on both axes", range(24), 2))
def test_padding_and_copies_on_both_axes_compute_the_same(seed: int) -> None:
    """The graphs have 12 rows on 5 ranks, and 4 or 10 heads on 3 ranks."""
    rng = np.random.default_rng(seed)
    graph = without_dead(network(seed)) if seed % 2 else block((4, 10)[seed % 4 // 2], 8, 40)
    mesh = Mesh([(2, 5), (5, 2), (3, 2), (2, 3), (3, 1), (8, 2)][seed % 6])
    # Few of all strategies pad, so they are drawn first.
    choice = {}
    for node, items in mesh_offers(graph, mesh.axes).items():
        padded = [item for item in items if "block" in repr(item) or "copies" in repr(item)]
        pool = padded if padded and rng.integers(4) else items
        choice[node] = pool[int(rng.integers(len(pool)))]
    check(graph, choice, mesh, seed)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1), (1, 3), (2, 3)], ids=str)
@pytest.mark.parametrize("form", [block, fused_block])
def test_ten_heads_are_divided_on_two_axes(
    form: Callable[[int, int, int], Graph], sizes: tuple[int, int]
) -> None:
    """Each rank has whole heads: for example 3 of the 5 of a host."""
    graph, mesh = form(10, 32, 640), Mesh(sizes)
    heads = math.ceil(math.ceil(10 / sizes[0]) / sizes[1])
    softmax = next(node for node in graph.nodes if node.op.name == "softmax")

    def has_heads(items: NodeStrategies) -> bool:
        (shardings,) = zip(*(strategy.results for strategy in items), strict=True)
        local = mesh_type(softmax.outputs[0].type, shardings, sizes)
        return local.shape[1] is const(heads) and all(
            isinstance(s, Split) == (ranks > 1) for s, ranks in zip(shardings, sizes, strict=True)
        )

    by_heads = next(items for items in mesh_offers(graph, mesh.axes)[softmax] if has_heads(items))
    cluster = Cluster(mesh, (replace(FAST, latency=1e-9, link_bytes=1e12),) * 2)
    choice = mesh_strategies(graph, cluster, partition_solver(), {softmax: by_heads})
    local = mesh_sharded(graph, choice, mesh.axes)
    weights = [sum(rank_bytes(v.type) for v in g.constants) for g in (local, graph)]
    assert weights[0] < 1.02 * heads / 10 * weights[1]
    check(graph, choice, mesh)


@pytest.mark.parametrize("op", ["arg_max", "arg_min"])
def test_extrema_with_positions_are_combined_along_each_axis(op: str) -> None:
    b = GraphBuilder("extrema")
    x = b.input("x", tensor(F32, 4, 8))
    best = add(b, op, x, axis=1, keepdims=False, select_last=False)
    graph = b.finish((best,))
    offered = mesh_offers(graph, SQUARE.axes)
    (node,) = graph.nodes
    texts = [tuple(map(repr, items)) for items in offered[node]]
    assert ("split(1) -> whole",) * 2 in texts
    for items in offered[node]:
        check(graph, {node: items}, SQUARE)


def test_later_axes_divide_no_axis_that_has_padding() -> None:
    graph = mlp(4, 7, 16)
    (first, *_), sizes = graph.nodes, (2, 2)
    offered = mesh_offers(graph, Mesh(sizes).axes)[first]
    texts = [[repr(strategy) for strategy in items] for items in offered]
    rows = "split(0, block=4), whole -> split(0, block=4)"
    assert [rows, "whole, split(1) -> split(1)"] in texts
    assert ["whole, split(1) -> split(1)", rows] in texts
    assert not [text for text in texts if text[0] == rows and text[1].startswith("split(0")]


@pytest.mark.parametrize("graph", [mlp(4, 8, 16), block(4, 8, 16)], ids=["mlp", "block"])
def test_the_choice_for_a_cluster_computes_the_same(graph: Graph) -> None:
    choice = mesh_strategies(graph, CLUSTER, partition_solver())
    assert len(mesh_sharded(graph, choice, SQUARE.axes).nodes) > len(graph.nodes)
    check(graph, choice, SQUARE)


def costs(type_: object, source: Shardings, result: Shardings) -> float | None:
    """Returns the seconds of a resharding on the cluster; None if it is impossible."""

    def price(axis, type_, source, result):
        return change_seconds(type_, source, result, 2, CLUSTER.rates[axis])

    steps = route(type_, source, result, SQUARE.sizes, price)
    return None if steps is None else steps.price


def test_changes_take_the_links_of_their_axes() -> None:
    type_ = tensor(F32, 8, 8)
    half, quarter = 8 * 8 * 4 // 2, 8 * 8 * 4 // 4

    def slow(count: int) -> float:
        return SLOW.latency + count / SLOW.link_bytes

    def fast(count: int) -> float:
        return FAST.latency + count / FAST.link_bytes

    rows, columns = Split(0), Split(1)
    for source, result, seconds in (
        ((rows, WHOLE), (WHOLE, WHOLE), slow(half)),
        ((WHOLE, rows), (WHOLE, WHOLE), fast(half)),
        ((rows, columns), (WHOLE, columns), slow(quarter)),
        # The inner blocks of a host are not blocks of the whole value.
        ((rows, rows), (WHOLE, rows), fast(quarter) + slow(half)),
        ((Partial("sum"), Partial("sum")), (WHOLE, WHOLE), slow(2 * half) + fast(2 * half)),
        ((Partial("sum"), Partial("sum")), (WHOLE, rows), slow(2 * quarter) + fast(half)),
        ((WHOLE, WHOLE), (rows, rows), 0.0),
        ((rows, columns), (rows, columns), 0.0),
    ):
        assert costs(type_, source, result) == pytest.approx(seconds), (source, result)
    assert costs(type_, (rows, WHOLE), (Partial("max"), WHOLE)) is None
    assert costs(tensor(F32, 2, 8), (rows, WHOLE), (rows, rows)) is None  # needs 4 rows


def least_seconds(graph: Graph) -> float:
    """Returns the least predicted seconds of a chain of nodes, by brute force over all choices."""
    offered = mesh_offers(graph, SQUARE.axes)
    change = cache(costs)
    work: dict[tuple[Node, NodeStrategies], float] = {}
    for node, items in offered.items():
        for strategies in items:
            expr = expr_of(node)
            assert expr is not None
            seconds = work_seconds(expr, strategies, SQUARE.axes, CLUSTER.rates)
            for value, *along in zip(node.inputs, *(s.operands for s in strategies), strict=True):
                if value in graph.constants:
                    size = rank_bytes(value.type, tuple(along), SQUARE.sizes)
                    seconds += size / FAST.memory_bytes
            work[node, strategies] = seconds
    replicated = (WHOLE, WHOLE)
    least = float("inf")
    for items in itertools.product(*offered.values()):
        total, have = 0.0, replicated
        for node, strategies in zip(offered, items, strict=True):
            need = tuple(s.operands[0] for s in strategies)
            total += work[node, strategies]
            total += change(node.inputs[0].type, have, need) if have != need else 0.0
            have = tuple(s.results[0] for s in strategies)
        least = min(least, total + change(graph.outputs[0].type, have, replicated))
    return least


@pytest.mark.parametrize(("batch", "width"), [(4, 64), (64, 8), (64, 256)])
def test_no_pairs_of_strategies_take_less_time(batch: int, width: int) -> None:
    graph = mlp(1, batch, width)
    solution = solved(graph, CLUSTER, partition_solver(), {})
    assert solution.seconds == pytest.approx(least_seconds(graph), abs=1e-8)
    assert solution.seconds == predicted_seconds(graph, solution.choice, CLUSTER)


def test_memory_counts_the_parts_of_both_axes() -> None:
    graph = mlp(2, 4, 64)
    weights = sum(rank_bytes(value.type) for value in graph.constants)
    late = RankRates(latency=1.0)  # a collective costs more than all work
    for share in (1.0, 0.5, 0.25):
        memory = int(weights * share) + 2 * 4 * 64 * 4
        cluster = Cluster(SQUARE, (replace(late, memory=memory),) * 2)
        facts = planned(graph, cluster, partition_solver(), {}).facts
        assert facts["rank_weight_bytes"] <= weights * share
        assert (facts["seconds"] < 1.0) == (share == 1.0)
    tight = Cluster(SQUARE, (replace(late, memory=weights // 4),) * 2)
    with pytest.raises(UserError, match="does not fit the memory"):
        planned(graph, tight, partition_solver(), {})


def test_plans_of_meshes_are_read_back(tmp_path: Path) -> None:
    graph = block(4, 8, 16)
    choice = mesh_strategies(graph, CLUSTER, partition_solver())
    path = tmp_path / "plan.json"
    path.write_text(plan_text(graph, plan_of(graph, choice, SQUARE)))
    plan = read_plan(path)
    assert (plan.ranks, plan.mesh) == (4, (2, 2))
    fixed = fixed_strategies(graph, plan, SQUARE)
    assert fixed == {node: choice[node] for node in fixed}
    assert len(fixed) == len(graph.nodes)
    with pytest.raises(UserError, match="for another mesh of ranks"):
        fixed_strategies(graph, plan, Mesh((4,)))
    table = json.loads(path.read_text())
    for change, why in (
        ({"mesh": [2, 3]}, "numbers whose product is 4"),
        ({"mesh": [-2, -2]}, "numbers whose product is 4"),
        ({"mesh": [1, 2, 2]}, "at most 2 numbers"),
        ({"mesh": [4]}, "has 2 strategies for 1 axes"),
        ({"nodes": [{"node": "relu", "strategy": "whole -> whole"}]}, "1 strategies for 2 axes"),
        ({"nodes": [{"node": "relu", "strategy": ["whole -> whole", 3]}]}, "no texts"),
    ):
        path.write_text(json.dumps({**table, **change}))
        with pytest.raises(UserError, match="no plan") as error:
            read_plan(path)
        assert why in str(error.value)


def renamed(graph: Graph, seed: int) -> Graph:
    """Returns the graph with other names and another order of nodes and constants."""
    rng = np.random.default_rng(seed)
    values = [*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs)]
    numbers = rng.permutation(len(values))
    new = {v: Value(f"v{number}", v.type) for v, number in zip(values, numbers, strict=True)}
    nodes: list[Node] = []
    ready = {*graph.inputs, *graph.constants}
    waiting = list(graph.nodes)
    while waiting:
        possible = [node for node in waiting if ready.issuperset(filter(None, node.inputs))]
        node = possible[int(rng.integers(len(possible)))]
        waiting.remove(node)
        ready.update(node.outputs)
        inputs, outputs = (tuple(new[v] for v in vs) for vs in (node.inputs, node.outputs))
        nodes.append(replace(node, inputs=inputs, outputs=outputs))
    constants = [*graph.constants.items()]
    rng.shuffle(constants)
    return replace(
        graph,
        name="other",
        nodes=tuple(nodes),
        inputs=tuple(new[v] for v in graph.inputs),
        outputs=tuple(new[v] for v in graph.outputs),
        constants={new[value]: handle for value, handle in constants},
    )


@pytest.mark.parametrize("cluster", [CLUSTER, one_host(4, FAST)], ids=["2x2", "4"])
def test_a_renamed_and_reordered_copy_gets_a_plan_of_equal_cost(cluster: Cluster) -> None:
    graph = block(4, 8, 16)
    seconds = solved(graph, cluster, partition_solver(), {}).seconds
    for seed in range(3):
        copy = renamed(graph, seed)
        verify_graph(copy)
        assert copy.nodes[0].outputs[0].name != graph.nodes[0].outputs[0].name
        assert solved(copy, cluster, partition_solver(), {}).seconds == seconds
