"""Evaluates the graph of one rank, whose collectives a function of the test computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from tcc.ir.graph import Graph, Node, Value
from tcc.ir.graph.evaluate import GraphEvaluator
from tcc.ir.op import Array, Arrays, NamedArrays, OutArrays, Trait

# Returns this rank's result of a collective, after all ranks have called it.
Exchange: TypeAlias = Callable[[Node, Array], Array]


class RankEvaluator(GraphEvaluator):
    """Evaluates graphs as rank number `rank` does.

    If a constant has an array for each rank, `rank` selects the array.
    """

    def __init__(self, exchange: Exchange, rank: int, seed: int = 0) -> None:
        super().__init__(seed)
        self._exchange, self._rank = exchange, rank

    def constant(self, graph: Graph, value: Value) -> Array:
        return graph.store.on_rank(graph.constants[value], self._rank)

    def results(self, node: Node, arrays: Arrays) -> OutArrays:
        if Trait.COLLECTIVE not in node.op.traits:
            return super().results(node, arrays)
        x = arrays[0] if arrays else np.zeros(0)
        assert x is not None
        return (self._exchange(node, x),)


def evaluate_rank(
    graph: Graph, inputs: NamedArrays, exchange: Exchange, rank: int, seed: int = 0
) -> dict[str, Array]:
    """The graph's outputs on a rank."""
    return RankEvaluator(exchange, rank, seed).evaluate(graph, inputs)


def without_exchange(node: Node, _: Array) -> Array:
    raise AssertionError(f"{node.op.name} exchanges")
