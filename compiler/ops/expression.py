"""A node that is an expression: what rewrites make of ops, fused, split or derived anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import index_value, literal
from tcc.ir.op import Array, OpSpec, Sample, Tolerance
from tcc.ir.types import F32, I64, TensorType, tensor
from tcc.ops.formula import choose, fn
from tcc.ops.operands import Arrays, Types, require
from tcc.ops.shapes import ALL


@dataclass(frozen=True, slots=True)
class ExpressionAttrs:
    """The meaning of the node; the parameters are the types of its operands."""

    expr: Expr


def _infer(types: Types, attrs: ExpressionAttrs) -> tuple[TensorType, ...]:
    require(
        tuple(types) == attrs.expr.params,
        f"the operands are {types}, the parameters {attrs.expr.params}",
    )
    return attrs.expr.types


def _expr(_: Types, attrs: ExpressionAttrs) -> Expr:
    return attrs.expr


def _reference(arrays: Arrays, attrs: ExpressionAttrs) -> tuple[Array, ...]:
    return evaluate_expr(attrs.expr, arrays)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((3, 8)).astype(np.float32)
    y = rng.standard_normal((3, 8)).astype(np.float32)
    yield Sample((x,), ExpressionAttrs(_neighbours()), "neighbours")
    yield Sample((x,), ExpressionAttrs(_interleaved(3)), "interleaved")
    yield Sample((x,), ExpressionAttrs(_interleaved(4)), "interleaved_whole")
    yield Sample((x, None, y), ExpressionAttrs(_sum_and_product()), "two_results")


def _neighbours() -> Expr:
    """x[i, j] + x[i, j + 1], where zero follows the last."""
    b = ExprBuilder(tensor(F32, 3, 8))
    i, j = b.iters(3, 8)
    b.stage((i, j), fn("add", b.read(0, i, j), b.read(0, i, j + 1, fill=0.0)))
    return b.done()


def _interleaved(pairs: int) -> Expr:
    """Sums and differences of neighbours in turn; of an odd number of results the last is a sum."""
    count = 2 * pairs - pairs % 2
    b = ExprBuilder(tensor(F32, 3, 8))
    j, i = b.iters(count, 3)
    u = j // 2
    left, right = b.read(0, i, u * 2), b.read(0, i, u * 2 + 1)
    even = fn("eq", index_value(j % 2, I64), literal(0, I64))
    b.stage((j, i), choose(even, fn("add", left, right), fn("sub", left, right)))
    return b.done()


def _sum_and_product() -> Expr:
    """The sums of rows of one operand, and the other one scaled by them."""
    b = ExprBuilder(tensor(F32, 3, 8), None, tensor(F32, 3, 8))
    i, k = b.iters(3, 8)
    total = b.stage((i,), b.read(0, i, k), over=(k,), monoid="sum")
    i, j = b.iters(3, 8)
    scaled = b.stage((i, j), fn("mul", b.read(2, i, j), b.read(total, i)))
    return b.done(total, scaled)


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "expression", ExpressionAttrs, (0, 64), _infer, _reference, _samples, ALL,
        Tolerance.ACCUMULATE,
        "The tensor expression in its attributes; rewrites make it of other ops.",
        _expr,
    ),
)  # fmt: skip
