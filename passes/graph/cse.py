"""Merges nodes that compute the same value.

    %a = exp(%x) ; %b = exp(%x) ; %c = add(%a, %b)        %a = exp(%x) ; %c = add(%a, %a)

Two nodes are equal if they have equal ops, attributes and inputs.  Constants are equal if their
contents are.  Opaque nodes are not merged, and nodes of different bodies are not merged.  Two nodes
that both compute outputs of the model are not merged, because each output has its own name.
Requires nothing.  Establishes that no two equal nodes are left that could be merged.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace

from tcc.ir.graph import Graph, Node, Value, bodies
from tcc.ir.graph.rewrite import substituted, with_bodies
from tcc.ir.op import Trait, exact
from tcc.zipped import zip_equal


def merge_equal_nodes(graph: Graph) -> Graph:
    """Returns `graph` with equal nodes merged into one; `graph` itself if all differ."""
    return _merge(graph, set(graph.outputs), {})


def _merge(graph: Graph, named: set[Value], outer: Mapping[Value, Value]) -> Graph:
    """Returns a graph or body with equal nodes merged.

    `named` are values that must not be replaced.  `outer` maps values of enclosing graphs to their
    replacements.
    """
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
                new.update(zip_equal(node.outputs, equal_node.outputs))
                continue
        nodes.append(node)
    if len(new) == len(outer) and not changed:
        return graph
    return substituted(replace(graph, nodes=tuple(nodes)), new)


def _key(graph: Graph, node: Node, new: dict[Value, Value]) -> Hashable:
    operands = (v and (graph.constants.get(v) or new.get(v, v)) for v in node.inputs)
    return node.op.name, exact(node.attrs), tuple(operands)
