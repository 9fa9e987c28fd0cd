"""Ends kernels earlier than the fusion rules do where the parts are predicted to take less.

    k = rms_norm(x) ; y = softmax(q @ k^T) @ v      by rule one kernel, in which every unit
                                                    normalises all keys again: 14.9 ms
      ->  { k = rms_norm(x) } { softmax(q @ k^T) @ v }                           2.9 ms

Of every kernel the parts behind each of its nodes are priced that a reduction or a contraction of
the kernel follows; the cheapest cut is taken if it saves more than prices err by, and its parts are
looked at in turn.  Equal kernels are priced once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from tcc.ir.graph import Graph, Node, Value
from tcc.passes.fuse.partition import Group, partition
from tcc.passes.layout.assign import assign_layouts
from tcc.passes.quantize.precision import FULL, Precision, narrowed
from tcc.passes.tile.plan import KernelPlanner
from tcc.schedule.alternatives import Alternative, preferred

# The part of a kernel's price that a cut must save: prices err.
_MARGIN = 0.1
# Seconds of a kernel below which nothing is tried.
_LEAST = 1e-5

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
    while more := cuts.of(partition(graph, planner, ends)) - ends:
        ends |= more
    return ends


class _Cuts:
    """The cuts of a graph's kernels, each structure priced once."""

    def __init__(self, graph: Graph, planner: KernelPlanner, precision: Precision) -> None:
        self._graph, self._planner, self._precision = graph, planner, precision
        self._users = graph.users()
        self._known: dict[Any, _Cut] = {}

    def of(self, groups: Sequence[Group]) -> frozenset[Node]:
        """The nodes behind which these groups are cut."""
        found = ((group, self._cut(group)) for group in groups if list(_candidates(group)))
        return frozenset(group.members[cut] for group, cut in found if cut is not None)

    def _cut(self, group: Group) -> _Cut:
        key = _structure(group, self._graph)
        if key not in self._known:
            region = self._region(group)
            rule: Alternative[Graph, _Cut]
            rule = Alternative(region, None, self._seconds(region, [group]))
            found = [] if rule.price < _LEAST else [
                Alternative(region, n, self._seconds(region, self._parts(region, group.members[n])))
                for n in _candidates(group)
            ]  # fmt: skip
            self._known[key] = preferred(rule, found, _MARGIN).replacement
        return self._known[key]

    def _parts(self, region: Graph, end: Node) -> Sequence[Group]:
        return partition(region, self._planner, [end])

    def _seconds(self, region: Graph, groups: Sequence[Group]) -> float:
        constants = dict.fromkeys(region.constants)
        placed = assign_layouts(region, groups, self._planner)
        made = {*region.inputs}.difference(self._graph.inputs)
        placed = narrowed(placed, self._precision, dict.fromkeys(constants, region), made)
        return sum(self._planner.seconds(k, placed.layouts, constants) for k in placed.kernels)

    def _region(self, group: Group) -> Graph:
        """The group's nodes as a graph of its own."""
        made = {v for node in group.members for v in node.outputs}
        read = dict.fromkeys(v for n in group.members for v in n.inputs if v is not None)
        constants = {v: self._graph.constants[v] for v in read if v in self._graph.constants}
        inputs = tuple(v for v in read if v not in made and v not in constants)
        results = group.results(self._graph, self._users)
        members = tuple(group.members)
        return Graph("region", inputs, results, members, constants, self._graph.store)


def _candidates(group: Group) -> Iterator[int]:
    """The numbers of the members that an anchor of the group follows."""
    leading: set[Value] = set()
    found = []
    for number in reversed(range(len(group.members))):
        node = group.members[number]
        follows = not leading.isdisjoint(node.outputs)
        if follows:
            found.append(number)
        if follows or node in group.anchors:
            leading.update(v for v in node.inputs if v is not None)
    yield from reversed(found)


def _structure(group: Group, graph: Graph) -> Any:
    """What a group computes, whatever its values are called."""
    numbers: dict[Value | None, int] = {}
    parts: list[Any] = []
    for node in group.members:
        for value in node.inputs:
            if value not in numbers:
                numbers[value] = len(numbers)
                parts.append(None if value is None else (value.type, value in graph.constants))
        reads = tuple(numbers[value] for value in node.inputs)
        parts.append((node.op.name, node.attrs, reads))
        numbers.update((v, len(numbers) + n) for n, v in enumerate(node.outputs))
    return tuple(parts), tuple(map(numbers.get, group.extra))
