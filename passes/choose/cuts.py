"""Ends kernels earlier than the fusion rules do where the parts are predicted to take less.

    k = rms_norm(x) ; y = softmax(q @ k^T) @ v      by rule one kernel, in which every unit
                                                    normalises all keys again: 14.9 ms
      ->  { k = rms_norm(x) } { softmax(q @ k^T) @ v }                           2.9 ms

    { q @ k^T } { softmax } { p @ v ; h @ o }       by rule, for two products with weights or long
                                                    rows do not stay in a unit
      ->  { softmax(q @ k^T) @ v } { h @ o }

Of every kernel the parts behind each of its nodes are priced that a reduction or a contraction of
the kernel follows, together with the kernels that make values for it alone: the rules then join
these with what is left.  The cheapest cut is taken if it saves more than prices err by, and its
parts are looked at in turn.  Equal regions are priced once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tcc.ir.graph import Graph, Node, Value
from tcc.ir.op import exact
from tcc.passes.fuse.partition import Group, NodeKind, classify, partition
from tcc.passes.layout.assign import assign_layouts
from tcc.passes.quantize.precision import FULL, Precision, narrowed
from tcc.passes.tile.plan import KernelPlanner
from tcc.schedule.alternatives import Alternative, preferred

# The part of a region's price that a cut must save: prices err.
_MARGIN = 0.1
# Seconds of a region below which nothing is tried.
_LEAST = 1e-5
# How far back a region goes: from a product of probabilities over the softmax to the scores.
_DEPTH = 2

# The number of a member of a group; None for no cut.
_Cut: TypeAlias = "int | None"


def priced_ends(
    graph: Graph, planner: KernelPlanner, precision: Precision = FULL
) -> frozenset[Node]:
    """The nodes at which kernels of `graph` had better end; without prices none."""
    if not planner.prices_layouts:
        return frozenset()
    cuts = _Cuts(graph, planner, precision)
    ends: frozenset[Node] = frozenset()
    while more := cuts.of(partition(graph, planner, ends), ends) - ends:
        ends |= more
    return ends


class _Cuts:
    """The cuts of a graph's kernels, each structure priced once."""

    def __init__(self, graph: Graph, planner: KernelPlanner, precision: Precision) -> None:
        self._graph, self._planner, self._precision = graph, planner, precision
        self._users = graph.users()
        self._position = {node: n for n, node in enumerate(graph.nodes)}
        self._known: dict[Any, _Cut] = {}

    def of(self, groups: Sequence[Group], ends: Collection[Node]) -> frozenset[Node]:
        """The nodes behind which these groups are cut, no two in one region: the last ones first,
        for rules join from the outputs up."""
        around = _Around(self._graph, self._users, groups)
        cut: set[Group] = set()
        found = set()
        for group in reversed(groups):
            if not _candidates(group):
                continue
            region = around.of(group)
            if not cut.isdisjoint(region):
                continue
            number = self._cut(group, region, ends)
            if number is not None:
                found.add(group.members[number])
                cut.update(region)
        return frozenset(found)

    def _cut(self, group: Group, region: Sequence[Group], ends: Collection[Node]) -> _Cut:
        key = _structure(region, self._graph, ends)
        if key not in self._known:
            graph = self._region(region)
            rule: Alternative[Graph, _Cut]
            rule = Alternative(graph, None, self._seconds(graph, region))
            found: list[Alternative[Graph, _Cut]] = []
            for n in _candidates(group) if rule.price >= _LEAST else ():
                parts = partition(graph, self._planner, [*ends, group.members[n]])
                found.append(Alternative(graph, n, self._seconds(graph, parts)))
            self._known[key] = preferred(rule, found, _MARGIN).replacement
        return self._known[key]

    def _seconds(self, graph: Graph, groups: Sequence[Group]) -> float:
        constants = dict.fromkeys(graph.constants)
        placed = assign_layouts(graph, groups, self._planner)
        made = {*graph.inputs}.difference(self._graph.inputs)
        placed = narrowed(placed, self._precision, dict.fromkeys(constants, graph), made)
        return sum(self._planner.seconds(k, placed.layouts, constants) for k in placed.kernels)

    def _region(self, groups: Sequence[Group]) -> Graph:
        """The nodes of the groups as a graph of its own."""
        members = dict.fromkeys(node for group in groups for node in group.members)
        nodes = sorted(members, key=self._position.__getitem__)
        made = {v for node in nodes for v in node.outputs}
        read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None)
        constants = {v: self._graph.constants[v] for v in read if v in self._graph.constants}
        inputs = tuple(v for v in read if v not in made and v not in constants)
        last = groups[-1]
        results = last.results(self._graph, self._users)
        return Graph("region", inputs, results, tuple(nodes), constants, self._graph.store)


class _Around:
    """The groups that make values for one group alone."""

    def __init__(
        self, graph: Graph, users: dict[Value, list[Node]], groups: Sequence[Group]
    ) -> None:
        self._number = {group: n for n, group in enumerate(groups)}
        self._kept = set(graph.outputs)
        self._made: dict[Value, Group] = {}
        self._readers: dict[Value, set[Group]] = {}
        for group in groups:
            self._made.update(dict.fromkeys(group.results(graph, users), group))
            for value in {v for node in group.members for v in node.inputs if v is not None}:
                self._readers.setdefault(value, set()).add(group)

    def of(self, group: Group) -> tuple[Group, ...]:
        """The region of `group`, which is its last: by itself where it has one anchor, for then
        nothing in front of a cut asks for more."""
        found = {group}
        for _ in range(_DEPTH if len(group.anchors) > 1 else 0):
            found |= {g for each in found for g in self._before(each) if self._private(g, found)}
        return tuple(sorted(found, key=self._number.__getitem__))

    def _before(self, group: Group) -> Iterator[Group]:
        for node in group.members:
            for value in node.inputs:
                maker = None if value is None else self._made.get(value)
                if maker is not None and maker is not group:
                    yield maker

    def _private(self, group: Group, readers: Collection[Group]) -> bool:
        """Whether `group` is a kernel whose results nobody but `readers` sees."""
        if group.join is not None or classify(group.sink).kind is NodeKind.OPAQUE:
            return False
        results = [v for v in (*group.sink.outputs, *group.extra) if v in self._made]
        return all(
            v not in self._kept and self._readers.get(v, set()) <= set(readers) for v in results
        )


def _candidates(group: Group) -> list[int]:
    """The numbers of the members that an anchor of the group follows, but of index maps that one
    another index map reads: of such a chain only the last."""
    leading: set[Value] = set()
    readers: dict[Value | None, list[Node]] = {}
    found = []
    for number in reversed(range(len(group.members))):
        node = group.members[number]
        follows = not leading.isdisjoint(node.outputs)
        if follows and not _is_map_of(node, readers):
            found.append(number)
        if follows or node in group.anchors:
            leading.update(v for v in node.inputs if v is not None)
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    return found[::-1]


def _is_map_of(node: Node, readers: Mapping[Value | None, list[Node]]) -> bool:
    """Whether an index map is read by one other alone."""
    found = [reader for value in node.outputs for reader in readers.get(value, ())]
    return len(found) == 1 and all(classify(n).kind is NodeKind.MAP for n in (node, *found))


def _structure(groups: Sequence[Group], graph: Graph, ends: Collection[Node]) -> Any:
    """What the groups compute, whatever their values are called."""
    numbers: dict[Value | None, int] = {}
    parts: list[Any] = []
    for group in groups:
        for node in group.members:
            for value in node.inputs:
                if value not in numbers:
                    numbers[value] = len(numbers)
                    parts.append(None if value is None else (value.type, value in graph.constants))
            reads = tuple(numbers[value] for value in node.inputs)
            parts.append((node.op.name, exact(node.attrs), reads, node in ends))
            for value in node.outputs:
                numbers.setdefault(value, len(numbers))
        parts.append(tuple(map(numbers.get, group.extra)))
    return tuple(parts)
