"""Writes the choice of strategies as a problem over a graph.

Each node has a list of alternatives with costs, and each edge has a cost for every pair of
alternatives.

    node of the model        an alternative for each strategy; its cost is the rank's work and the
                             reading of constants
    value with more readers  an alternative for each set of shardings that the ranks make of it
    edge                     the changes of sharding between a producer and what its readers need

A change of sharding is paid once, however many readers need it.  Costs are whole nanoseconds, so
that sums are exact, equal models get equal choices, and searches end at the best choice.  Equal
layers share their tables.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import comb
from typing import TypeAlias

import numpy as np
from tcc.distributed.costs import (
    Cluster,
    cheapest_route,
    constants_of,
    node_seconds,
    rank_bytes,
    work_seconds,
)
from tcc.distributed.offers import (
    NodeStrategies,
    mesh_offers,
    operand_shardings,
    result_shardings,
)
from tcc.distributed.sharding import WHOLE, Shardings
from tcc.distributed.states import StateNames, states_of
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node, Value, captures
from tcc.ir.op import Array
from tcc.ir.types import TensorType
from tcc.zipped import zip_equal

FORBIDDEN = 10**17  # nanoseconds; more than any plan takes
NANOSECONDS = 1e9
_ALWAYS = (0, 1)
_MOST_SHARDINGS = 4  # of a value at the same time
_MOST_SETS = 1000  # of shardings of a value

Costs: TypeAlias = Sequence[int]
ShardingSet: TypeAlias = frozenset[Shardings]


@frozen
class ProblemNode:
    """The costs of a node's alternatives, in nanoseconds, and the bytes that each needs.

    The bytes are in use at the times life[0] <= t < life[1].
    """

    costs: Costs
    usages: Sequence[int]
    life: tuple[int, int]


@frozen
class ProblemEdge:
    """Two nodes, and a cost in nanoseconds for each pair of their alternatives, in the order of
    the first node's alternatives."""

    nodes: tuple[int, int]
    costs: Costs


@frozen
class Problem:
    """Nodes and edges; `limit` is the most bytes in use at any time, None for any number."""

    nodes: Sequence[ProblemNode]
    edges: Sequence[ProblemEdge]
    limit: int | None = None


# Returns the number of an alternative for each node of a problem.
Solver: TypeAlias = Callable[[Problem], Sequence[int]]


def cost_of(problem: Problem, solution: Sequence[int]) -> int:
    """Returns the nanoseconds of a solution."""
    nodes = problem.nodes
    cost = sum(node.costs[number] for node, number in zip_equal(nodes, solution))
    for edge in problem.edges:
        first, second = edge.nodes
        cost += edge.costs[solution[first] * len(nodes[second].costs) + solution[second]]
    return cost


def with_alternative(problem: Problem, node: int, number: int) -> Problem:
    """Returns the problem in which alternative `number` is the only alternative of a node."""
    nodes, edges = list(problem.nodes), []
    before = nodes[node]
    nodes[node] = ProblemNode([before.costs[number]], [before.usages[number]], before.life)
    for edge in problem.edges:
        first, second = edge.nodes
        width = len(problem.nodes[second].costs)
        if first == node:
            edge = ProblemEdge(edge.nodes, edge.costs[number * width : (number + 1) * width])
        elif second == node:
            edge = ProblemEdge(edge.nodes, edge.costs[number::width])
        edges.append(edge)
    return Problem(nodes, edges, problem.limit)


def with_exchanges(problem: Problem, factor: float, limit: int | None) -> Problem:
    """Returns a problem in which exchanges cost `factor` times as much, with another limit."""
    edges = tuple(
        ProblemEdge(edge.nodes, [c if c >= FORBIDDEN else round(c * factor) for c in edge.costs])
        for edge in problem.edges
    )
    return Problem(problem.nodes, edges, limit)


def with_bytes(problem: Problem) -> Problem:
    """Returns a problem without a limit whose costs are the bytes that alternatives need."""
    nodes = []
    for node in problem.nodes:
        pairs = zip_equal(node.costs, node.usages)
        sizes = [cost if cost >= FORBIDDEN else size for cost, size in pairs]
        nodes.append(replace(node, costs=sizes))
    return replace(with_exchanges(problem, 0.0, None), nodes=nodes)


class ProblemWriter:
    """Writes the problem of a graph; its first nodes are those of the graph, in order.

    `strategies` has, for each of the first nodes, what its alternatives stand for.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        fixed: Mapping[Node, NodeStrategies],
        states: StateNames,
    ) -> None:
        self._graph, self._cluster, self._rates = graph, cluster, cluster.rates
        self._axes, self._sizes = cluster.mesh.axes, cluster.mesh.sizes
        self._whole: Shardings = (WHOLE,) * len(self._sizes)
        self._work, self._change = cache(work_seconds), cache(self._change_cost)
        self._table, self._useful = cache(self._costs_of), cache(self._useful_sets)
        self._states = states_of(graph, states)
        # A complete choice needs no offers.
        offered = mesh_offers(graph, self._axes) if len(fixed) < len(graph.nodes) else {}
        self.strategies: list[tuple[NodeStrategies, ...]] = []
        self._costs: list[Costs] = []
        for node in graph.nodes:
            items = (fixed[node],) if node in fixed else offered[node]
            self.strategies.append(items)
            self._costs.append([self._node_cost(node, strategies) for strategies in items])
        self._numbers = {node: number for number, node in enumerate(graph.nodes)}
        self._producers = graph.producers()
        self._usages: dict[int, list[int]] = {}
        self._edges: dict[tuple[int, int], Costs] = {}

    def problem(self) -> Problem:
        """Returns the problem; may be called once."""
        shared = {state.present for states in self._states.values() for state in states}
        visible = self._graph.values_read_outside() - shared
        readers = self._readers()
        values = (*self._graph.inputs, *(v for node in self._graph.nodes for v in node.outputs))
        for value in values:
            if value in readers or value in visible:
                self._connect(value, readers.get(value, ()), value in visible)
        memory = self._rates[0].memory
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

    def choice(self, numbers: Sequence[int]) -> dict[Node, NodeStrategies]:
        """Returns the strategies of each node that the numbers of alternatives stand for."""
        items = zip(self._graph.nodes, self.strategies, numbers, strict=False)
        return {node: strategies[number] for node, strategies, number in items}

    # ---- nodes ----------------------------------------------------------------------------------

    def _node_cost(self, node: Node, items: NodeStrategies) -> int:
        constants = constants_of(self._graph, node, items)
        if any(self._change(type, self._whole, s) >= FORBIDDEN for type, s in constants):
            return FORBIDDEN
        seconds = node_seconds(self._graph, node, items, self._cluster, self._work)
        # The caller gets the whole of a state of which ranks do not keep parts.
        results = result_shardings(items)
        gathered = sum(
            self._change(state.present.type, results[state.result], self._whole)
            for state in self._states.get(node, ())
            if state.kept(items) is None
        )
        return min(_nanoseconds(seconds) + gathered, FORBIDDEN)

    def _change_cost(self, type: TensorType, source: Shardings, result: Shardings) -> int:
        steps = cheapest_route(type, source, result, self._sizes, self._rates)
        return FORBIDDEN if steps is None else _nanoseconds(steps.price)

    def _readers(self) -> dict[Value, list[int]]:
        """Returns the numbers of the nodes that read each value as an operand."""
        readers: dict[Value, list[int]] = {}
        for number, node in enumerate(self._graph.nodes):
            for value in dict.fromkeys(node.inputs):
                if value is not None:
                    readers.setdefault(value, []).append(number)
        return readers

    def _needs(self, reader: int, value: Value) -> tuple[ShardingSet, ...]:
        """Returns the shardings of `value` that a node reads, for each of its strategies."""
        node = self._graph.nodes[reader]
        places = [place for place, operand in enumerate(node.inputs) if operand is value]
        return tuple(
            frozenset(operand_shardings(items)[place] for place in places)
            for items in self.strategies[reader]
        )

    # ---- constants ------------------------------------------------------------------------------

    def _place_constant(self, value: Value, readers: Sequence[int], visible: bool) -> None:
        """Adds the bytes of the shardings of a constant that its readers need."""
        if len(readers) == 1 and not visible:
            (reader,) = readers
            sets = self._needs(reader, value)
            before = self._usages.get(reader, [0] * len(sets))
            sizes = [self._bytes(value.type, shardings) for shardings in sets]
            self._usages[reader] = [a + b for a, b in zip_equal(before, sizes)]
            return
        number, sets = self._add_sets(value, readers, visible, None)
        self._usages[number] = [self._bytes(value.type, shardings) for shardings in sets]

    def _bytes(self, type: TensorType, sets: ShardingSet) -> int:
        return sum(rank_bytes(type, shardings, self._sizes) for shardings in sets)

    # ---- values ---------------------------------------------------------------------------------

    def _connect(self, value: Value, readers: Sequence[int], visible: bool) -> None:
        """Adds the cost of the shardings of `value` that its readers need.

        `visible`: the value is also needed whole.
        """
        if len(readers) == 1 and not visible:
            (number,) = readers
            sets = self._needs(number, value)
        else:
            number, sets = self._add_sets(value, readers, visible, self._sources(value))
        costs = self._table(value.type, self._sources(value), sets)
        node = self._producers.get(value)
        if node is None:
            self._costs[number] = _sums(self._costs[number], costs)
        else:
            self._add_edge(self._numbers[node], number, costs)

    def _add_sets(
        self,
        value: Value,
        readers: Sequence[int],
        visible: bool,
        sources: tuple[Shardings, ...] | None,
    ) -> tuple[int, tuple[ShardingSet, ...]]:
        """Adds a node with an alternative for each set of shardings of `value`, which forbids what
        its readers lack; returns its number and the sets.

        With the `sources` of which they are made, sets that are never best are left out.
        """
        always: ShardingSet = frozenset({self._whole} if visible else ())
        needs_of = {reader: self._needs(reader, value) for reader in readers}
        needed = dict.fromkeys(need for needs in needs_of.values() for need in needs)
        # Sets have no order that equal models share.
        texts = {repr(s): s for need in needed for s in need}
        sets = tuple(_sharding_sets([texts[text] for text in sorted(texts)], always))
        needed_sets = tuple(sorted(needed, key=lambda group: sorted(map(repr, group))))
        covers = _covers(needed_sets, sets)
        if sources is not None:
            sets, covers = self._useful(value.type, sources, sets, needed_sets)
        number = len(self._costs)
        self._costs.append([0] * len(sets))
        rows = dict(zip_equal(needed_sets, covers))
        for reader, needs in needs_of.items():
            self._add_edge(reader, number, [cost for need in needs for cost in rows[need]])
        return number, sets

    def _useful_sets(
        self,
        type: TensorType,
        sources: tuple[Shardings, ...],
        sets: tuple[ShardingSet, ...],
        needed: tuple[ShardingSet, ...],
    ) -> tuple[tuple[ShardingSet, ...], tuple[tuple[int, ...], ...]]:
        """Returns the sets that may be the best, and for each of `needed` a row with 0 for each set
        that covers it.

        A set also covers shardings that it gives for nothing, as slices of a whole value.  It is
        left out if another set covers as much and costs no more, whatever the source.
        """
        members = [*dict.fromkeys(s for group in (*sets, *needed) for s in group)]
        free = {s: frozenset(t for t in members if not self._change(type, s, t)) for s in members}
        closed = tuple(frozenset(t for s in group for t in free[s]) for group in sets)
        covers = _covers(needed, closed)
        table = np.array([[self._making(type, source, group) for group in sets]
                          for source in dict.fromkeys(sources)])  # fmt: skip
        points = np.concatenate([table, np.array(covers, np.int64).reshape(-1, len(sets))])
        minimal = _minimal(points)
        rows = tuple(tuple(row[number] for number in minimal) for row in covers)
        return tuple(sets[number] for number in minimal), rows

    def _sources(self, value: Value) -> tuple[Shardings, ...]:
        """Returns the shardings of a value for each strategy of its producer; an input is whole."""
        node = self._producers.get(value)
        if node is None:
            return (self._whole,)
        place = node.outputs.index(value)
        strategies = self.strategies[self._numbers[node]]
        return tuple(result_shardings(items)[place] for items in strategies)

    def _costs_of(
        self, type: TensorType, sources: tuple[Shardings, ...], sets: tuple[ShardingSet, ...]
    ) -> tuple[int, ...]:
        """Returns the costs of all shardings of each set from each source, row by row."""
        rows: dict[Shardings, list[int]] = {}
        for source in dict.fromkeys(sources):
            making = {group: self._making(type, source, group) for group in dict.fromkeys(sets)}
            rows[source] = [making[group] for group in sets]
        return tuple(cost for source in sources for cost in rows[source])

    def _making(self, type: TensorType, source: Shardings, sets: ShardingSet) -> int:
        """Returns the cost of all shardings of a set, of a value that is there as `source`."""
        direct = sum(self._change(type, source, s) for s in sets)
        by_whole = self._change(type, source, self._whole) + sum(
            min(self._change(type, self._whole, s), self._change(type, source, s)) for s in sets
        )
        return min(direct, by_whole, FORBIDDEN)

    def _add_edge(self, first: int, second: int, costs: Costs) -> None:
        """Adds costs of each alternative of node `first` with each of node `second`."""
        previous = self._edges.get((first, second))
        self._edges[first, second] = costs if previous is None else _sums(previous, costs)


def _sums(first: Costs, second: Costs) -> list[int]:
    return [min(a + b, FORBIDDEN) for a, b in zip_equal(first, second)]


def _covers(
    needed: tuple[ShardingSet, ...], sets: tuple[ShardingSet, ...]
) -> tuple[tuple[int, ...], ...]:
    """Returns a row for each of `needed`: 0 for each set that contains it."""
    return tuple(tuple(0 if need <= group else FORBIDDEN for group in sets) for need in needed)


def _minimal(points: Array) -> list[int]:
    """Returns the columns that no other column undercuts: one that is nowhere larger, and smaller
    somewhere or further to the left."""
    minimal: list[int] = []
    order = np.argsort(points.sum(axis=0, dtype=np.float64), kind="stable")
    for number in map(int, order):
        column = points[:, [number]]
        if not (points[:, minimal] <= column).all(axis=0).any():
            minimal.append(number)
    return sorted(minimal)


def _sharding_sets(shardings: Iterable[Shardings], always: ShardingSet) -> Iterator[ShardingSet]:
    """Yields the sets that contain `always`, the small sets first.

    Larger sets than pairs are left out where there would be too many.
    """
    free = [s for s in dict.fromkeys(shardings) if s not in always]
    count = 0
    for size in range(min(_MOST_SHARDINGS, len(free)) + 1):
        count += comb(len(free), size)
        if size > 2 and count > _MOST_SETS:
            return
        for chosen in combinations(free, size):
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
            size = rank_bytes(value.type)
            live += size
            end = last.get(value, number)
            ends[end] = ends.get(end, 0) + size
        most = max(most, live)
        live -= ends.get(number, 0)
    return most


def _nanoseconds(seconds: float) -> int:
    return min(round(seconds * NANOSECONDS), FORBIDDEN)
