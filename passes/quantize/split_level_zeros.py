"""Moves the zero points of levels out of matmuls, so that the levels can be multiplied as they are.

    matmul_levels(%x, %levels, %s, %z)
      ->  sub(matmul_levels(%x, %levels, %s), matmul_zeros(%x, %s, %z))

Levels are exact in bf16, whereas a level minus a zero point need not be.  The zero points multiply
sums of x, one for each block, so they cost little.  This is for processors that multiply pairs of
bf16.  Requires that matmuls read levels.  Establishes that no levels have zero points.
"""

from tcc.ir.graph import Graph, GraphBuilder, Node
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.types import F32
from tcc.ops.algebra.levels import LevelsAttrs
from tcc.passes.graph.emit import emit


def split_level_zeros(graph: Graph) -> Graph:
    """Returns `graph` with a matmul of its own for the zero points of levels.

    Returns `graph` itself if no levels have zero points.
    """
    return rewritten(graph, _visit)


def _visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    attrs = node.attrs
    if node.op.name != "matmul_levels" or not isinstance(attrs, LevelsAttrs):
        return None
    x, levels, *factors = (v for v in inputs if v is not None)
    if len(factors) < 2 or len(inputs) > 4 or any(b.common(v) is None for v in factors):
        return None
    # In f32, because levels of integer types are multiplied as pairs of bf16.
    floats = [emit(b, "cast", v, to=F32) for v in factors]
    (product,) = b.add(node.op, [x, levels, factors[0]], attrs)
    return [emit(b, "sub", product, emit(b, "matmul_zeros", x, *floats, block=attrs.block))]
