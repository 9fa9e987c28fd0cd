"""Chooses a strategy for each node so that the predicted time of all nodes together is least.

The choice is a problem over a graph: each node has a list of alternatives with costs, and each edge
has a cost for every pair of alternatives.

    node of the model        an alternative for each strategy; its cost is the rank's work and the
                             reading of constants
    value with more readers  an alternative for each set of shardings that the ranks make of it
    edge                     the changes of sharding between a producer and what its readers need

A change of sharding is paid once, however many readers need it.  Costs are whole nanoseconds, so
that sums are exact, equal models get equal choices, and searches end at the best choice.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import TypeAlias

from tcc.distributed.costs import (
    RankRates,
    change_seconds,
    constant_seconds,
    rank_bytes,
    work_seconds,
)
from tcc.distributed.offers import expr_of, offers
from tcc.distributed.sharding import WHOLE, Sharding
from tcc.distributed.states import StateNames, states_of
from tcc.distributed.strategies import Strategy
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node, Value, captures
from tcc.ir.types import TensorType

FORBIDDEN = 10**17  # nanoseconds; more than any plan takes
_NANOSECONDS = 1e9
_ALWAYS = (0, 1)
_MOST_SHARDINGS = 4  # of a value at the same time

Costs: TypeAlias = list[int]
ShardingSet: TypeAlias = frozenset[Sharding]


@frozen
class ProblemNode:
    """The costs of a node's alternatives, in nanoseconds, and the bytes that each needs.

    The bytes are in use at the times life[0] <= t < life[1].
    """

    costs: Sequence[int]
    usages: Sequence[int]
    life: tuple[int, int]


@frozen
class ProblemEdge:
    """Two nodes, and a cost in nanoseconds for each pair of their alternatives, in the order of
    the first node's alternatives."""

    nodes: tuple[int, int]
    costs: Sequence[int]


@frozen
class Problem:
    """Nodes and edges; `limit` is the most bytes in use at any time, None for any number."""

    nodes: Sequence[ProblemNode]
    edges: Sequence[ProblemEdge]
    limit: int | None = None


# Returns the number of an alternative for each node of a problem.
Solver: TypeAlias = Callable[[Problem], Sequence[int]]


def solve_strategies(
    graph: Graph,
    ranks: int,
    rates: RankRates,
    solver: Solver,
    fixed: Mapping[Node, Strategy] | None = None,
    states: StateNames = (),
) -> dict[Node, Strategy]:
    """Returns a strategy for each node of `graph`, which `ranks` ranks run.

    Nodes in `fixed` get the strategy that stands there.  `states` are pairs of the names of an
    input and of the output that replaces it, of which ranks may keep parts.  Raises UserError if no
    choice fits.
    """
    writer = _ProblemWriter(graph, ranks, rates, fixed or {}, states)
    problem = writer.problem()
    solution = solver(problem)
    if solution_cost(problem, solution) >= FORBIDDEN:
        raise UserError(
            "no plan fits",
            where=graph.name,
            why="the ranks have too little memory, or fixed strategies exclude each other",
            hint="allow more memory or more ranks, or fix fewer strategies",
        )
    return {
        node: writer.strategies[number][solution[number]] for number, node in enumerate(graph.nodes)
    }


class _ProblemWriter:
    """Writes the problem of a graph; its first nodes are those of the graph, in order."""

    def __init__(
        self,
        graph: Graph,
        ranks: int,
        rates: RankRates,
        fixed: Mapping[Node, Strategy],
        states: StateNames,
    ) -> None:
        self._graph, self._ranks, self._rates = graph, ranks, rates
        # A complete choice needs no offers.
        offered = offers(graph, ranks) if len(fixed) < len(graph.nodes) else {}
        self.strategies = [
            (fixed[node],) if node in fixed else offered[node] for node in graph.nodes
        ]
        self._numbers = {node: number for number, node in enumerate(graph.nodes)}
        self._producers = graph.producers()
        self._states = states_of(graph, states)
        self._costs: list[Costs] = []
        self._usages: dict[int, list[int]] = {}
        self._edges: dict[tuple[int, int], Costs] = {}
        self._change = cache(self._change_cost)

    def problem(self) -> Problem:
        """Returns the problem."""
        for node, alternatives in zip(self._graph.nodes, self.strategies, strict=True):
            self._costs.append([self._node_cost(node, strategy) for strategy in alternatives])
        shared = {state.present for states in self._states.values() for state in states}
        visible = self._graph.values_read_outside() - shared
        readers = self._readers()
        values = (*self._graph.inputs, *(v for node in self._graph.nodes for v in node.outputs))
        for value in values:
            if value in readers or value in visible:
                self._connect(value, readers.get(value, ()), value in visible)
        memory = self._rates.memory
        if memory is not None:
            for value in self._graph.constants:
                if value in readers or value in visible:
                    self._place_constant(value, readers.get(value, ()), value in visible)
        return Problem(
            tuple(
                ProblemNode(costs, self._usages.get(number, [0] * len(costs)), _ALWAYS)
                for number, costs in enumerate(self._costs)
            ),
            tuple(ProblemEdge(nodes, costs) for nodes, costs in self._edges.items()),
            None if memory is None else max(0, memory - largest_values(self._graph)),
        )

    def _node_cost(self, node: Node, strategy: Strategy) -> int:
        expr = expr_of(node)
        seconds = 0.0 if expr is None else work_seconds(expr, strategy, self._ranks, self._rates)
        for value, sharding in dict.fromkeys(zip(node.inputs, strategy.operands, strict=True)):
            if value is not None and value in self._graph.constants:
                if self._change(value.type, WHOLE, sharding) >= FORBIDDEN:
                    return FORBIDDEN
                seconds += constant_seconds(value.type, sharding, self._ranks, self._rates)
        # The caller gets the whole of a state of which ranks do not keep parts.
        gathered = sum(
            self._change(state.present.type, strategy.results[state.result], WHOLE)
            for state in self._states.get(node, ())
            if state.kept(strategy) is None
        )
        return min(_nanoseconds(seconds) + gathered, FORBIDDEN)

    def _change_cost(self, type: TensorType, source: Sharding, result: Sharding) -> int:
        seconds = change_seconds(type, source, result, self._ranks, self._rates)
        return FORBIDDEN if seconds is None else _nanoseconds(seconds)

    def _readers(self) -> dict[Value, list[int]]:
        """Returns the numbers of the nodes that read each value as an operand."""
        readers: dict[Value, list[int]] = {}
        for number, node in enumerate(self._graph.nodes):
            for value in dict.fromkeys(node.inputs):
                if value is not None:
                    readers.setdefault(value, []).append(number)
        return readers

    # ---- constants ------------------------------------------------------------------------------

    def _place_constant(self, value: Value, readers: Sequence[int], visible: bool) -> None:
        """Adds the bytes of the shardings of a constant that its readers need."""
        if len(readers) == 1 and not visible:
            (reader,) = readers
            sets = [_needed(self._graph.nodes[reader], s, value) for s in self.strategies[reader]]
            before = self._usages.get(reader, [0] * len(sets))
            sizes = [self._bytes(value.type, shardings) for shardings in sets]
            self._usages[reader] = [a + b for a, b in zip(before, sizes, strict=True)]
            return
        number, sets = self._add_sets(value, readers, visible)
        self._usages[number] = [self._bytes(value.type, shardings) for shardings in sets]

    def _bytes(self, type: TensorType, shardings: ShardingSet) -> int:
        return sum(rank_bytes(type, sharding, self._ranks) for sharding in shardings)

    # ---- values ---------------------------------------------------------------------------------

    def _connect(self, value: Value, readers: Sequence[int], visible: bool) -> None:
        """Adds the cost of the shardings of `value` that its readers need.

        `visible`: the value is also needed whole.
        """
        sources = self._sources(value)
        if len(readers) == 1 and not visible:
            (reader,) = readers
            needs = [_needed(self._graph.nodes[reader], s, value) for s in self.strategies[reader]]
            self._add_costs(value, reader, [[self._making(value.type, source, need)
                                             for need in needs] for source in sources])  # fmt: skip
            return
        number, sets = self._add_sets(value, readers, visible)
        self._add_costs(
            value, number,
            [[self._making(value.type, source, made) for made in sets] for source in sources],
        )  # fmt: skip

    def _add_sets(
        self, value: Value, readers: Sequence[int], visible: bool
    ) -> tuple[int, list[ShardingSet]]:
        """Adds a node with an alternative for each set of shardings of `value`, which forbids what
        its readers lack; returns its number and the sets."""
        always: ShardingSet = frozenset({WHOLE} if visible else ())
        needs_of = {
            r: [_needed(self._graph.nodes[r], s, value) for s in self.strategies[r]]
            for r in readers
        }
        needed = dict.fromkeys(need for needs in needs_of.values() for need in needs)
        sets = list(_sharding_sets([*always, *(s for need in needed for s in need)], always))
        number = len(self._costs)
        self._costs.append([0] * len(sets))
        for reader, needs in needs_of.items():
            table = [[0 if need <= made else FORBIDDEN for made in sets] for need in needs]
            self._add_edge(reader, number, table)
        return number, sets

    def _sources(self, value: Value) -> list[Sharding]:
        """Returns the sharding of a value for each strategy of its producer; an input is whole."""
        node = self._producers.get(value)
        if node is None:
            return [WHOLE]
        place = node.outputs.index(value)
        return [s.results[place] for s in self.strategies[self._numbers[node]]]

    def _making(self, type: TensorType, source: Sharding, shardings: ShardingSet) -> int:
        """Returns the cost of all `shardings` of a value that is there as `source`."""
        direct = sum(self._change(type, source, s) for s in shardings)
        to_whole = self._change(type, source, WHOLE)
        by_whole = to_whole + sum(
            min(self._change(type, WHOLE, s), self._change(type, source, s)) for s in shardings
        )
        return min(direct, by_whole, FORBIDDEN)

    def _add_costs(self, value: Value, number: int, table: Sequence[Costs]) -> None:
        """Adds the costs of each sharding of `value` with each alternative of node `number`."""
        node = self._producers.get(value)
        if node is None:
            costs = self._costs[number]
            self._costs[number] = [min(a + b, FORBIDDEN)
                                   for a, b in zip(costs, table[0], strict=True)]  # fmt: skip
        else:
            self._add_edge(self._numbers[node], number, table)

    def _add_edge(self, first: int, second: int, table: Sequence[Costs]) -> None:
        if first > second:
            first, second, table = second, first, list(map(list, zip(*table, strict=True)))
        costs = [cost for row in table for cost in row]
        previous = self._edges.get((first, second), [0] * len(costs))
        self._edges[first, second] = [min(a + b, FORBIDDEN)
                                      for a, b in zip(previous, costs, strict=True)]  # fmt: skip


def _needed(node: Node, strategy: Strategy, value: Value) -> ShardingSet:
    """Returns the shardings of `value` that a node with this strategy reads."""
    pairs = zip(node.inputs, strategy.operands, strict=True)
    return frozenset(sharding for operand, sharding in pairs if operand is value)


def _sharding_sets(shardings: Iterable[Sharding], always: ShardingSet) -> Iterator[ShardingSet]:
    """Yields the sets that contain `always`, the small sets first."""
    free = [s for s in dict.fromkeys(shardings) if s not in always]
    for count in range(min(_MOST_SHARDINGS, len(free)) + 1):
        for chosen in combinations(free, count):
            yield always | frozenset(chosen)


def largest_values(graph: Graph) -> int:
    """Returns the most bytes of values that are live at the same time, if all are whole."""
    last: dict[Value, int] = dict.fromkeys(graph.outputs, len(graph.nodes))
    for number, node in enumerate(graph.nodes):
        for value in (*node.inputs, *captures(node)):
            if value is not None:
                last[value] = max(number, last.get(value, 0))
    ends: dict[int, int] = {}
    live = most = 0
    for number, node in enumerate(graph.nodes):
        for value in node.outputs:
            size = rank_bytes(value.type, WHOLE, 1)
            live += size
            end = last.get(value, number)
            ends[end] = ends.get(end, 0) + size
        most = max(most, live)
        live -= ends.get(number, 0)
    return most


def _nanoseconds(seconds: float) -> int:
    return min(round(seconds * _NANOSECONDS), FORBIDDEN)


def predicted_seconds(
    graph: Graph,
    choice: Mapping[Node, Strategy],
    ranks: int,
    rates: RankRates,
    states: StateNames = (),
) -> float:
    """Returns the predicted seconds of a run with a choice of strategies."""
    problem = _ProblemWriter(graph, ranks, rates, choice, states).problem()
    return least_cost(problem) / _NANOSECONDS


def solution_cost(problem: Problem, solution: Sequence[int]) -> int:
    """Returns the cost in nanoseconds of the alternatives with the numbers `solution`."""
    nodes = zip(problem.nodes, solution, strict=True)
    cost = sum(node.costs[number] for node, number in nodes)
    for edge in problem.edges:
        first, second = edge.nodes
        columns = len(problem.nodes[second].costs)
        cost += edge.costs[solution[first] * columns + solution[second]]
    return cost


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
