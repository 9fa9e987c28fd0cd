"""Tests of work that all units share: it runs once per call, and results do not change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tcc.backends.cpu.llvm.invariant import same_for_all
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import apply
from tcc.ir.types import F32, tensor

from tests.backends.cpu.kernels import normal
from tests.passes.tile.cpu import tiles

DEPTH, WIDTH = 24, 520


def centred(rows: int) -> Expr:
    """Returns rows minus their sum, times a matrix."""
    b = ExprBuilder(tensor(F32, rows, DEPTH), tensor(F32, DEPTH, WIDTH))
    r, k = b.iters(rows, DEPTH)
    total = b.stage((r,), b.read(0, r, k), over=(k,), monoid="sum")
    i, j = b.iters(rows, DEPTH)
    factor = b.stage((i, j), apply("sub", b.read(0, i, j), b.read(total, i)))
    m, n, d = b.iters(rows, WIDTH, DEPTH)
    b.stage((m, n), apply("mul", b.read(factor, m, d), b.read(1, d, n)), over=(d,), monoid="sum")
    return b.done()


def test_rows_are_prepared_once(run: Callable[..., list[np.ndarray]]) -> None:
    for rows in (1, 5):
        kernel = tiles.build(centred(rows)).kernel
        assert same_for_all(kernel) > 0
        x, w = normal(rows, DEPTH), normal(DEPTH, WIDTH)
        arrays = [x.reshape(-1), w.reshape(-1), np.full(rows * WIDTH, np.nan, np.float32)]
        wide = x.astype(np.float64)
        reference = (wide - wide.sum(1, keepdims=True)) @ w.astype(np.float64)
        output = run(kernel, arrays)[2].reshape(rows, WIDTH)
        np.testing.assert_allclose(output, reference, atol=1e-4 * np.abs(reference).max())


def test_plain_kernels_have_nothing_in_common() -> None:
    b = ExprBuilder(tensor(F32, 64, 64))
    i, j = b.iters(64, 64)
    b.stage((i, j), apply("exp", b.read(0, i, j)))
    assert same_for_all(tiles.build(b.done()).kernel) == 0
