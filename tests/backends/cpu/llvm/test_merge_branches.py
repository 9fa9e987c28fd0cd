"""Tests of merged branches: branches that differ only in numbers become one body."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tcc.backends.cpu.llvm.merge_branches import merged
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import apply
from tcc.ir.tile import If, TileKernel, walk_statements
from tcc.ir.tile.text import kernel_text
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.types import F32, tensor

from tests.backends.cpu.kernels import normal
from tests.lib.oracle.tile.parse import parse_kernel
from tests.passes.tile.cpu import tiles

BRANCHES = """kernel() parallel(p: 0..3) {
  input %a : f32[26] align 4
  output %b : f32[26] align 4
  if p < 2 {
    for k: 0..9 in 0..9 step 1 {
      %x: f32[1] = load %a[9*p+k]
      store %x to %b[9*p+k]
    }
  } else {
    for m: 0..8 in 0..8 step 1 {
      %y: f32[1] = load %a[8*p+m+2]
      store %y to %b[8*p+m+2]
    }
  }
}
"""


def with_merged(kernel: TileKernel) -> TileKernel:
    return replace(kernel, body=merged(kernel.body))


def branches(kernel: TileKernel) -> int:
    return sum(isinstance(node, If) for node in walk_statements(kernel.body))


def test_branches_of_two_sizes_are_one_body() -> None:
    kernel = with_merged(parse_kernel(BRANCHES))
    verify_kernel(kernel)
    assert branches(kernel) == 0
    assert kernel_text(kernel).count("load") == 1
    x = normal(26)
    (y,) = tiles.run_kernel(kernel, [tensor(F32, 26)], [x], {})
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%y: f32[1] = load %a[8*p+m+2]", "%y: f32[1] = load %a[8*p+m+2] where 0 <= m < 7"),
        ("for m: 0..8 in 0..8 step 1", "for m: 0..10 in 0..8 step 1"),
        ("for m: 0..8 in 0..8 step 1", "for m: 0..8 in 0..8 step 2"),
        ("%y: f32[1] = load %a[8*p+m+2]", "%y: f32[1] = compute() 0.0:f32"),
    ],
)
def test_branches_that_do_something_else_stay(old: str, new: str) -> None:
    kernel = parse_kernel(BRANCHES.replace(old, new))
    assert kernel_text(with_merged(kernel)) == kernel_text(kernel)


def products(rows: int, columns: int) -> Expr:
    b = ExprBuilder(tensor(F32, rows, 7), tensor(F32, 7, columns))
    i, j, k = b.iters(rows, columns, 7)
    product = apply("mul", b.read(0, i, k), b.read(1, k, j))
    total = b.stage((i, j), product, over=(k,), monoid="sum")
    i, j = b.iters(rows, columns)
    b.stage((i, j), apply("exp", b.read(total, i, j)))
    return b.done()


def test_under_any_schedule_the_results_are_the_same() -> None:
    rng = np.random.default_rng(3)
    fewer = 0
    for _ in range(60):
        expr = products(int(rng.integers(3, 30)), int(rng.integers(3, 30)))
        kernel = tiles.build(expr, tiles.drawn(rng)).kernel
        new = with_merged(kernel)
        verify_kernel(new)
        fewer += branches(kernel) - branches(new)
        operands = [normal(*(d.const for d in t.shape)) for t in expr.params if t is not None]
        for output, reference in zip(
            tiles.run_kernel(new, expr.types, operands, {}),
            tiles.run_kernel(kernel, expr.types, operands, {}),
            strict=True,
        ):
            np.testing.assert_array_equal(output, reference)
    assert fewer > 8
