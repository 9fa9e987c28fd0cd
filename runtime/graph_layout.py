"""Places the boxes of a picture in layers, so that arrows go down and cross little.

Source of the method: K. Sugiyama, S. Tagawa and M. Toda, Methods for Visual Understanding of
Hierarchical System Structures (IEEE Transactions on Systems, Man, and Cybernetics 11, 1981), with
layers of bounded width after Coffman and Graham.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import networkx

MOST_COLUMNS = 8
# An arrow across more layers than this has no line: a note at its end names its begin.
LONGEST = 12
_SWEEPS = 8
_LEAST_WEIGHT = 0.1  # of a node without a neighbour in the layer before
_BEND_SPACE = 18.0  # between an arrow that passes through a layer and its neighbours

Node = Hashable
_Neighbours = dict[Node, list[tuple[Node, float]]]


@dataclass(frozen=True, slots=True)
class BoxLayout:
    """Places of boxes: `layer` counts from 0 at the top, `x` is the centre in pixels.

    `bends` has the points (layer, x) through which each arrow passes, without its ends. An arrow
    that is too long for a line is in `long`.
    """

    layer: dict[Node, int]
    x: dict[Node, float]
    bends: dict[tuple[Node, Node], list[tuple[int, float]]]
    long: frozenset[tuple[Node, Node]]

    @property
    def layers(self) -> int:
        """Returns the number of layers."""
        return max(self.layer.values(), default=-1) + 1


@dataclass(frozen=True, slots=True)
class _Bend:
    """The place where the arrow `edge` passes through a layer."""

    edge: tuple[Node, Node]
    layer: int


def layout(graph: networkx.DiGraph, width: float) -> BoxLayout:
    """Places the nodes of a graph without cycles, whose order no edge contradicts.

    An edge with more `weight` is straighter. `width` is the room in pixels that a box takes beside
    its neighbours.
    """
    layer = _layers(graph)
    long = frozenset(
        (source, target)
        for source, target in graph.edges
        if layer[target] - layer[source] > LONGEST
    )
    rows: list[list[Node]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for node, row in layer.items():
        rows[row].append(node)
    chains: list[list[Node]] = []
    for source, target in graph.edges:
        if (source, target) not in long:
            between = range(layer[source] + 1, layer[target])
            chain = [_Bend((source, target), row) for row in between]
            for bend in chain:
                rows[bend.layer].append(bend)
            chains.append([source, *chain, target])
    above, below = _neighbours(graph, chains)
    _order(rows, above, below)
    x = _coordinates(rows, above, below, width)
    bends = {
        (chain[0], chain[-1]): [(bend.layer, x[bend]) for bend in chain if isinstance(bend, _Bend)]
        for chain in chains
    }
    return BoxLayout(layer, {node: x[node] for node in graph}, bends, long)


def _layers(graph: networkx.DiGraph) -> dict[Node, int]:
    """Returns the layer of each node: below all that it reads, at most MOST_COLUMNS to a layer.

    A node that reads nothing stands just above its first reader.
    """
    layer: dict[Node, int] = {}
    counts: dict[int, int] = {}
    for node in graph:
        if not graph.in_degree(node):
            continue
        sources = [layer[source] for source in graph.predecessors(node) if source in layer]
        # the first layer is left to what has no layer yet
        row = max(sources, default=0) + 1
        while counts.get(row, 0) >= MOST_COLUMNS:
            row += 1
        layer[node], counts[row] = row, counts.get(row, 0) + 1
    for node in graph:
        if not graph.in_degree(node):
            layer[node] = min((layer[target] for target in graph.successors(node)), default=1) - 1
    lowest = min(layer.values(), default=0)
    return {node: layer[node] - lowest for node in graph}


def _neighbours(
    graph: networkx.DiGraph, chains: Sequence[Sequence[Node]]
) -> tuple[_Neighbours, _Neighbours]:
    """Returns (node, weight) for each neighbour in the layer above, and in the layer below."""
    above: _Neighbours = {}
    below: _Neighbours = {}
    for chain in chains:
        weight = graph.edges[chain[0], chain[-1]]["weight"]
        for source, target in pairwise(chain):
            above.setdefault(target, []).append((source, weight))
            below.setdefault(source, []).append((target, weight))
    return above, below


def _mean(places: dict[Node, float], neighbours: Sequence[tuple[Node, float]]) -> float:
    weights = sum(weight for _, weight in neighbours)
    return sum(places[node] * weight for node, weight in neighbours) / weights


def _order(rows: list[list[Node]], above: _Neighbours, below: _Neighbours) -> None:
    """Sorts each layer by the mean place of the neighbours, in sweeps down and up."""
    place = {node: float(n) for row in rows for n, node in enumerate(row)}
    for sweep in range(_SWEEPS):
        neighbours = (above, below)[sweep % 2]
        for row in rows if sweep % 2 == 0 else reversed(rows):
            means = {
                node: _mean(place, neighbours[node]) if node in neighbours else place[node]
                for node in row
            }
            row.sort(key=lambda node: means[node])
            middle = (len(row) - 1) / 2
            for n, node in enumerate(row):
                place[node] = n - middle


def _coordinates(
    rows: Sequence[Sequence[Node]],
    above: _Neighbours,
    below: _Neighbours,
    width: float,
) -> dict[Node, float]:
    """Returns the centre of each node: near its neighbours, and apart from those in its layer."""
    x = dict.fromkeys((node for row in rows for node in row), 0.0)
    for sweep in range(2 * _SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for row in rows if down else reversed(rows):
            desired = [
                _mean(x, neighbours[node]) if node in neighbours else x[node] for node in row
            ]
            weights = [
                max((weight for _, weight in neighbours.get(node, ())), default=_LEAST_WEIGHT)
                for node in row
            ]
            rooms = [_BEND_SPACE if isinstance(node, _Bend) else width for node in row]
            gaps = [(a + b) / 2 for a, b in pairwise(rooms)]
            for node, place in zip(row, _apart(desired, weights, gaps), strict=True):
                x[node] = place
    return x


def _apart(
    desired: Sequence[float], weights: Sequence[float], gaps: Sequence[float]
) -> list[float]:
    """Returns the places nearest to the desired ones by weighted squares, at least `gaps` apart.

    The method is isotonic regression: neighbours that are too near form a block, and a block
    stands at the mean of its members.
    """
    offsets = [0.0, *accumulate(gaps)]
    blocks: list[tuple[float, float, int]] = []  # (mean, weight, number of members)
    for place, weight, offset in zip(desired, weights, offsets, strict=True):
        mean, count = place - offset, 1
        while blocks and blocks[-1][0] > mean:
            other_mean, other_weight, other_count = blocks.pop()
            both_weights = weight + other_weight
            mean = (mean * weight + other_mean * other_weight) / both_weights
            weight, count = both_weights, count + other_count
        blocks.append((mean, weight, count))
    means = (mean for mean, _, count in blocks for _ in range(count))
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
