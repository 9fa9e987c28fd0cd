"""Drops nodes and constants that nothing reads.

    %a = exp(%x) ; %b = relu(%x) ; return %b        %b = relu(%x) ; return %b

Requires nothing.  Establishes that each node has a result that is read, or has to stay.  Nodes
without results and opaque nodes (control flow, ops that bind sizes) have to stay.
"""

from dataclasses import replace

from tcc.ir.graph import ConstantStore, Graph, Handle, walk_graphs
from tcc.ir.graph.rewrite import with_bodies, without_dead


def drop_dead_nodes(graph: Graph) -> Graph:
    """Returns `graph` without dead nodes, in bodies too; `graph` itself if it has none."""
    pruned = without_dead(graph)
    return graph if _size(pruned) == _size(graph) else pruned


def _size(graph: Graph) -> tuple[int, int]:
    graphs = list(walk_graphs(graph))
    return sum(len(g.nodes) for g in graphs), sum(len(g.constants) for g in graphs)


def drop_unread_arrays(graph: Graph) -> Graph:
    """Returns `graph` with a new constant store that holds only the arrays of its constants.

    Arrays that folding replaced are freed with the old store.  Weights take most of a compile's
    memory.
    """
    live: dict[Handle, None] = {}
    for part in walk_graphs(graph):
        live.update(dict.fromkeys(part.constants.values()))
    if len(live) == sum(1 for _ in graph.store.handles()):
        return graph
    store = ConstantStore()
    for handle in live:
        store.adopt(handle, graph.store)
    return _on_store(graph, store)


def _on_store(graph: Graph, store: ConstantStore) -> Graph:
    nodes = tuple(with_bodies(n, lambda g: _on_store(g, store)) for n in graph.nodes)
    return replace(graph, nodes=nodes, store=store)
