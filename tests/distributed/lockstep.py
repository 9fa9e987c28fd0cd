"""Runs a graph on ranks in lockstep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tcc.ir.graph import Graph, Node, walk_nodes
from tcc.ir.op import Trait
from tcc.ops.collective import collective_kind

from tests.lib.oracle.graph_of_rank import Exchange, evaluate_rank
from tests.lib.oracle.ranks import Rank, exchanged, in_lockstep

Array = np.ndarray[Any, np.dtype[Any]]


def exchange_of(rank: Rank) -> Exchange:
    """Returns the function with which a rank exchanges the results of its collectives."""

    def exchange(node: Node, x: Array) -> Array:
        if node.op.name == "rank":
            return np.array(rank.number)
        return exchanged(rank, collective_kind(node.op.name), node.attrs, x)

    return exchange


def on_ranks(graph: Graph, feeds: Mapping[str, Array], ranks: int) -> list[dict[str, Array]]:
    """Returns the outputs of a graph on each rank; all ranks have the same inputs."""

    def run(rank: Rank) -> dict[str, Array]:
        return evaluate_rank(graph, feeds, exchange_of(rank), rank.number)

    return in_lockstep(ranks, run)


def collectives(graph: Graph) -> list[str]:
    """Returns the names of a graph's collectives, in order."""
    nodes = [node.op for node in walk_nodes(graph) if Trait.COLLECTIVE in node.op.traits]
    return [op.name for op in nodes if op.name != "rank"]


__all__ = ["Array", "collectives", "exchange_of", "in_lockstep", "on_ranks"]
