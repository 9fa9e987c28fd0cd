"""Neighbouring reductions of the same elements share one loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.rename import canonical
from tcc.ir.types import F32, tensor
from tcc.passes.fuse.compose import side_by_side
from tcc.passes.fuse.structure import row_major_storage
from tcc.passes.tile.plan import Bound

from tests.passes.layout.test_choose import planner
from tests.passes.tile.cpu import tiles

FUNCTIONS = {"max": np.max, "min": np.min, "sum": np.sum, "prod": np.prod}


def reductions(monoids: Sequence[str], rows: int = 5, sizes: Sequence[int] = (37,)) -> Expr:
    """Returns consecutive reductions, each over the rows of the next operand; operands have these
    sizes."""
    b = ExprBuilder(*(tensor(F32, rows, size) for size in sizes))
    stages = []
    for n, monoid in enumerate(monoids):
        i, k = b.iters(rows, sizes[n % len(sizes)])
        stages.append(b.stage((i,), b.read(n % len(sizes), i, k), over=(k,), monoid=monoid))
    return canonical(b.done(*stages))


def monoids(expr: Expr) -> list[str | None]:
    return [stage.monoid for stage in expr.stages]


def test_two_neighbours_are_one() -> None:
    assert monoids(side_by_side(reductions(["max", "min"]))) == ["max_min", None]
    three = side_by_side(reductions(["sum", "max", "min"]))
    assert monoids(three) == ["sum_max", None, "min"]
    assert three.outputs == reductions(["sum", "max", "min"]).outputs


def test_reductions_of_other_operands_or_loops_stay_separate() -> None:
    for expr in (
        reductions(["max"]),
        reductions(["max", "min"], sizes=(37, 36)),
        reductions(["max", "min"], sizes=(37, 37)),  # of two operands
    ):
        assert side_by_side(expr) == expr


def test_a_reduction_that_reads_the_one_before_stays_apart() -> None:
    b = ExprBuilder(tensor(F32, 5, 7))
    i, k, j, m = b.iters(5, 7, 5, 7)
    top = b.stage((i,), b.read(0, i, k), over=(k,), monoid="max")
    centred = b.read(0, j, m) - b.read(top, j)
    expr = canonical(b.done(b.stage((j,), centred, over=(m,), monoid="sum")))
    assert side_by_side(expr) == expr


@pytest.mark.parametrize("names", [("max", "min"), ("sum", "sum"), ("prod", "max", "sum", "min")])
def test_each_result_is_that_of_its_reduction_under_any_schedule(names: Sequence[str]) -> None:
    data = np.random.default_rng(3).uniform(0.8, 1.2, (5, 37)).astype(np.float32)
    data[2, 9] = np.nan
    expr = side_by_side(reductions(names))
    choosers = [tiles.chosen, *(tiles.drawn(np.random.default_rng(n)) for n in range(12))]
    for chooser in choosers:
        outputs = tiles.run(expr, [data], {}, chooser)
        for name, result in zip(names, outputs, strict=True):
            reference = FUNCTIONS[name](data.astype(np.float64), axis=1)  # the numbers are positive
            np.testing.assert_allclose(
                result, reference, rtol=1e-5, atol=1e-5 * np.nanmin(reference)
            )


def bound(expr: Expr) -> Bound:
    operands, results = row_major_storage(expr, [False] * len(expr.params))
    return planner().bind((expr, tuple(operands), tuple(results)))[1]


def test_prices_choose_the_single_streaming_loop() -> None:
    group = bound(reductions(["max", "min"], 1024, (1024,))).group
    assert [stage.monoid for stage in group.stages] == ["max_min", None]
