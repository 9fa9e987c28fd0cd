"""Adds nodes to a graph by the name of their op.

emit(b, "reshape", %x, shape=(2, 3))      adds      %y = reshape(%x) {shape=(2, 3)}
"""

from typing import Any

from tcc.ir.expr import Expr
from tcc.ir.graph import GraphBuilder, Value, Values
from tcc.ops import OPS


def emit(b: GraphBuilder, op: str, *inputs: Value | None, **attrs: Any) -> Value:
    """Adds a node of op `op` with one result, and returns the result.

    `attrs` are the fields of the op's attributes.
    """
    row = OPS[op]
    (result,) = b.add(row, inputs, row.attrs(**attrs))
    return result


def express(b: GraphBuilder, expr: Expr, *inputs: Value | None) -> Values:
    """Adds a node that computes `expr` from the operands `inputs`, and returns its results."""
    row = OPS["expression"]
    return b.add(row, inputs, row.attrs(expr))
