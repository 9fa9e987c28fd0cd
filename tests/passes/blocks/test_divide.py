"""Sums in parts: on numbers, and where they are worth it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tcc.ir.evaluate_expr import evaluate_expr
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.graph import Value
from tcc.ir.index import IndexLike, symbol
from tcc.ir.scalar import apply
from tcc.ir.types import F32, tensor
from tcc.passes.blocks.divide import divide_sums
from tcc.passes.fuse.split import split
from tcc.schedule.blocks import BlockProfile

DEVICE = BlockProfile(processors=100)


def product(m: IndexLike, n: IndexLike, k: IndexLike) -> Expr:
    """exp of a[m, k] b[k, n]."""
    b = ExprBuilder(tensor(F32, m, k), tensor(F32, k, n))
    i, j = b.iters(m, n)
    (c,) = b.iters(k)
    made = b.stage((i, j), apply("mul", b.read(0, i, c), b.read(1, c, j)), over=(c,), monoid="sum")
    i, j = b.iters(m, n)
    b.stage((i, j), apply("exp", b.read(made, i, j)))
    return b.done()


@pytest.mark.parametrize("rows", [1, 3])
def test_parts_and_their_sums_are_kernels(rows: int) -> None:
    expr = product(rows, 40, 2048)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 2048)).astype(np.float32) * np.float32(0.1)
    w = rng.standard_normal((2048, 40)).astype(np.float32) * np.float32(0.1)
    a, b = Value("a", tensor(F32, rows, 2048)), Value("b", tensor(F32, 2048, 40))
    y = Value("y", tensor(F32, rows, 40))
    pieces = split(expr, (a, b), (y,), divides=partial(divide_sums, profile=DEVICE))
    assert len(pieces) == 2
    (parts,) = pieces[0].results
    # A first axis of one element becomes that of the parts.
    assert parts.type == tensor(F32, *((8, 40) if rows == 1 else (8, rows, 40)))
    values = {a: x, b: w}
    for piece in pieces:
        results = evaluate_expr(piece.expr, [values[v] for v in piece.operands])
        values.update(zip(piece.results, results, strict=True))
    want = np.exp(x.astype(np.float64) @ w.astype(np.float64))
    np.testing.assert_allclose(values[y], want, rtol=1e-4)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (2048, 2048, 4096),  # results for all processors
        (1, 40, 512),  # a short sum
        (1, 40, 2047),  # nothing divides it
        (symbol("m"), 40, 4096),  # there may be many rows
    ],
)
def test_other_sums_stay_whole(m: IndexLike, n: IndexLike, k: IndexLike) -> None:
    assert divide_sums(product(m, n, k), DEVICE) is None
