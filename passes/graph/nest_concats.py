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
            concats += (_Concat(node.attrs.axis, form, node.outputs[0]) for form in forms)
            node = node if len(forms) == 1 else replace(node, inputs=forms[-1])
        nodes.append(node)
    is_unchanged = all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if is_unchanged else replace(graph, nodes=tuple(nodes))


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
    best: tuple[int, _Concat] | None = None
    for other in concats:
        length = len(other.operands)
        if other.axis != axis or not 2 <= length < len(operands):
            continue
        if best is not None and length <= len(best[1].operands):
            continue
        starts = range(len(operands) - length + 1)
        at = next((n for n in starts if operands[n : n + length] == other.operands), None)
        best = best if at is None else (at, other)
    return best
