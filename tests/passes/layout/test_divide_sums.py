"""Sums divided in parts are correct, and are divided where it pays."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import StageRef, apply
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.index import IndexLike, as_int, symbol
from tcc.ir.layout import Layout, axis_order, permuted, row_major
from tcc.ir.types import BF16, F32, tensor
from tcc.passes.layout.assign import Kernel, Placed, ProgramStep
from tcc.passes.layout.divide_sums import with_divided_sums
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.passes.tile.gpu.split_k import split_k
from tcc.passes.tile.gpu.stored import stored_as
from tcc.schedule.gpu.cost import LAUNCH
from tcc.schedule.gpu.schedule import BlockProfile

from tests.closeness import assert_within

DEVICE = BlockProfile(processors=100)


def product(m: IndexLike, n: IndexLike, k: IndexLike) -> Expr:
    """Returns exp of a[m, k] b[k, n]."""
    b = ExprBuilder(tensor(F32, m, k), tensor(F32, k, n))
    i, j = b.iters(m, n)
    (c,) = b.iters(k)
    product_stage = b.stage(
        (i, j), apply("mul", b.read(0, i, c), b.read(1, c, j)), over=(c,), monoid="sum"
    )
    i, j = b.iters(m, n)
    b.stage((i, j), apply("exp", b.read(product_stage, i, j)))
    return b.done()


def divided(kernel: Kernel, layouts: dict[Value, Layout]) -> Placed:
    builder = GraphBuilder("g")
    placed = Placed(builder.finish([]), (ProgramStep(kernel),), layouts, {})
    return with_divided_sums(placed, BlockChooser(DEVICE).divides)


@pytest.mark.parametrize("rows", [1, 3])
def test_parts_and_their_sums_are_kernels(rows: int) -> None:
    expr = product(rows, 40, 2048)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 2048)).astype(np.float32) * np.float32(0.1)
    w = rng.standard_normal((2048, 40)).astype(np.float32) * np.float32(0.1)
    a, b = Value("a", tensor(F32, rows, 2048)), Value("b", tensor(F32, 2048, 40))
    y = Value("y", tensor(F32, rows, 40))
    pieces = divided(Kernel(expr, (a, b), (y,), "y"), {y: row_major(y.type.shape)}).kernels
    assert len(pieces) == 2
    (parts,) = pieces[0].results
    # A first axis of size one becomes the axis of the parts.
    count = as_int(parts.type.shape[0])
    assert count in (2, 4, 8, 16, 32)
    assert parts.type == tensor(F32, *((count, 40) if rows == 1 else (count, rows, 40)))
    values = {a: x, b: w}
    for piece in pieces:
        results = evaluate_expr(piece.expr, [values[v] for v in piece.operands])
        values.update(zip(piece.results, results, strict=True))
    wide = x.astype(np.float64), w.astype(np.float64)
    reference, magnitudes = np.exp(wide[0] @ wide[1]), np.abs(wide[0]) @ np.abs(wide[1])
    # the error of the exponent is relative to its magnitudes, and is the relative error of the
    # power
    assert_within(values[y], reference, 1e-6 * (1 + magnitudes) * reference)


@pytest.mark.parametrize(("rows", "order"), [(1, (1, 0)), (3, (0, 2, 1))])
def test_parts_are_stored_in_the_order_of_the_result(rows: int, order: tuple[int, ...]) -> None:
    a, b = Value("a", tensor(F32, rows, 2048)), Value("b", tensor(F32, 2048, 40))
    y = Value("y", tensor(F32, rows, 40))
    kernel = Kernel(product(rows, 40, 2048), (a, b), (y,), "y")
    placed = divided(kernel, {y: permuted(y.type.shape, (1, 0))})
    (parts,) = placed.kernels[0].results
    assert axis_order(placed.layouts[parts]) == order


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (2048, 2048, 4096),  # enough results for all processors
        (1, 40, 512),  # a short sum
        (1, 40, 8191),  # no part count divides it
        (symbol("m"), 40, 4096),  # there may be many rows
    ],
)
def test_other_sums_stay_whole(m: IndexLike, n: IndexLike, k: IndexLike) -> None:
    assert split_k(product(m, n, k), DEVICE, BlockChooser(DEVICE).best) is None


def test_parts_cost_less_than_the_whole() -> None:
    """The undivided kernel has few tiles; its parts have more, and are cheaper even with the launch
    that sums them."""
    planner = BlockChooser(DEVICE)
    expr = product(1, 40, 8192)
    undivided = planner.best(expr)
    split = split_k(expr, DEVICE, planner.best)
    assert split is not None
    assert undivided is not None
    first = Expr(split[0].params, split[0].stages[: split[1] + 1], (StageRef(split[1], 0),))
    parts = planner.best(first)
    assert parts is not None
    assert parts.units > undivided.units
    assert parts.seconds + LAUNCH < undivided.seconds


def test_halves_are_priced_as_halves() -> None:
    """Values that will be rounded move half the bytes, and their matmuls use matrix units."""
    exact, halves = (BlockChooser(DEVICE, floats) for floats in (F32, BF16))
    expr = product(512, 512, 4096)
    unrounded, rounded = exact.best(expr), halves.best(expr)
    assert unrounded is not None
    assert rounded is not None
    assert rounded.compute < unrounded.compute / 4
    stored_expr = stored_as(expr, BF16)
    assert [p.dtype for p in stored_expr.params if p is not None] == [BF16, BF16]
    assert [t.dtype for t in stored_expr.types] == [BF16]
    assert stored_as(expr, F32) is expr


def test_few_long_rows_are_summed_in_parts() -> None:
    b = ExprBuilder(tensor(F32, 4, 1 << 20))
    (i,) = b.iters(4)
    (j,) = b.iters(1 << 20)
    b.stage((i,), b.read(0, i, j), over=(j,), monoid="max")
    planner = BlockChooser(DEVICE)
    assert split_k(b.done(), DEVICE, planner.best) is not None
