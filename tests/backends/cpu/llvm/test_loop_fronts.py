"""Tests of loop-invariant index arithmetic: it is hoisted, and results do not change."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from tcc.backends.cpu.llvm.emit import emit_kernel
from tcc.backends.cpu.llvm.indices import LlvmIndices
from tcc.backends.cpu.llvm.text import Code, LlvmModule, Reg
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import apply
from tcc.ir.index import iterator, minimum, symbol
from tcc.ir.types import F32, tensor

from tests.backends.cpu.kernels import SERVER, normal
from tests.passes.tile.cpu import tiles

HEIGHT, WIDTH = symbol("h", 1), symbol("w", 1)
DEPTH, COLUMNS = 24, 64


def every_other() -> Expr:
    """Returns a matmul over every other pixel of an image of symbolic height and width."""
    b = ExprBuilder(tensor(F32, DEPTH, 2 * HEIGHT, 2 * WIDTH), tensor(F32, DEPTH, COLUMNS))
    i, j, n, k = b.iters(HEIGHT, WIDTH, COLUMNS, DEPTH)
    body = apply("mul", b.read(0, k, 2 * i, 2 * j), b.read(1, k, n))
    b.stage((i, j, n), body, over=(k,), monoid="sum")
    return b.done()


def test_loops_of_products_divide_nothing() -> None:
    text = emit_kernel(tiles.build(every_other()).kernel, "k", SERVER).llvm
    loops = [part for part in re.split(r"\n(?=\S+:)", text) if part.count("@llvm.fma") > 8]
    assert loops
    for loop in loops:
        assert "urem" not in loop
        assert "udiv i64" not in loop
        # A trip has one product for each of its two steps of the sum.
        assert len(re.findall(r" mul nsw i64 %\S+ %", loop)) <= 2


@pytest.mark.parametrize("width", range(1, 20))
def test_every_remainder_of_rows_is_right(
    check: Callable[..., list[np.ndarray]], width: int
) -> None:
    height = 1 + width % 4
    built = tiles.build(every_other())
    assert not built.unproved
    x, w = normal(DEPTH, 2 * height, 2 * width), normal(DEPTH, COLUMNS)
    reference = np.einsum("kij,kn->ijn", x[:, ::2, ::2].astype(np.float64), w.astype(np.float64))
    out = np.full(reference.size, np.nan, np.float32)
    arrays = [x.reshape(-1), w.reshape(-1), out]
    (output,) = check(built.kernel, arrays, {"h": height, "w": width}, atol=1e-4)
    np.testing.assert_allclose(
        output.reshape(reference.shape), reference, atol=1e-4 * np.abs(reference).max()
    )


def test_code_in_front_of_a_loop_reads_nothing_of_the_loop() -> None:
    """Hoisted code does not reuse sums and vectors of the loop, but computes them again."""
    code = Code(LlvmModule(SERVER))
    indices = LlvmIndices(code)
    row, column = (iterator(name, HEIGHT) for name in ("row", "column"))
    indices.values["row"] = Reg("i64", 1, "%row")
    front = code.keep_place()
    code.void("br label %loop")
    with code.scope(), indices.in_loop(front):
        indices.values["column"] = Reg("i64", 1, "%column")
        behind = indices.emit(row + 1)
        code.splat(behind, 8)
        indices.emit(minimum(row + 1, 2) * 5 + column)
    registers = {"%row"}
    ahead, _, _ = "\n".join(code.lines).partition("br label %loop")
    assert "llvm.smin" in ahead
    for line in filter(str.strip, ahead.splitlines()):
        name, *read = re.findall(r"%\w+", line)
        assert registers.issuperset(read), line
        registers.add(name)
