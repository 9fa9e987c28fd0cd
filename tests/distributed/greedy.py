"""Chooses a strategy for each node, in the order of the graph.

A node takes the strategy with the least sum of these costs:

- resharding its operands from the shardings that they have,
- its own work, and reading its constants,
- resharding its results to whole values, because a later node may need them whole.

The last cost makes it cheaper to divide a matmul's columns and then the next matmul's rows than to
gather between the two.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter

from tcc.distributed.costs import RankRates, change_seconds, constant_seconds, work_seconds
from tcc.distributed.mesh import Mesh
from tcc.distributed.offers import expr_of
from tcc.distributed.sharding import WHOLE, Sharding
from tcc.distributed.strategies import Strategy
from tcc.frozen import frozen
from tcc.ir.expr import Expr
from tcc.ir.graph import Graph, Node, Value, captures

from .one_axis import offers


@frozen
class _Spread:
    """The shardings in which ranks hold each value so far."""

    graph: Graph
    ranks: int
    rates: RankRates
    shardings: dict[Value, list[Sharding]]

    def seconds(self, node: Node, expr: Expr, strategy: Strategy) -> float | None:
        """Returns the predicted seconds of a strategy, or None if the operands do not allow it."""
        total = work_seconds(expr, (strategy,), Mesh((self.ranks,)).axes, (self.rates,))
        pairs = [
            (v, s) for v, s in zip(node.inputs, strategy.operands, strict=True) if v is not None
        ]
        for value, sharding in dict.fromkeys(pairs):
            seconds = self._operand_seconds(value, sharding)
            if seconds is None:
                return None
            total += seconds
        for value, sharding in zip(node.outputs, strategy.results, strict=True):
            total += self._change(value, sharding, WHOLE) or 0.0
        return total

    def _operand_seconds(self, value: Value, sharding: Sharding) -> float | None:
        changes = [self._change(value, source, sharding) for source in self.shardings[value]]
        seconds = min((s for s in changes if s is not None), default=None)
        if seconds is None or value not in self.graph.constants:
            return seconds
        return constant_seconds(value.type, (sharding,), (self.ranks,), self.rates)

    def _change(self, value: Value, source: Sharding, result: Sharding) -> float | None:
        return change_seconds(value.type, source, result, self.ranks, self.rates)

    def take(self, node: Node, strategy: Strategy) -> None:
        """Records the shardings of the results of a strategy, and the new shardings of its
        operands."""
        for value, sharding in zip(node.inputs, strategy.operands, strict=True):
            if value is not None and value not in self.graph.constants:
                self._record(value, sharding)
        for value in captures(node):
            if value in self.shardings:
                self._record(value, WHOLE)
        for value, sharding in zip(node.outputs, strategy.results, strict=True):
            self.shardings[value] = [sharding]

    def _record(self, value: Value, sharding: Sharding) -> None:
        if sharding not in self.shardings[value]:
            self.shardings[value].append(sharding)


def choose_strategies(graph: Graph, ranks: int, rates: RankRates) -> dict[Node, Strategy]:
    """Returns a strategy for each node of `graph`, which `ranks` ranks run.

    Equal graphs get equal strategies: the first of equal cost wins.
    """
    start: Iterable[Value] = (*graph.inputs, *graph.constants)
    spread = _Spread(graph, ranks, rates, {value: [WHOLE] for value in start})
    choice = {}
    for node, strategies in offers(graph, ranks).items():
        choice[node] = strategy = _cheapest(spread, node, strategies)
        spread.take(node, strategy)
    return choice


def _cheapest(spread: _Spread, node: Node, strategies: Sequence[Strategy]) -> Strategy:
    """Returns the strategy with the least predicted seconds; the first of several."""
    expr = expr_of(node)
    if expr is None:
        return strategies[0]
    prices = [(spread.seconds(node, expr, strategy), strategy) for strategy in strategies]
    possible = [(seconds, strategy) for seconds, strategy in prices if seconds is not None]
    return min(possible, key=itemgetter(0))[1]
