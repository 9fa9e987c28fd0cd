"""Nodes that hold expressions; rewrites that fuse, split or derive ops create them."""

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import Expr, ExprBuilder, with_sources
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import Source, StageRef, read
from tcc.ir.op import Arrays, OpSpec, OutArrays, OutTypes, Tolerance, Types
from tcc.ir.types import BOOL, tensor
from tcc.ops.formula import choose
from tcc.ops.operands import require
from tcc.ops.shapes import ALL


@frozen
class ExpressionAttrs:
    """`expr` is the node's expression; its parameters have the types of the operands."""

    expr: Expr


def _infer(types: Types, attrs: ExpressionAttrs) -> OutTypes:
    require(
        tuple(types) == attrs.expr.params,
        f"the operands are {types}, the parameters {attrs.expr.params}",
    )
    return attrs.expr.types


def _reference(arrays: Arrays, attrs: ExpressionAttrs) -> OutArrays:
    return evaluate_expr(attrs.expr, arrays)


def _infer_guarded(types: Types, attrs: ExpressionAttrs) -> OutTypes:
    value, fails, *operands = types
    require(fails == tensor(BOOL), f"the flag is {fails}, not one bool")
    _infer(operands, attrs)
    require(attrs.expr.types == (value,), f"{value} has to be one of {attrs.expr.types}")
    return attrs.expr.types


def _guarded(arrays: Arrays, attrs: ExpressionAttrs) -> OutArrays:
    value, fails, *operands = arrays
    assert value is not None
    return evaluate_expr(attrs.expr, operands) if np.any(fails) else (value,)


def _guarded_expr(types: Types, attrs: ExpressionAttrs) -> Expr:
    """Returns the expression of the attributes with one more stage.

    The last stage selects operand 0 where operand 1 is false, else the result of the expression.
    """

    def later(source: Source) -> Source:
        return source + 2 if isinstance(source, int) else source

    stages = tuple(with_sources(stage, later) for stage in attrs.expr.stages)
    b, (direct,) = ExprBuilder(*types), attrs.expr.outputs
    at = b.point(attrs.expr.types[0])
    other = read(direct, at, attrs.expr.types[0].dtype)
    (last,) = b.finish(at, choose(b.read(1), other, b.read(0, *at))).stages
    return Expr(tuple(types), (*stages, last), (StageRef(len(stages)),))


OPS = (
    OpSpec(
        "expression", ExpressionAttrs, (0, 64), _infer, _reference, ALL,
        "The tensor expression in its attributes; rewrites put it in place of other ops.",
        Tolerance.ACCUMULATE,
        lambda _, attrs: attrs.expr,
    ),
    OpSpec(
        "guarded", ExpressionAttrs, (2, 64), _infer_guarded, _guarded, ALL,
        "The first operand; where the second, one bool, is true, the expression in the attributes "
        "of the other operands: direct sums in place of what a fast algorithm computed.",
        Tolerance.ACCUMULATE,
        _guarded_expr,
    ),
)  # fmt: skip
