"""Dropping reduction terms that change nothing preserves results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tcc.ir.expr import Expr, ExprBuilder, extent, reads
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import Scalar, cast, index_value, literal
from tcc.ir.index import Index, as_int, symbol
from tcc.ir.types import BF16, F32, I8, I32, I64, tensor
from tcc.ops.formula import choose, fn
from tcc.passes.fuse.trim_reductions import trim_reductions

Body = Callable[[ExprBuilder, Index, Index], tuple[Scalar, ...]]


def at(index: Index) -> Scalar:
    return index_value(index, I64)


def at8(value: int) -> Scalar:
    return literal(value, I8)


def read(shift: int, step: int, spread: int, fill: float = 0.0) -> Body:
    """Returns a body that reads element `step * o + spread * k + shift` of the second axis."""
    return lambda b, o, k: (b.read(0, 0, o * step + k * spread + shift, fill=fill),)


def of(body: Body, change: Callable[[Scalar], Scalar]) -> Body:
    return lambda b, o, k: tuple(map(change, body(b, o, k)))


def masked(condition: Callable[[Index, Index], Scalar], other: float) -> Body:
    """Returns a body that is element k if the condition holds, else `other`."""
    return lambda b, o, k: (choose(condition(o, k), b.read(0, 0, k, fill=2.0), other),)


def position(b: ExprBuilder, o: Index, k: Index) -> tuple[Scalar, ...]:
    inside = fn("and", at(k - 2) >= 0, at(k - 2) < 7)
    return b.read(0, 0, k - 2, fill=-np.inf), choose(inside, at(k), (1 << 63) - 1)


# Body, monoid, number of results, number of terms, and the terms that remain.
CASES: dict[str, tuple[Body, str, int, int, range]] = {
    "far beyond": (read(0, 1, 1), "sum", 2, 1280, range(7)),
    "both ends": (read(-5, 1, 1), "sum", 2, 40, range(4, 12)),
    "stretched": (read(-6, 2, 3), "sum", 3, 9, range(1, 5)),
    "backwards": (read(6, -1, -1), "sum", 3, 30, range(7)),
    "all outside": (read(100, 1, 1), "sum", 2, 5, range(0)),
    "squares": (of(read(-1, 1, 1), lambda x: x * x), "sum", 1, 20, range(1, 8)),
    "lowest": (read(-1, 1, 1, -np.inf), "max", 1, 20, range(1, 8)),
    "one": (read(-1, 1, 1, 1.0), "prod", 1, 20, range(1, 8)),
    "cast": (of(read(-1, 1, 1), lambda x: cast(cast(x, BF16), F32)), "sum", 1, 9, range(1, 8)),
    "causal": (masked(lambda o, k: at(k) <= at(o), -np.inf), "max", 4, 64, range(4)),
    "band": (
        masked(lambda o, k: fn("and", at(k) >= at(o + 3), at(k - o) < 5), 0.0),
        "sum", 3, 64, range(3, 7),
    ),
    "other integers": (
        masked(lambda o, k: cast(at(k), I32) - 2 < cast(at(o + 3), I32), 0.0),
        "sum", 2, 64, range(6),
    ),
    "not": (masked(lambda o, k: fn("not", at(k) > 5), 0.0), "sum", 1, 64, range(6)),
    "one term": (masked(lambda o, k: fn("eq", at(k), at(o) + 3), 0.0), "sum", 2, 64, range(3, 5)),
    "first largest": (position, "argmax", 1, 20, range(2, 9)),
    # terms other than the identity stay
    "another fill": (read(0, 1, 1, 1.0), "sum", 2, 20, range(20)),
    "wrong side": (masked(lambda o, k: at(k) <= at(o), 1.0), "sum", 4, 20, range(20)),
    "exponential": (of(read(0, 1, 1), lambda x: fn("exp", x)), "sum", 2, 20, range(20)),
    "wraps": (masked(lambda o, k: cast(at(k), I8) < at8(3), 0.0), "sum", 1, 300, range(300)),
    "infinite": (of(read(0, 1, 1), lambda x: x * fn("div", 1.0, x)), "sum", 2, 20, range(20)),
}  # fmt: skip


def made(body: Body, monoid: str, results: int, terms: int) -> Expr:
    b = ExprBuilder(tensor(F32, 1, 7))
    (o,) = b.iters(results)
    (k,) = b.iters(terms)
    return b.finish((o,), *body(b, o, k), over=(k,), monoid=monoid)


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_all_terms(name: str) -> None:
    body, monoid, results, terms, indices_left = CASES[name]
    expr = made(body, monoid, results, terms)
    trimmed = trim_reductions(expr)
    (var,) = trimmed.stages[0].reduce
    assert as_int(extent(var)) == len(indices_left)
    x = np.random.default_rng(0).standard_normal((1, 7), np.float32)
    for reference, result in zip(
        evaluate_expr(expr, [x]), evaluate_expr(trimmed, [x]), strict=True
    ):
        np.testing.assert_allclose(result, reference, rtol=1e-6, atol=1e-6 * np.abs(x).sum())
    if len(indices_left) == terms:
        assert trimmed is expr


def test_reads_that_stay_inside_lose_their_fill() -> None:
    trimmed = trim_reductions(made(*CASES["squares"][:4]))
    assert [node.fill for node in reads(trimmed.stages[0])] == [None]


def test_symbolic_sizes_of_the_source_and_of_the_results_are_no_proof() -> None:
    n = symbol("n", 1)
    b = ExprBuilder(tensor(F32, n))
    (o,) = b.iters(n)
    (k,) = b.iters(30)
    b.stage((o,), b.read(0, o + k, fill=0.0), over=(k,), monoid="sum")
    expr = b.done()
    assert trim_reductions(expr) is expr
