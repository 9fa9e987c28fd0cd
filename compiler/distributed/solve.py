"""Chooses the strategies of all nodes so that the predicted time of all nodes together is least."""

from collections.abc import Mapping

from tcc.distributed.costs import Cluster
from tcc.distributed.offers import NodeStrategies
from tcc.distributed.problem import FORBIDDEN, NANOSECONDS, Problem, ProblemWriter, Solver, cost_of
from tcc.distributed.states import StateNames
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node


def mesh_strategies(
    graph: Graph,
    cluster: Cluster,
    solver: Solver,
    fixed: Mapping[Node, NodeStrategies] | None = None,
    states: StateNames = (),
) -> dict[Node, NodeStrategies]:
    """Returns for each node of `graph` a strategy for each axis of a cluster's mesh.

    Nodes in `fixed` get the strategies that stand there.  `states` are pairs of the names of an
    input and of the output that replaces it, of which ranks may keep parts.  Raises UserError if no
    choice fits.
    """
    return solved(graph, cluster, solver, fixed or {}, states).choice


@frozen
class Solution:
    """The strategies of each node, and the predicted seconds of a run."""

    choice: dict[Node, NodeStrategies]
    seconds: float


def solved(
    graph: Graph,
    cluster: Cluster,
    solver: Solver,
    fixed: Mapping[Node, NodeStrategies],
    states: StateNames = (),
) -> Solution:
    """Returns `mesh_strategies` with their predicted seconds; raises UserError if no choice
    fits."""
    writer = ProblemWriter(graph, cluster, fixed, states)
    problem = writer.problem()
    numbers = solver(problem)
    cost = cost_of(problem, numbers)
    if cost >= FORBIDDEN:
        raise no_plan_fits(graph)
    choice = {
        node: writer.strategies[number][numbers[number]] for number, node in enumerate(graph.nodes)
    }
    return Solution(choice, cost / NANOSECONDS)


def no_plan_fits(graph: Graph, least: int | None = None) -> UserError:
    """Returns the error for a graph without a plan; `least` is the bytes of the smallest plan."""
    need = "" if least is None else f": the smallest plan needs {least} bytes a rank"
    return UserError(
        "no plan fits",
        where=graph.name,
        why=f"the ranks have too little memory{need}, or fixed strategies exclude each other",
        hint="allow more memory or more ranks, or fix fewer strategies",
    )


def predicted_seconds(
    graph: Graph,
    choice: Mapping[Node, NodeStrategies],
    cluster: Cluster,
    states: StateNames = (),
) -> float:
    """Returns the predicted seconds of a run with a choice of strategies."""
    return least_cost(ProblemWriter(graph, cluster, choice, states).problem()) / NANOSECONDS


def least_cost(problem: Problem) -> int:
    """Returns the cost of a problem whose edges join nodes of one alternative to any others.

    Each node takes the alternative that is cheapest beside the nodes of one alternative.
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
