"""Plans and divides graphs on meshes of one axis, with a single strategy for each node."""

from __future__ import annotations

from collections.abc import Mapping

from tcc.distributed.costs import RankRates, one_host
from tcc.distributed.mesh import Mesh
from tcc.distributed.offers import mesh_offers
from tcc.distributed.problem import Solver
from tcc.distributed.shard import mesh_sharded
from tcc.distributed.solve import mesh_strategies
from tcc.distributed.states import StateNames
from tcc.distributed.strategies import Strategy
from tcc.ir.graph import Graph, Node


def offers(graph: Graph, ranks: int) -> dict[Node, tuple[Strategy, ...]]:
    """The strategies of each node on `ranks` ranks."""
    offered = mesh_offers(graph, Mesh((ranks,)).axes)
    return {node: tuple(strategy for (strategy,) in items) for node, items in offered.items()}


def sharded(
    graph: Graph, choice: Mapping[Node, Strategy], ranks: int, states: StateNames = ()
) -> Graph:
    """The graph that each of `ranks` ranks runs."""
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
    """The best strategy of each node on one host."""
    singles = {node: (strategy,) for node, strategy in (fixed or {}).items()}
    choice = mesh_strategies(graph, one_host(ranks, rates), solver, singles, states)
    return {node: strategy for node, (strategy,) in choice.items()}
