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
from typing import TypeAlias

from tcc.frozen import entity
from tcc.ir.graph import Graph, Node, Value
from tcc.ir.graph.rewrite import with_bodies

_Operands: TypeAlias = tuple[Value | None, ...]


@entity
class _Concat:
    axis: int
    operands: _Operands
    result: Value


def nest_concats(graph: Graph) -> Graph:
    """Returns `graph` with concatenations nested; `graph` itself if nothing changes."""
    nodes: list[Node] = []
    concats: list[_Concat] = []
    for old in graph.nodes:
        node = with_bodies(old, nest_concats)
        if node.op.name == "concat":
            forms = _nested(node.attrs.axis, node.inputs, concats)
            concats += (_Concat(node.attrs.axis, form, node.result) for form in forms)
            node = node if len(forms) == 1 else replace(node, inputs=forms[-1])
        nodes.append(node)
    return graph if tuple(nodes) == graph.nodes else replace(graph, nodes=tuple(nodes))


def _nested(axis: int, operands: _Operands, concats: Sequence[_Concat]) -> list[_Operands]:
    """Returns forms of `operands`, each shorter than the form before it.

    In each step, a sequence of operands is replaced by the result of their earlier concatenation.
    """
    forms = [operands]
    while (match := _longest_sequence(axis, forms[-1], concats)) is not None:
        at, other = match
        old = forms[-1]
        forms.append((*old[:at], other.result, *old[at + len(other.operands) :]))
    return forms


def _longest_sequence(
    axis: int, operands: _Operands, concats: Sequence[_Concat]
) -> tuple[int, _Concat] | None:
    """Returns the longest sequence of `operands` that an earlier concatenation has joined.

    The result is the position of its first operand and the concatenation; None if there is none.
    """
    sequences = [
        (at, other)
        for other in concats
        if other.axis == axis and 2 <= len(other.operands) < len(operands)
        for at in range(len(operands))
        if operands[at : at + len(other.operands)] == other.operands
    ]
    return max(sequences, key=lambda sequence: len(sequence[1].operands), default=None)
