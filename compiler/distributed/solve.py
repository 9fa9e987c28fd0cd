"""Chooses the strategies of all nodes so that the predicted time of all nodes together is least."""

from collections.abc import Mapping

from tcc.distributed.costs import Cluster
from tcc.distributed.offers import NodeStrategies
from tcc.distributed.problem import FORBIDDEN, NANOSECONDS, ProblemWriter, Solver, cost_of
from tcc.distributed.states import StateNames
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node


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
    """Returns for each node of `graph` a strategy for each axis of a cluster's mesh, with the
    predicted seconds of a run.

    Nodes in `fixed` get the strategies that stand there.  `states` are pairs of the names of an
    input and of the output that replaces it, of which ranks may keep parts.  Raises UserError if no
    choice fits.
    """
    writer = ProblemWriter(graph, cluster, fixed, states)
    problem = writer.problem()
    numbers = solver(problem)
    cost = cost_of(problem, numbers)
    if cost >= FORBIDDEN:
        raise no_plan_fits(graph)
    return Solution(writer.choice(numbers), cost / NANOSECONDS)


def no_plan_fits(graph: Graph, least: int | None = None) -> UserError:
    """Returns the error for a graph without a plan; `least` is the bytes of the smallest plan."""
    need = "" if least is None else f": the smallest plan needs {least} bytes a rank"
    return UserError(
        "no plan fits",
        where=graph.name,
        why=f"the ranks have too little memory{need}, or fixed strategies exclude each other",
        hint="allow more memory or more ranks, or fix fewer strategies",
    )
