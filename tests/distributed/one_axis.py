"""Shortcuts to the planner for tests: a single strategy per node on one-axis meshes, and the
predicted time of a choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tcc.distributed.costs import Cluster, RankRates, one_host
from tcc.distributed.mesh import Mesh, MeshAxis
from tcc.distributed.offers import NodeStrategies, mesh_offers
from tcc.distributed.problem import NANOSECONDS, Problem, ProblemWriter, Solver
from tcc.distributed.shard import sharded_with_arrays
from tcc.distributed.solve import solved
from tcc.distributed.states import StateNames
from tcc.distributed.strategies import Strategy
from tcc.ir.graph import Graph, Node


def offers(graph: Graph, ranks: int) -> dict[Node, tuple[Strategy, ...]]:
    """Returns the strategies of each node on `ranks` ranks."""
    offered = mesh_offers(graph, Mesh((ranks,)).axes)
    return {node: tuple(strategy for (strategy,) in items) for node, items in offered.items()}


def mesh_sharded(
    graph: Graph,
    choice: Mapping[Node, NodeStrategies],
    axes: Sequence[MeshAxis],
    states: StateNames = (),
) -> Graph:
    """Returns the graph that each rank of a mesh runs."""
    return sharded_with_arrays(graph, choice, axes, states)[0]


def sharded(
    graph: Graph, choice: Mapping[Node, Strategy], ranks: int, states: StateNames = ()
) -> Graph:
    """Returns the graph that each of `ranks` ranks runs."""
    items = {node: (strategy,) for node, strategy in choice.items()}
    return mesh_sharded(graph, items, Mesh((ranks,)).axes, states)


def solve_strategies(
    graph: Graph,
    ranks: int,
    rates: RankRates,
    solver: Solver,
    fixed: Mapping[Node, Strategy] | None = None,
    states: StateNames = (),
) -> dict[Node, Strategy]:
    """Returns the best strategy of each node on one host."""
    singles = {node: (strategy,) for node, strategy in (fixed or {}).items()}
    choice = mesh_strategies(graph, one_host(ranks, rates), solver, singles, states)
    return {node: strategy for node, (strategy,) in choice.items()}


def mesh_strategies(
    graph: Graph,
    cluster: Cluster,
    solver: Solver,
    fixed: Mapping[Node, NodeStrategies] | None = None,
    states: StateNames = (),
) -> dict[Node, NodeStrategies]:
    """Returns the best strategies of each node on a cluster."""
    return solved(graph, cluster, solver, fixed or {}, states).choice


def predicted_seconds(
    graph: Graph,
    choice: Mapping[Node, NodeStrategies],
    cluster: Cluster,
    states: StateNames = (),
) -> float:
    """Returns the predicted seconds of a run with a choice of strategies."""
    return least_cost(ProblemWriter(graph, cluster, choice, states).problem()) / NANOSECONDS


def least_cost(problem: Problem) -> int:
    """Returns the least cost of a problem in which each edge has an end with a single alternative.

    Every other node then takes its cheapest alternative independently.
    """
    costs = [list(node.costs) for node in problem.nodes]
    total = 0
    for edge in problem.edges:
        first, second = edge.nodes
        if len(costs[first]) == 1:
            costs[second] = [a + b for a, b in zip(costs[second], edge.costs, strict=True)]
        else:
            assert len(costs[second]) == 1
            costs[first] = [a + b for a, b in zip(costs[first], edge.costs, strict=True)]
    for row in costs:
        total += min(row)
    return total
