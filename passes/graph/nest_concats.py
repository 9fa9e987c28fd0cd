"""Replaces operands of a concatenation by an earlier concatenation of the same operands.

    %d = concat(%a, %b)                       %d = concat(%a, %b)
    %e = concat(%a, %b, %c)                   %e = concat(%d, %c)

Every value is then concatenated once.  So it has a single place in memory when kernels store their
results directly into concatenated values.  Requires nothing.  Establishes that no concatenation has
all operands of an earlier concatenation along the same axis as neighbouring operands: it has the
earlier result in place of them.
"""

from collections.abc import Sequence
from dataclasses import replace

from tcc.ir.graph import Graph, Node
from tcc.ir.graph.rewrite import with_bodies


def nest_concats(graph: Graph) -> Graph:
    """Returns `graph` with concatenations nested; `graph` itself if nothing changes."""
    nodes: list[Node] = []
    concats: list[Node] = []
    for old in graph.nodes:
        node = with_bodies(old, nest_concats)
        if node.op.name == "concat":
            forms = [node]
            while form := _nested(forms[-1], concats):
                forms.append(form)
            concats += forms
            node = forms[-1]
        nodes.append(node)
    return graph if tuple(nodes) == graph.nodes else replace(graph, nodes=tuple(nodes))


def _nested(node: Node, concats: Sequence[Node]) -> Node | None:
    """Returns a concatenation with an earlier one of `concats` in place of operands.

    The longest sequence of operands that an earlier concatenation along the same axis has joined is
    replaced by its result.  Returns None if there is none.
    """
    sequences = [
        (at, other)
        for other in concats
        if other.attrs.axis == node.attrs.axis and 2 <= len(other.inputs) < len(node.inputs)
        for at in range(len(node.inputs))
        if node.inputs[at : at + len(other.inputs)] == other.inputs
    ]
    if not sequences:
        return None
    at, other = max(sequences, key=lambda sequence: len(sequence[1].inputs))
    behind = node.inputs[at + len(other.inputs) :]
    return replace(node, inputs=(*node.inputs[:at], other.result, *behind))
