"""A loop that selects between formulas becomes one result per formula."""

from __future__ import annotations

import numpy as np
from tcc.ir.expr import Expr, ExprBuilder, Stage, extent
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import Scalar, index_value
from tcc.ir.index import Index, IndexLike, iterator, symbol
from tcc.ir.types import F32, I64, tensor
from tcc.ops.formula import choose, fn
from tcc.passes.fuse.unroll import Unrolled, unroll

from tests.passes.tile.cpu import tiles


def split(stage: Stage) -> Unrolled | None:
    return unroll(stage, tuple(iterator(v.name, extent(v)) for v in stage.iters))


def equal(index: Index, number: int) -> Scalar:
    return fn("eq", index_value(index, I64), number)


def weave(count: IndexLike, by: int = 1) -> Expr:
    """Returns results that alternate every `by` elements between a sum and a difference; the row
    selects a factor."""
    b = ExprBuilder(tensor(F32, 64))
    row, j = b.iters(3, count)
    at = j // (2 * by) * by + j % by
    a, c = b.read(0, at), b.read(0, at + 1)
    pair = choose(equal(j // by % 2, 0), fn("add", a, c), fn("sub", a, c))
    factor = choose(equal(row, 0), fn("mul", pair, 3.0), choose(equal(row, 1), pair, fn("neg", a)))
    b.stage((row, j), factor)
    return b.done()


def test_every_choice_is_a_body_without_conditions() -> None:
    unrolled = split(weave(10).stages[0])
    assert unrolled is not None
    assert [extent(v).key for v in unrolled.stage.iters] == ["5"]
    assert [[i.key for i in at] for at in unrolled.places] == [
        [str(row), "2*i1u0" + odd] for row in range(3) for odd in ("", "+1")
    ]
    assert len(set(unrolled.stage.body)) == 5  # both results share the row of negations


def test_results_are_those_of_the_expression() -> None:
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    for count, by in ((10, 1), (11, 1), (12, 3), (13, 3), (1, 1)):
        expr = weave(count, by)
        reference = evaluate_expr(expr, [x])
        choosers = [tiles.chosen, *(tiles.drawn(np.random.default_rng(n)) for n in range(4))]
        for choose_schedule in choosers:
            outputs = tiles.run(expr, [x], {}, choose_schedule)
            np.testing.assert_array_equal(outputs[0], reference[0])


def test_open_sizes_are_unrolled_too() -> None:
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    expr = weave(symbol("n", 1, 60))
    assert split(expr.stages[0]) is not None
    for n in (1, 6, 7):
        (reference,) = evaluate_expr(expr, [x], {"n": n})
        np.testing.assert_array_equal(tiles.run(expr, [x], {"n": n})[0], reference)


def test_choices_between_many_formulas_stay() -> None:
    b = ExprBuilder(tensor(F32, 100))
    (i,) = b.iters(100)
    b.stage((i,), choose(equal(i, 5), b.read(0, i), 0.0))
    assert split(b.done().stages[0]) is None  # would be 100 formulas
    b = ExprBuilder(tensor(F32, 8))
    (i,) = b.iters(8)
    b.stage((i,), choose(fn("lt", index_value(i, I64), 5), b.read(0, i), 0.0))
    assert split(b.done().stages[0]) is None  # the condition is no equality
    b = ExprBuilder(tensor(F32, 8))
    (i,) = b.iters(8)
    b.stage((i,), b.read(0, i))
    assert split(b.done().stages[0]) is None
