"""Chooses ways to compute sites, each a function that adds nodes, by the price of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tcc.frozen import frozen
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.passes.derive.candidate import Candidate
from tcc.passes.derive.derive import with_candidates
from tcc.passes.derive.prices import site_graph
from tcc.passes.derive.sites import DerivationSite
from tcc.passes.graph.legalize_calls import legalize_calls
from tcc.passes.graph.legalize_calls.scatter import Cheapest
from tcc.schedule.alternatives import NO_TIME

# Adds the nodes that compute the result of a site from its operands, and returns the result.
Way: TypeAlias = Callable[[GraphBuilder, Sequence[Value]], Value]


@frozen
class _Emitted(Candidate):
    way: Way

    def emit(self, b: GraphBuilder, operands: Sequence[Value], arrays: object) -> Value:
        return self.way(b, operands)


def with_cheapest(
    graph: Graph, options: Iterable[tuple[DerivationSite, Sequence[Way]]], cheapest: Cheapest
) -> Graph:
    """Returns `graph` with each site as it is or in the cheapest of its ways; `graph` itself if
    nothing changes.

    `cheapest` returns the index of the cheapest of several graphs.  C functions have no price; in
    their place the kernels that a GPU runs are priced.
    """
    replacements: dict[Node, tuple[DerivationSite, Candidate]] = {}
    for site, ways in options:
        candidates = [_Emitted("", NO_TIME, way) for way in ways]
        graphs = [
            legalize_calls(site_graph(site, ((site, candidate),)), cheapest)
            for candidate in candidates
        ]
        if ways and (number := cheapest([site_graph(site), *graphs])):
            replacements[site.sink] = site, candidates[number - 1]
    return with_candidates(graph, replacements)
