"""Stages read each other in every way: pointwise, shifted, transposed, gathered, padded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import StageRef, apply, literal
from tcc.ir.index import Index
from tcc.ir.tile.text import kernel_text
from tcc.ir.types import F32, I64, tensor

from tests.draws import RNG, seeded
from tests.lib.oracle.tile.parse import parse_kernel
from tests.passes.tile.cpu import tiles

ROWS, COLS, DEPTH = 6, 6, 5
with seeded("test_stages: x"):
    X = RNG.standard_normal((ROWS, COLS, DEPTH)).astype(np.float32)
# Some indices lie outside, and read the fill.
PLACES = np.array([0, 5, -1, 2, 6, 99], np.int64)


def sums(b: ExprBuilder, monoid: str = "sum") -> StageRef:
    i, j, k = b.iters(ROWS, COLS, DEPTH)
    return b.stage((i, j), b.read(0, i, j, k), over=(k,), monoid=monoid)


def turned() -> Expr:
    b = ExprBuilder(tensor(F32, *X.shape))
    s = sums(b)
    i, j = b.iters(ROWS, COLS)
    b.stage((i, j), apply("sub", b.read(s, i, j), b.read(s, j, i)))
    return b.done()


def shifted(di: int, dj: int) -> Expr:
    b = ExprBuilder(tensor(F32, *X.shape))
    s = sums(b)
    i, j = b.iters(ROWS, COLS)
    neighbour = b.read(s, i + di, j + dj, fill=7.0)
    b.stage((i, j), apply("sub", b.read(s, i, j), neighbour))
    return b.done()


def gathered() -> Expr:
    b = ExprBuilder(tensor(F32, *X.shape), tensor(I64, ROWS))
    s = sums(b)
    i, j = b.iters(ROWS, COLS)
    at = b.position(b.read(1, i), ROWS)
    gathered_value = b.read(s, at, j, fill=-1.0)
    b.stage((i, j), apply("add", gathered_value, b.read(s, i, j)))
    return b.done()


def weighted() -> Expr:
    """Returns a sum of products in which one factor is a block that was just computed."""
    b = ExprBuilder(tensor(F32, *X.shape))
    top = sums(b, "max")
    i, j, k = b.iters(ROWS, COLS, DEPTH)
    product = apply("mul", b.read(top, i, j), b.read(0, i, j, k))
    b.stage((i, j), product, over=(k,), monoid="sum")
    return b.done()


def flattened() -> Expr:
    """Returns a reader with one loop where the stage has two."""
    b = ExprBuilder(tensor(F32, *X.shape))
    s = sums(b)
    (i,) = b.iters(ROWS * COLS)
    b.stage((i,), apply("exp", b.read(s, i // COLS, i % COLS)))
    return b.done()


def rows_of_rows() -> Expr:
    """Returns a maximum, its sum, and their difference."""
    b = ExprBuilder(tensor(F32, *X.shape))
    top = sums(b, "max")
    i, j = b.iters(ROWS, COLS)
    total = b.stage((i,), b.read(top, i, j), over=(j,), monoid="sum")
    i, j = b.iters(ROWS, COLS)
    b.stage((i, j), apply("sub", b.read(top, i, j), b.read(total, i)))
    return b.done(StageRef(2), total, top)


def less_a_little() -> Expr:
    """Returns row sums minus a sum without a loop, which is cheap enough for each tile to
    repeat."""
    b = ExprBuilder(tensor(F32, *X.shape))
    one, k = b.iters(1, DEPTH)
    little = b.stage((one,), b.read(0, 0, 0, k), over=(k,), monoid="sum")
    i, j, k = b.iters(ROWS, COLS, DEPTH)
    rows = b.stage((i,), b.read(0, i, j, k), over=(j, k), monoid="sum")
    (i,) = b.iters(ROWS)
    b.stage((i,), apply("sub", b.read(rows, i), b.read(little, 0)))
    return b.done()


EXPRS = {
    "turned": turned(),
    "shifted": shifted(1, 0),
    "shifted back": shifted(-1, 2),
    "gathered": gathered(),
    "weighted": weighted(),
    "flattened": flattened(),
    "rows of rows": rows_of_rows(),
    "less a little": less_a_little(),
}


@pytest.mark.parametrize("seed", [None, *range(8)])
@pytest.mark.parametrize("name", list(EXPRS))
def test_any_schedule_gives_the_meaning(name: str, seed: int | None) -> None:
    expr = EXPRS[name]
    operands = [X, PLACES][: len(expr.params)]
    chooser = tiles.chosen if seed is None else tiles.drawn(np.random.default_rng(seed))
    built = tiles.build(expr, chooser)
    assert built.unproved == ()
    actual = tiles.run_kernel(built.kernel, expr.types, operands, {})
    for a, e in zip(actual, evaluate_expr(expr, operands), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


@st.composite
def expressions(draw: st.DrawFn) -> Expr:
    """Draws chains of reductions and maps over one operand, whose stages read earlier stages."""
    b = ExprBuilder(tensor(F32, ROWS, COLS))
    refs: list[StageRef] = []
    for _ in range(draw(st.integers(1, 3))):
        i, j = b.iters(ROWS, COLS)
        body = b.read(0, i, j)
        for ref in refs:
            at = draw(st.sampled_from([(i, j), (j, i), (i + 1, j), (i, j - 2), (i // 2, j)]))
            neighbour = b.read(ref, *at, fill=draw(st.sampled_from([0.0, -2.5])))
            body = apply(draw(st.sampled_from(["add", "max", "mul"])), body, neighbour)
        if draw(st.booleans()):
            k: Index
            (k,) = b.iters(draw(st.sampled_from([1, 3, 5])))
            window = apply("add", body, b.read(0, i, j + k - 1, fill=0.5))
            monoid = draw(st.sampled_from(["sum", "max"]))
            refs.append(b.stage((i, j), window, over=(k,), monoid=monoid))
        else:
            refs.append(b.stage((i, j), apply("add", body, literal(1.0, F32))))
    return b.done(*refs[-2:])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(expressions(), st.integers(0, 1000))
def test_random_expressions_under_random_schedules(expr: Expr, seed: int) -> None:
    built = tiles.build(expr, tiles.drawn(np.random.default_rng(seed)))
    operands = [X[:, :, 0].copy()]
    actual = tiles.run_kernel(built.kernel, expr.types, operands, {})
    for a, e in zip(actual, evaluate_expr(expr, operands), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4)
    text = kernel_text(built.kernel)
    assert kernel_text(parse_kernel(text)) == text
