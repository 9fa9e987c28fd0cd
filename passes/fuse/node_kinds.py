"""Classifies nodes by their expressions, into the kinds that fusion tells apart.

reshape: map    gelu: pointwise    softmax: reduction    conv: contraction    top_k: opaque
"""

from enum import Enum

from tcc.ir.expr import Stage, reads
from tcc.ir.expr.scalar import Read, walk
from tcc.ir.graph import Graph, Node, Value, uses
from tcc.passes.fuse.compose import is_contraction, node_expr
from tcc.schedule.nest import costly


class NodeKind(Enum):
    """The kind of a node, which decides how it may join a kernel."""

    OPAQUE = "opaque"  # has no expression: a call or control flow
    MAP = "map"  # an index map: a result element is an operand's element, or depends on its index
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"


def seen_by_others(graph: Graph) -> set[Value]:
    """Returns the values that not only kernels access, but also the caller, bodies, calls or
    states.

    The types of these values are fixed, and their storage is row-major.
    """
    visible = {*graph.inputs, *graph.outputs}
    visible.update(v for pair in graph.aliases for v in pair)
    for node in graph.nodes:
        if classify(node) is NodeKind.OPAQUE:
            visible.update((*uses(node), *node.outputs))
    return visible


def classify(node: Node) -> NodeKind:
    """Returns the kind of a node, derived from its expression."""
    expr = node_expr(node)
    if expr is None or not node.outputs:
        return NodeKind.OPAQUE
    if any(map(is_contraction, expr.stages)):
        return NodeKind.CONTRACTION
    if any(s.monoid is not None for s in expr.stages):
        return NodeKind.REDUCTION
    return NodeKind.MAP if all(map(_is_map, expr.stages)) else NodeKind.POINTWISE


def _is_map(stage: Stage) -> bool:
    if not reads(stage):
        return not any(map(costly, walk(*stage.body)))
    return all(isinstance(s, Read) and s.fill is None and not s.indirect for s in stage.body)
