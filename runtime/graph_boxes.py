"""The boxes and arrows of a graph's picture: a box for each step, or for each group of steps.

A graph of more than `MOST_BOXES` steps is drawn in groups, so that a browser can show it. A group
is a stretch of the program's steps in one scope of the model, such as a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import networkx
from tcc.runtime.graph_measures import critical_path, step_seconds
from tcc.runtime.graph_text import facts, split_location, step_label
from tcc.runtime.units import duration

MOST_BOXES = 300
_MOST_PORTS = 12  # more inputs, or more outputs, share a box
_LISTED = 10  # the longest steps of a group, in the text of its box


@dataclass(frozen=True, slots=True)
class StepBox:
    """A box of the picture.

    `kind` is "step", "group" or "port". `name` and `scope` are its two lines of text, and `details`
    the lines that a browser shows when the mouse rests on it. `seconds` is the time of its steps.
    `limit` names what limits most of this time. `optional` is True if all steps are. `steps` has
    the numbers of the steps.
    """

    kind: str
    name: str
    scope: str
    details: tuple[str, ...]
    seconds: float = 0.0
    limit: str = ""
    critical: bool = False
    peak: bool = False
    optional: bool = False
    steps: str = ""


@dataclass(frozen=True, slots=True)
class Arrow:
    """The buffers that one box gives to another: together `bytes` bytes, with their `names`.

    `control` is True if only the decision to run, or the order of writes, depends on it.
    """

    bytes: int
    names: tuple[str, ...]
    control: bool
    critical: bool


def boxes(graph: networkx.DiGraph) -> networkx.DiGraph:
    """Returns a graph whose nodes have an attribute `box`, and whose edges have `arrow`, `weight`.

    Arrows of more weight are drawn straighter. The graph has no cycle, and no edge goes backwards
    in the order of its nodes.
    """
    steps = [node for node, data in graph.nodes(data=True) if data["kind"] != "buffer"]
    path = critical_path(graph).nodes
    groups = _groups(graph, steps)
    owners = {node: number for number, members in enumerate(groups) for node in members}
    result = networkx.DiGraph()
    inputs, outputs = _ports(graph, "input"), _ports(graph, "output")
    for name, nodes in inputs.items():
        result.add_node(name, box=_port_box(graph, name, nodes))
    for number, members in enumerate(groups):
        result.add_node(number, box=_box(graph, members, frozenset(path)))
    for name, nodes in outputs.items():
        result.add_node(name, box=_port_box(graph, name, nodes))
    homes = owners | {node: name for name, nodes in inputs.items() for node in nodes}
    arrows: dict[tuple[Any, Any], list[tuple[str, Mapping[str, Any]]]] = {}
    for source, target, data in _transfers(graph, homes, outputs):
        if source != target:
            arrows.setdefault((source, target), []).append(data)
    on_path = {(owners[a], owners[b]) for a, b in pairwise(path)}
    for (source, target), rows in arrows.items():
        arrow = _arrow(rows, critical=(source, target) in on_path)
        weight = 8.0 if arrow.critical else 0.25 if arrow.control else 1.0
        result.add_edge(source, target, arrow=arrow, weight=weight)
    return result


# ---- groups --------------------------------------------------------------------------------------


def _groups(graph: networkx.DiGraph, steps: Sequence[str]) -> list[list[str]]:
    """Divides the steps into at most `MOST_BOXES` stretches, by the deepest possible scopes."""
    if len(steps) <= MOST_BOXES:
        return [[node] for node in steps]
    scopes = _scopes(graph, steps)
    for depth in range(max(map(len, scopes)), 0, -1):
        stretches = _stretches(steps, scopes, depth)
        if len(stretches) <= MOST_BOXES:
            return stretches
    count = -(-len(steps) // MOST_BOXES)
    return [[*steps[first : first + count]] for first in range(0, len(steps), count)]


def _scopes(graph: networkx.DiGraph, steps: Iterable[str]) -> list[tuple[str, ...]]:
    """Returns the scopes of each step; a step without a location is in those of the one before."""
    scopes: list[tuple[str, ...]] = []
    for node in steps:
        location = graph.nodes[node].get("location", "")
        if location:
            scopes.append(split_location(location)[0])
        else:
            scopes.append(scopes[-1] if scopes else ())
    return scopes


def _stretches(
    steps: Sequence[str],
    scopes: Sequence[tuple[str, ...]],
    depth: int,
) -> list[list[str]]:
    """Returns the longest stretches of steps that share their first `depth` scopes."""
    pairs = zip(steps, scopes, strict=True)
    return [
        [node for node, _ in members] for _, members in groupby(pairs, lambda pair: pair[1][:depth])
    ]


def _box(graph: networkx.DiGraph, members: Sequence[str], path: frozenset[str]) -> StepBox:
    rows = [graph.nodes[node] for node in members]
    peak = any(data.get("step") == graph.graph.get("peak_step", -1) for data in rows)
    critical = not path.isdisjoint(members)
    seconds = [step_seconds(graph, node) for node in members]
    optional = all(data.get("optional", False) for data in rows)
    if len(members) == 1:
        (data,) = rows
        scopes, name = split_location(step_label(data))
        details = tuple(f"{name}: {text}" for name, text in facts(data))
        return StepBox(
            "step", name, "/".join(scopes), details, seconds[0], data.get("limit", ""),
            critical, peak, optional, str(data.get("step", "")),
        )  # fmt: skip
    limits: dict[str, float] = {}
    for data, time in zip(rows, seconds, strict=True):
        limits[data.get("limit", "")] = limits.get(data.get("limit", ""), 0.0) + time
    order = sorted(range(len(rows)), key=lambda n: -seconds[n])
    details = tuple(f"{duration(seconds[n])}: {step_label(rows[n])}" for n in order[:_LISTED])
    more = (f"and {len(order) - _LISTED} more steps",) if len(order) > _LISTED else ()
    scope = _common([scope for scope in _scopes(graph, members) if scope])
    name = scope[-1] if scope else step_label(rows[order[0]])
    first, last = (graph.nodes[node].get("step", "copy") for node in (members[0], members[-1]))
    limit = max(limits, key=lambda limit: limits[limit])
    return StepBox(
        "group", f"{name}: {len(members)} steps", "/".join(scope[:-1]), (*details, *more),
        sum(seconds), limit,
        critical, peak, optional, f"{first} to {last}",
    )  # fmt: skip


def _common(scopes: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the scopes that all steps share."""
    if not scopes:
        return ()
    low, high = min(scopes), max(scopes)
    length = next(
        (n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b),
        min(len(low), len(high)),
    )
    return low[:length]


# ---- ports and arrows ----------------------------------------------------------------------------


def _ports(graph: networkx.DiGraph, place: str) -> dict[str, list[str]]:
    """Returns the values of inputs or outputs by box; many inputs, or many outputs, share a box."""
    nodes = [n for n, data in graph.nodes(data=True) if data.get("place") == place]
    if place == "input":
        nodes = [node for node in nodes if not graph.in_degree(node)]
    labels = {graph.nodes[node]["label"] for node in nodes}
    if len(labels) > _MOST_PORTS:
        return {f"{place}: {len(labels)} {place}s": nodes}
    ports: dict[str, list[str]] = {}
    for node in nodes:
        ports.setdefault(f"{place}: {graph.nodes[node]['label']}", []).append(node)
    return ports


def _port_box(graph: networkx.DiGraph, name: str, nodes: Sequence[str]) -> StepBox:
    place, _, label = name.partition(": ")
    details = tuple(
        f"{name}: {text}" for node in nodes[:_LISTED] for name, text in facts(graph.nodes[node])
    )
    return StepBox("port", label, place, details)


def _transfers(
    graph: networkx.DiGraph, homes: Mapping[str, Any], outputs: Mapping[str, Sequence[str]]
) -> Iterable[tuple[Any, Any, tuple[str, Mapping[str, Any]]]]:
    """Yields (source box, target box, (name of the value, data of the edge)).

    `homes` maps steps and inputs to boxes. Values of outputs lead to the boxes of `outputs`.
    """
    results = {node: name for name, nodes in outputs.items() for node in nodes}
    for node in graph:
        data = graph.nodes[node]
        if data["kind"] != "buffer":
            for target in graph.successors(node):
                if graph.nodes[target]["kind"] != "buffer":
                    yield homes[node], homes[target], ("", graph.edges[node, target])
            continue
        sources = [homes[node]] if node in homes else [homes[s] for s in graph.predecessors(node)]
        label = data["label"] or node
        for source in sources:
            for target in graph.successors(node):
                yield source, homes[target], (label, graph.edges[node, target])
            if node in results:
                yield source, results[node], (label, {"bytes": data.get("bytes", 0)})


def _arrow(rows: Sequence[tuple[str, Mapping[str, Any]]], *, critical: bool) -> Arrow:
    kinds = {data.get("kind", "write") for _, data in rows}
    return Arrow(
        sum(data.get("bytes", 0) for _, data in rows),
        tuple(dict.fromkeys(name for name, _ in rows if name)),
        kinds <= {"control", "update"},
        critical,
    )
