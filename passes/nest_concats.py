"""Builds concatenations on those that join part of the same values.

    %d = concat(%a, %b)                       %d = concat(%a, %b)
    %e = concat(%a, %b, %c)                   %e = concat(%d, %c)

So every value is joined once, and has one place in memory where kernels store into joined values.
Requires nothing.  Establishes that no concatenation holds all operands of an earlier one on the
same axis side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tcc.ir.graph import Graph, Node, Value, bodies
from tcc.ir.rewrite import map_bodies

_Operands: TypeAlias = tuple[Value | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    axis: int
    operands: _Operands
    result: Value


def nest_concats(graph: Graph) -> Graph:
    """`graph` with concatenations nested; itself where none are."""
    nodes: list[Node] = []
    known: list[_Known] = []
    for old in graph.nodes:
        node = _with_bodies(old)
        if node.op.name == "concat":
            nested = _nested(node.attrs.axis, node.inputs, known)
            known.append(_Known(node.attrs.axis, node.inputs, node.outputs[0]))
            node = node if nested is node.inputs else replace(node, inputs=nested)
        nodes.append(node)
    same = all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if same else replace(graph, nodes=tuple(nodes))


def _with_bodies(node: Node) -> Node:
    inner = replace(node, attrs=map_bodies(node.attrs, nest_concats)) if bodies(node) else node
    same = all(a is b for a, b in zip(bodies(inner), bodies(node), strict=True))
    return node if same else inner


def _nested(axis: int, operands: _Operands, known: Sequence[_Known]) -> _Operands:
    """`operands` with the longest run that is joined already as one value."""
    best: tuple[int, int, _Known] | None = None
    for other in known:
        length = len(other.operands)
        if other.axis != axis or length < 2 or length >= len(operands):
            continue
        for at in range(len(operands) - length + 1):
            if operands[at : at + length] == other.operands and (best is None or length > best[0]):
                best = (length, at, other)
    if best is None:
        return operands
    length, at, other = best
    return (*operands[:at], other.result, *operands[at + length :])
