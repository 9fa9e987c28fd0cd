"""Merges nodes that compute the same value.

    %a = exp(%x) ; %b = exp(%x) ; %c = add(%a, %b)        %a = exp(%x) ; %c = add(%a, %a)

Two nodes are equal if their ops, attributes and inputs are; constants are equal if their contents
are.  Opaque nodes are not merged, and each body is processed by itself.  Requires nothing.
Establishes that no two nodes of a graph that could be merged are left, except where both compute
outputs of the model, which have their own names.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace

from tcc.ir.graph import Graph, Node, Value, bodies
from tcc.ir.graph.rewrite import substituted, with_bodies
from tcc.ir.op import Trait, exact


def merge_equal_nodes(graph: Graph) -> Graph:
    """Returns `graph` with one node for all equal nodes; itself if there are none."""
    return _merge(graph, set(graph.outputs), {})


def _merge(graph: Graph, named: set[Value], outer: Mapping[Value, Value]) -> Graph:
    """Merges nodes of a graph or body; `named` are the values that must stay, and `outer` the
    replacements of values around a body."""
    first: dict[Hashable, Node] = {}
    new: dict[Value, Value] = dict(outer)
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        if bodies(node):
            inner = with_bodies(node, lambda g: _merge(g, set(), new))
            changed, node = changed or inner is not node, inner
        elif node.outputs and Trait.OPAQUE not in node.op.traits:
            equal_node = first.setdefault(_key(graph, node, new), node)
            if equal_node is not node and named.isdisjoint(node.outputs):
                new.update(zip(node.outputs, equal_node.outputs, strict=True))
                continue
        nodes.append(node)
    if len(new) == len(outer) and not changed:
        return graph
    return substituted(replace(graph, nodes=tuple(nodes)), new)


def _key(graph: Graph, node: Node, new: dict[Value, Value]) -> Hashable:
    operands: list[Hashable] = []
    for value in node.inputs:
        handle = None if value is None else graph.constants.get(value)
        operands.append(new.get(value, value) if handle is None and value else handle)
    return node.op.name, exact(node.attrs), tuple(operands)
