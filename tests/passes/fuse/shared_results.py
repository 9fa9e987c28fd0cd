"""Expressions that several tests use in which values lie in the memory of results."""

from __future__ import annotations

from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar, apply
from tcc.ir.index import IndexLike
from tcc.ir.types import F32, tensor


def two_powers(rows: int, columns: IndexLike) -> Expr:
    """Returns a product of two softmaxes: two values could both lie in the single result."""
    b = ExprBuilder(tensor(F32, rows, columns), tensor(F32, rows, columns))
    totals, powers = [], []
    for n in range(2):
        i, j = b.iters(rows, columns)
        powers.append(b.stage((i, j), apply("exp", b.read(n, i, j))))
        i, j = b.iters(rows, columns)
        totals.append(b.stage((i,), b.read(powers[n], i, j), over=(j,), monoid="sum"))
    i, j = b.iters(rows, columns)

    def share(n: int) -> Scalar:
        return apply("div", b.read(powers[n], i, j), b.read(totals[n], i))

    return b.finish((i, j), apply("mul", share(0), share(1)))
