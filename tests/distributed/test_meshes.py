"""Meshes of two axes: results of one rank, the best plans by brute force, and paths of changes."""

from __future__ import annotations

import itertools
import json
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
from tcc.distributed.facts import planned
from tcc.distributed.mesh import Mesh
from tcc.distributed.mesh_offers import NodeStrategies, mesh_offers
from tcc.distributed.offers import expr_of
from tcc.distributed.plan import fixed_strategies, plan_of, plan_text, read_plan
from tcc.distributed.routes import route
from tcc.distributed.shard import mesh_sharded
from tcc.distributed.sharding import WHOLE, Partial, Shardings, Split
from tcc.distributed.solve import mesh_strategies, predicted_seconds, solved
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.verify import verify_graph
from tcc.ir.types import F32, tensor

from .lockstep import on_ranks
from .networks import add
from .test_shard import block, mlp
from .test_solve import network

SQUARE = Mesh((2, 2))
FAST = RankRates(operations=1e9, memory_bytes=1e10, link_bytes=1e10, latency=1e-7)
SLOW = RankRates(operations=1e9, memory_bytes=1e10, link_bytes=1e9, latency=1e-6)
CLUSTER = Cluster(SQUARE, (SLOW, FAST))


def check(graph: Graph, choice: dict[Node, NodeStrategies], mesh: Mesh, seed: int = 0) -> None:
    """Checks that all ranks have equal results, which are those of one rank."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in graph.inputs:
        shape = [int(dim.const) for dim in value.type.shape]
        feeds[value.name] = rng.normal(size=shape).astype(np.float32)
    (expected,) = on_ranks(graph, feeds, 1)
    divided = mesh_sharded(graph, choice, mesh.axes)
    verify_graph(divided)
    ranks = on_ranks(divided, feeds, mesh.ranks)
    for outputs in ranks:
        for name, want in expected.items():
            np.testing.assert_allclose(outputs[name], want, rtol=1e-4, atol=1e-4)
            assert outputs[name].tobytes() == ranks[0][name].tobytes()


@pytest.mark.parametrize("seed", range(40))
def test_any_pair_of_strategies_computes_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = network(seed) if seed % 4 else block(4, 8, 16)
    mesh = Mesh([(2, 2), (2, 3), (3, 2)][seed % 3] if seed % 4 else (2, 2))
    offered = mesh_offers(graph, mesh.axes)
    choice = {node: items[int(rng.integers(len(items)))] for node, items in offered.items()}
    check(graph, choice, mesh, seed)


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


def test_several_axes_leave_out_padding_and_copies() -> None:
    graph = mlp(4, 7, 16)
    single, double = (mesh_offers(graph, Mesh(sizes).axes) for sizes in ((2,), (2, 2)))
    assert "block=4" in repr(single)
    assert "split" in repr(double)
    assert "block=" not in repr([*double.values()])
    assert "copies=" not in repr([*double.values()])


@pytest.mark.parametrize("graph", [mlp(4, 8, 16), block(4, 8, 16)], ids=["mlp", "block"])
def test_the_choice_for_a_cluster_computes_the_same(graph: Graph) -> None:
    choice = mesh_strategies(graph, CLUSTER, partition_solver())
    assert len(mesh_sharded(graph, choice, SQUARE.axes).nodes) > len(graph.nodes)
    check(graph, choice, SQUARE)


def costs(type_: object, source: Shardings, result: Shardings) -> float | None:
    """The seconds of a change of sharding on the cluster."""

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
        # The inner blocks of a host are no blocks of the whole.
        ((rows, rows), (WHOLE, rows), fast(quarter) + slow(half)),
        ((Partial("sum"), Partial("sum")), (WHOLE, WHOLE), slow(2 * half) + fast(2 * half)),
        ((Partial("sum"), Partial("sum")), (WHOLE, rows), slow(2 * quarter) + fast(half)),
        ((WHOLE, WHOLE), (rows, rows), 0.0),
        ((rows, columns), (rows, columns), 0.0),
    ):
        assert costs(type_, source, result) == pytest.approx(seconds), (source, result)
    assert costs(type_, (rows, WHOLE), (Partial("max"), WHOLE)) is None
    assert costs(tensor(F32, 2, 8), (rows, WHOLE), (rows, rows)) is None  # no blocks of 1 row


def least_seconds(graph: Graph) -> float:
    """The least predicted seconds of a chain of nodes, by all choices of strategies."""
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
    whole = (WHOLE, WHOLE)
    least = float("inf")
    for items in itertools.product(*offered.values()):
        total, have = 0.0, whole
        for node, strategies in zip(offered, items, strict=True):
            need = tuple(s.operands[0] for s in strategies)
            total += work[node, strategies]
            total += change(node.inputs[0].type, have, need) if have != need else 0.0
            have = tuple(s.results[0] for s in strategies)
        least = min(least, total + change(graph.outputs[0].type, have, whole))
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
    """The graph with other names, its nodes and constants in another order."""
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
