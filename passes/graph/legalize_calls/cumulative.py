"""Computes running sums and products along an axis.

    y[i] = sum(k <= i) x[k]   ->   sum of x up to i in its block of 64  +  sum of all blocks before

Requires nothing.  Establishes that no cum_sum and no cum_prod is left.
"""

from collections.abc import Sequence

from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar, cast
from tcc.ir.graph import GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs
from tcc.ir.index import Index, Indices
from tcc.ir.types import TensorType
from tcc.ops.algebra.cumulative import CumSumAttrs
from tcc.ops.formula import wide
from tcc.ops.shapes import present, replaced
from tcc.passes.graph.emit import express
from tcc.passes.graph.legalize_calls.prefix_sums import Combination, Totals

_COMBINATIONS = {
    "cum_sum": Combination("sum", "add", 0),
    "cum_prod": Combination("prod", "mul", 1),
}


def express_running(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value]:
    """Returns the running totals of operand 0, computed by an expression."""
    (x,) = present(inputs)
    return express(b, _expr(x.type, node.attrs, _COMBINATIONS[node.op.name]), x)


def _expr(x: TensorType, attrs: CumSumAttrs, combination: Combination) -> Expr:
    b = ExprBuilder(x)
    axis, size = attrs.axis, x.shape[attrs.axis]
    lines = replaced(x.shape, axis)

    def place(number: Index) -> Index:
        """Returns the index along the axis of element `number` in the order of accumulation."""
        return size - 1 - number if attrs.reverse else number

    def term(at: Indices, number: Index) -> Scalar:
        return wide(b.read(0, *at[:axis], place(number), *at[axis:], fill=combination.identity))

    totals = Totals(b, lines, size, term, combination)
    at = b.point(x)
    line = replaced(at, axis)
    running = (totals.before if attrs.exclusive else totals.up_to)(line, place(at[axis]))
    return b.finish(at, cast(running, x.dtype))
