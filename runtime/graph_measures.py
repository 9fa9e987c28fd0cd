"""Measures of an artifact's graph: its critical path, and what takes the memory at its peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import networkx


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The longest chain of steps of which each needs what the one before it writes.

    `nodes` are the nodes of steps, in order. `seconds` is their time: no order of the steps
    makes a run shorter. `all_seconds` is the time of all steps.
    """

    nodes: tuple[str, ...]
    seconds: float
    all_seconds: float


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The step in which most bytes of the arena are live, and the buffers that take them.

    `step` is its number. `bytes` is the number of live bytes. `buffers` has (label, node, bytes)
    for each live buffer, the largest first; the node is that of its first value.
    """

    step: int
    bytes: int
    buffers: tuple[tuple[str, str, int], ...]


def step_seconds(graph: networkx.DiGraph, node: str) -> float:
    """Returns the seconds that a node's step takes in a run: measured, else predicted, else 0.

    An optional step is predicted to take 0: a step of a branch whose other way has none.
    """
    data = graph.nodes[node]
    if data.get("optional") and "measured" not in data:
        return 0.0
    return float(data.get("measured", data.get("predicted", 0.0)))


def critical_path(graph: networkx.DiGraph) -> CriticalPath:
    """Returns the longest chain of dependent steps of a graph that `tcc.graph` returned.

    Steps without a time count as 0 seconds. The first of equal chains in order of the steps
    counts. A loop's iterations count as one step after the other.
    """
    seconds = {node: step_seconds(graph, node) for node in graph}
    ends: dict[str, float] = {}
    before: dict[str, str] = {}
    for node in networkx.lexicographical_topological_sort(graph, key=_order):
        earlier = max(graph.predecessors(node), key=lambda source: ends[source], default=None)
        ends[node] = seconds[node] + (0.0 if earlier is None else ends[earlier])
        if earlier is not None:
            before[node] = earlier
    node = max(ends, key=lambda node: ends[node], default=None)
    longest = 0.0 if node is None else ends[node]
    nodes = []
    while node is not None:
        nodes.append(node)
        node = before.get(node)
    steps = tuple(node for node in reversed(nodes) if graph.nodes[node]["kind"] != "buffer")
    return CriticalPath(steps, longest, sum(seconds.values()))


def _order(node: str) -> tuple[str, int, int]:
    """Returns a key by which nodes are sorted: "b12.2" stands behind "b12" and before "b13"."""
    number, _, version = node[1:].partition(".")
    return node[0], int(number), int(version or 1)


def peak_memory(graph: networkx.DiGraph) -> PeakMemory | None:
    """Returns the step with most live bytes of the arena; None if no buffer lies in the arena, or
    a size is unknown.

    The first of equal steps counts.
    """
    buffers = [
        (node, data)
        for node, data in graph.nodes(data=True)
        if "first" in data and data["version"] == 1 and data["first"] <= data["last"]
    ]
    if not buffers or any("bytes" not in data for _, data in buffers):
        return None
    events: dict[int, list[tuple[str, bool]]] = {}
    for node, data in buffers:
        events.setdefault(data["first"], []).append((node, True))
        events.setdefault(data["last"] + 1, []).append((node, False))
    live: set[str] = set()
    largest, at_peak, peak = -1, frozenset[str](), 0
    for step in sorted(events):
        for node, begins in events[step]:
            (live.add if begins else live.discard)(node)
        size = _union(graph.nodes[node] for node in live)
        if size > largest:
            largest, at_peak, peak = size, frozenset(live), step
    rows = [(graph.nodes[node]["label"], node, graph.nodes[node]["bytes"]) for node in at_peak]
    rows.sort(key=lambda row: (-row[2], _order(row[1])))
    return PeakMemory(peak, largest, tuple(rows))


def _union(buffers: Iterable[Mapping[str, Any]]) -> int:
    """Returns the bytes of live buffers; where one takes another's place they share bytes."""
    ranges: list[tuple[int, int]] = []
    count = end = 0
    for data in buffers:
        if "offset" in data:
            ranges.append((data["offset"], data["offset"] + data["bytes"]))
        else:
            count += data["bytes"]
    for low, high in sorted(ranges):
        count += max(0, high - max(low, end))
        end = max(end, high)
    return count
