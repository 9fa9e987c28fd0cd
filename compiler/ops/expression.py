"""A node that is an expression: what rewrites make of ops, fused, split or derived anew."""

from tcc.ir.expr import Expr
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.op import Arrays, OpSpec, OutArrays, OutTypes, Tolerance, Types
from tcc.ops.operands import require
from tcc.ops.shapes import ALL
from tcc.record import record


@record
class ExpressionAttrs:
    """The meaning of the node; the parameters are the types of its operands."""

    expr: Expr


def _infer(types: Types, attrs: ExpressionAttrs) -> OutTypes:
    require(
        tuple(types) == attrs.expr.params,
        f"the operands are {types}, the parameters {attrs.expr.params}",
    )
    return attrs.expr.types


def _reference(arrays: Arrays, attrs: ExpressionAttrs) -> OutArrays:
    return evaluate_expr(attrs.expr, arrays)


OPS = (
    OpSpec(
        "expression", ExpressionAttrs, (0, 64), _infer, _reference, ALL,
        "The tensor expression in its attributes; rewrites make it of other ops.",
        Tolerance.ACCUMULATE,
        lambda _, attrs: attrs.expr,
    ),
)  # fmt: skip
