"""Samples of the ops of `tcc.ops.expression`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import index_value, literal
from tcc.ir.types import F32, I64, tensor
from tcc.ops.expression import ExpressionAttrs
from tcc.ops.formula import choose, fn

from .sampling import Sample, Samples


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((3, 8)).astype(np.float32)
    y = rng.standard_normal((3, 8)).astype(np.float32)
    yield Sample((x,), ExpressionAttrs(_neighbours()), "neighbours")
    yield Sample((x,), ExpressionAttrs(_interleaved(3)), "interleaved")
    yield Sample((x,), ExpressionAttrs(_interleaved(4)), "interleaved_whole")
    yield Sample((x, None, y), ExpressionAttrs(_sum_and_product()), "two_results")


def _guarded_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x, y, fast = (rng.standard_normal((3, 8)).astype(np.float32) for _ in range(3))
    for flag in (False, True):
        operands = (fast, np.asarray(flag), x)
        yield Sample(operands, ExpressionAttrs(_neighbours()), f"of_one_{flag}")
    scaled = (fast, np.asarray(True), x, None, y)
    yield Sample(scaled, ExpressionAttrs(_scaled()), "of_two")


def _neighbours() -> Expr:
    """Returns x[i, j] + x[i, j + 1], with zero after the last element."""
    b = ExprBuilder(tensor(F32, 3, 8))
    i, j = b.iters(3, 8)
    b.stage((i, j), fn("add", b.read(0, i, j), b.read(0, i, j + 1, fill=0.0)))
    return b.done()


def _interleaved(pairs: int) -> Expr:
    """Returns alternating sums and differences of neighbours; the last of an odd number of results
    is a sum."""
    count = 2 * pairs - pairs % 2
    b = ExprBuilder(tensor(F32, 3, 8))
    j, i = b.iters(count, 3)
    u = j // 2
    lhs, right = b.read(0, i, u * 2), b.read(0, i, u * 2 + 1)
    even = fn("eq", index_value(j % 2, I64), literal(0, I64))
    b.stage((j, i), choose(even, fn("add", lhs, right), fn("sub", lhs, right)))
    return b.done()


def _sum_and_product() -> Expr:
    """Returns the row sums of one operand, and the other operand scaled by them."""
    b = ExprBuilder(tensor(F32, 3, 8), None, tensor(F32, 3, 8))
    i, k = b.iters(3, 8)
    total = b.stage((i,), b.read(0, i, k), over=(k,), monoid="sum")
    i, j = b.iters(3, 8)
    scaled = b.stage((i, j), fn("mul", b.read(2, i, j), b.read(total, i)))
    return b.done(total, scaled)


def _scaled() -> Expr:
    """Returns one operand scaled by the row sums of another."""
    expr = _sum_and_product()
    return Expr(expr.params, expr.stages, expr.outputs[1:])


SAMPLES: Mapping[str, Samples] = {
    "expression": _samples,
    "guarded": _guarded_samples,
}
