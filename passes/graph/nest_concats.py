"""Builds concatenations on those that join part of the same values.

    %d = concat(%a, %b)                       %d = concat(%a, %b)
    %e = concat(%a, %b, %c)                   %e = concat(%d, %c)

So every value is joined once, and has one place in memory where kernels store into joined values.
Requires nothing.  Establishes that no concatenation holds all operands of an earlier one on the
same axis side by side.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from tcc.ir.graph import Graph, Node, Value
from tcc.ir.graph.rewrite import with_bodies
from tcc.record import entity

_Operands: TypeAlias = tuple[Value | None, ...]


@entity
class _Known:
    axis: int
    operands: _Operands
    result: Value


def nest_concats(graph: Graph) -> Graph:
    """`graph` with concatenations nested; itself where none are."""
    nodes: list[Node] = []
    known: list[_Known] = []
    for old in graph.nodes:
        node = with_bodies(old, nest_concats)
        if node.op.name == "concat":
            forms = _nested(node.attrs.axis, node.inputs, known)
            known += (_Known(node.attrs.axis, form, node.outputs[0]) for form in forms)
            node = node if len(forms) == 1 else replace(node, inputs=forms[-1])
        nodes.append(node)
    same = all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if same else replace(graph, nodes=tuple(nodes))


def _nested(axis: int, operands: _Operands, known: Sequence[_Known]) -> list[_Operands]:
    """`operands`, and what becomes of them as runs that are joined already become one value."""
    forms = [operands]
    while (found := _longest_run(axis, forms[-1], known)) is not None:
        at, other = found
        old = forms[-1]
        forms.append((*old[:at], other.result, *old[at + len(other.operands) :]))
    return forms


def _longest_run(
    axis: int, operands: _Operands, known: Sequence[_Known]
) -> tuple[int, _Known] | None:
    """Where the operands of an earlier concatenation stand side by side, and which that is."""
    best: tuple[int, _Known] | None = None
    for other in known:
        length = len(other.operands)
        if other.axis != axis or not 2 <= length < len(operands):
            continue
        if best is not None and length <= len(best[1].operands):
            continue
        starts = range(len(operands) - length + 1)
        at = next((n for n in starts if operands[n : n + length] == other.operands), None)
        best = best if at is None else (at, other)
    return best
