"""Stages are computed along the reduction behind them, values wait in the memory of results, and
costly values are computed before loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import apply, literal, walk
from tcc.ir.tile import Compute, Load, MemorySpace, TileLoop, walk_statements
from tcc.ir.types import F32, tensor
from tcc.schedule.nest import costly

from tests.draws import RNG, seeded
from tests.passes.fuse.shared_results import two_powers
from tests.passes.tile.cpu import tiles
from tests.passes.tile.cpu.tiles import Array, Built

ROWS, COLS = 5, 75  # a block of 64, and a remainder
with seeded("test_along: x"):
    X = RNG.standard_normal((ROWS, COLS)).astype(np.float32)


def start() -> ExprBuilder:
    return ExprBuilder(tensor(F32, ROWS, COLS), tensor(F32, ROWS, COLS))


def softmax() -> Expr:
    b = start()
    i, j = b.iters(ROWS, COLS)
    top = b.stage((i,), b.read(0, i, j), over=(j,), monoid="max")
    i, j = b.iters(ROWS, COLS)
    power = b.stage((i, j), apply("exp", apply("sub", b.read(0, i, j), b.read(top, i))))
    i, j = b.iters(ROWS, COLS)
    total = b.stage((i,), b.read(power, i, j), over=(j,), monoid="sum")
    i, j = b.iters(ROWS, COLS)
    quotient = apply("div", literal(1, F32), b.read(total, i))
    return b.finish((i, j), apply("mul", b.read(power, i, j), quotient))


def log_softmax() -> Expr:
    b = start()
    i, j = b.iters(ROWS, COLS)
    total = b.stage((i,), apply("exp", b.read(0, i, j)), over=(j,), monoid="sum")
    i, j = b.iters(ROWS, COLS)
    return b.finish((i, j), apply("sub", b.read(0, i, j), apply("log", b.read(total, i))))


def residual(shift: int = 0) -> Expr:
    """Returns x + y, which is a result, minus its mean; with `shift`, minus the mean of shifted
    elements."""
    b = start()
    i, j = b.iters(ROWS, COLS)
    sums = b.stage((i, j), apply("add", b.read(0, i, j), b.read(1, i, j)))
    i, j = b.iters(ROWS, COLS)
    neighbour = b.read(sums, i, j + shift, fill=0.0) if shift else b.read(sums, i, j)
    total = b.stage((i,), neighbour, over=(j,), monoid="sum")
    i, j = b.iters(ROWS, COLS)
    mean = apply("mul", b.read(total, i), literal(1 / COLS, F32))
    b.stage((i, j), apply("sub", b.read(sums, i, j), mean))
    expr = b.done()
    return replace(expr, outputs=(sums, *expr.outputs))


def distances() -> Expr:
    """Returns roots of sums of squares down the columns; both operands are computed along the
    sum."""
    b = start()
    i, j = b.iters(ROWS, COLS)
    gap = b.stage((i, j), apply("sub", b.read(0, i, j), b.read(1, i, j)))
    i, j = b.iters(ROWS, COLS)
    squared = apply("mul", b.read(gap, i, j), b.read(gap, i, j))
    total = b.stage((j,), squared, over=(i,), monoid="sum")
    (j,) = b.iters(COLS)
    return b.finish((j,), apply("sqrt", b.read(total, j)))


def turned() -> Expr:
    """Returns an expression whose last reader reads another element than it replaces."""
    b = ExprBuilder(tensor(F32, 8, 8, 8))
    n, i, j = b.iters(8, 8, 8)
    power = b.stage((n, i, j), apply("exp", b.read(0, n, i, j)))
    n, i, j = b.iters(8, 8, 8)
    total = b.stage((n,), b.read(power, n, i, j), over=(i, j), monoid="sum")
    n, i, j = b.iters(8, 8, 8)
    return b.finish((n, i, j), apply("div", b.read(power, n, j, i), b.read(total, n)))


def along(built: Built) -> tuple[int, ...]:
    return tuple(n for nest in built.schedule.nests for n in nest.along)


def wanted(name: str, x: Array, y: Array) -> tuple[Array, ...]:
    x, y = x.astype(np.float64), y.astype(np.float64)
    ex, ey, sums = np.exp(x), np.exp(y), x + y
    if name == "softmax":
        return (ex / ex.sum(-1, keepdims=True),)
    if name == "log_softmax":
        return (x - np.log(ex.sum(-1, keepdims=True)),)
    if name == "two_powers":
        return (ex / ex.sum(-1, keepdims=True) * (ey / ey.sum(-1, keepdims=True)),)
    if name == "distances":
        return (np.linalg.norm(x - y, axis=0),)
    neighbour = np.pad(sums, ((0, 0), (0, 1)))[:, 1:] if name == "shifted" else sums
    return sums, sums - neighbour.sum(-1, keepdims=True) / COLS


EXPRS: dict[str, Callable[[], Expr]] = {
    "softmax": softmax,
    "log_softmax": log_softmax,
    "two_powers": lambda: two_powers(ROWS, COLS),
    "residual": residual,
    "shifted": lambda: residual(1),
    "distances": distances,
}


@pytest.mark.parametrize("name", list(EXPRS))
def test_results_under_many_schedules(name: str) -> None:
    expr = EXPRS[name]()
    y = RNG.standard_normal(X.shape).astype(np.float32)
    operands = [X, y][: len([t for t in expr.params if t])]
    for seed in range(12):
        chooser = tiles.drawn(np.random.default_rng(seed)) if seed else tiles.chosen
        outputs = tiles.run(expr, operands, {}, chooser)
        for output, expected in zip(outputs, wanted(name, X, y), strict=True):
            np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("softmax", (1,)), ("two_powers", (0, 2)), ("residual", (0,)), ("shifted", ())],
)
def test_values_that_a_sum_reads_once_are_computed_along_it(
    name: str, numbers: tuple[int, ...]
) -> None:
    assert along(tiles.build(EXPRS[name]())) == numbers


@pytest.mark.parametrize(
    ("name", "buffers"), [("softmax", 0), ("residual", 0), ("two_powers", 1), ("shifted", 0)]
)
def test_values_lie_where_results_go(name: str, buffers: int) -> None:
    """If two values could lie in the memory of one result, one of them does."""
    kernel = tiles.build(EXPRS[name]()).kernel
    assert len(kernel.locals) == buffers
    loads = [n.buffer.scope for n in walk_statements(kernel.body) if isinstance(n, Load)]
    assert MemorySpace.OUTPUT in loads


def test_a_value_read_elsewhere_than_it_is_replaced_stays_in_scratch() -> None:
    expr = turned()
    assert len(tiles.build(expr).kernel.locals) == 1
    x = RNG.standard_normal((8, 8, 8)).astype(np.float32)
    power = np.exp(x.astype(np.float64))
    (output,) = tiles.run(expr, [x], {})
    expected = power.transpose(0, 2, 1) / power.sum((1, 2), keepdims=True)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-7)  # shares of 1


def test_costly_values_of_a_row_are_in_front_of_its_loops() -> None:
    for expr, function in ((softmax(), "div"), (log_softmax(), "log")):
        kernel = tiles.build(expr).kernel
        loops = [n for n in walk_statements(kernel.body) if isinstance(n, TileLoop)]
        inside = [n for loop in loops for n in walk_statements(loop.body)]
        named = [
            getattr(s, "function", "")
            for n in inside
            if isinstance(n, Compute)
            for s in walk(n.body)
            if costly(s)
        ]
        assert named
        assert function not in named
