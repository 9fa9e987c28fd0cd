"""Classifies nodes by their expressions, into the kinds that fusion tells apart.

reshape: map    gelu: pointwise    softmax: reduction    conv: contraction    top_k: opaque
"""

from enum import Enum

from tcc.frozen import frozen
from tcc.ir.expr import Stage, reads
from tcc.ir.expr.scalar import Read, walk
from tcc.ir.graph import Graph, Node, Value, uses
from tcc.passes.fuse.compose import is_contraction, node_expr
from tcc.schedule.nest import costly, weight


class NodeKind(Enum):
    """The kind of a node, which decides how it may join a kernel."""

    OPAQUE = "opaque"  # has no expression: a call or control flow
    MAP = "map"  # an index map: a result element is an operand's element, or depends on its index
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"


@frozen
class Traits:
    """The kind of a node, and its number of operations for each element, reductions excluded."""

    kind: NodeKind
    weight: int


def seen_by_others(graph: Graph) -> set[Value]:
    """Returns the values that not only kernels access, but also the caller, bodies, calls or
    states.

    The types of these values are fixed, and their storage is row-major.
    """
    visible = {*graph.inputs, *graph.outputs}
    visible.update(v for pair in graph.aliases for v in pair)
    for node in graph.nodes:
        if classify(node).kind is NodeKind.OPAQUE:
            visible.update((*uses(node), *node.outputs))
    return visible


def classify(node: Node) -> Traits:
    """Returns the kind of a node and its work, derived from its expression."""
    expr = node_expr(node)
    if expr is None or not node.outputs:
        return Traits(NodeKind.OPAQUE, 0)
    if any(is_contraction(s) for s in expr.stages):
        return Traits(NodeKind.CONTRACTION, 0)
    if any(s.monoid is not None for s in expr.stages):
        return Traits(NodeKind.REDUCTION, 0)
    if all(_is_map(s) for s in expr.stages):
        return Traits(NodeKind.MAP, 0)
    return Traits(NodeKind.POINTWISE, max(map(weight, expr.stages)))


def _is_map(stage: Stage) -> bool:
    if not reads(stage):
        return not any(map(costly, walk(*stage.body)))
    return all(isinstance(s, Read) and s.fill is None and not s.indirect for s in stage.body)
