"""Operands are copied where their terms are to be neighbours, and results stay the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import apply
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.layout import Layout, axis_order, permuted, row_major
from tcc.ir.types import BF16, F32, TensorType, tensor
from tcc.passes.layout.assign import Kernel, Placed, ProgramStep
from tcc.passes.layout.turn_operands import with_turned_operands
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.schedule.alternatives import Seconds
from tcc.schedule.gpu.schedule import BlockProfile

from tests.closeness import assert_within

PLAIN = BlockProfile(processors=100)
# A device whose matrix units multiply f32 as TF32, and read it only along the sum.
DEEP = replace(PLAIN, matrix=(*PLAIN.matrix, ("f32", 494e12)), terms=(*PLAIN.terms, "f32"))
SIZE = 1024


def matmul(m: int = SIZE, n: int = SIZE, k: int = SIZE) -> Expr:
    builder = ExprBuilder(tensor(F32, m, k), tensor(F32, k, n))
    i, j = builder.iters(m, n)
    (c,) = builder.iters(k)
    x, y = builder.read(0, i, c), builder.read(1, c, j)
    builder.stage((i, j), apply("mul", x, y), over=(c,), monoid="sum")
    return builder.done()


def operands(expr: Expr) -> tuple[Value, ...]:
    return tuple(Value("ab"[n], t) for n, t in enumerate(expr.params) if isinstance(t, TensorType))


def placed(*kernels: Kernel, layouts: dict[Value, Layout] | None = None) -> Placed:
    values = [v for k in kernels for v in (*k.operands, *k.results)]
    rows = {v: row_major(v.shape) for v in values} | (layouts or {})
    steps = tuple(ProgramStep(kernel) for kernel in kernels)
    return Placed(GraphBuilder("g").finish([]), steps, rows, {})


def turned(before: Placed, profile: BlockProfile = DEEP) -> Placed:
    return with_turned_operands(before, BlockChooser(profile), None)


def test_a_row_major_second_operand_is_copied_and_results_are_equal() -> None:
    expr = matmul(m=256, n=256, k=256)
    a, b = operands(expr)
    y = Value("y", expr.types[0])
    before = placed(Kernel(expr, (a, b), (y,), "y"))
    after = turned(before, replace(DEEP, processors=1))  # so that a small matmul takes long
    copy, reader = after.kernels
    assert copy.operands == (b,)
    assert reader.operands == (a, *copy.results)
    assert axis_order(after.layouts[copy.results[0]]) == (1, 0)
    rng = np.random.default_rng(0)
    values = {v: rng.standard_normal((256, 256)).astype(np.float32) for v in (a, b)}
    reference = values[a].astype(np.float64) @ values[b].astype(np.float64)
    magnitudes = np.abs(values[a]).astype(np.float64) @ np.abs(values[b])
    for kernel in after.kernels:
        results = evaluate_expr(kernel.expr, [values[v] for v in kernel.operands])
        values.update(zip(kernel.results, results, strict=True))
    assert_within(values[y], reference, 1e-5 * magnitudes)


def test_two_readers_share_a_copy() -> None:
    expr = matmul()
    a, b = operands(expr)
    results = [Value(name, expr.types[0]) for name in "yz"]
    after = turned(placed(*(Kernel(expr, (a, b), (r,), r.name) for r in results)))
    copies = [k for k in after.kernels if k.operands == (b,)]
    assert len(copies) == 1
    assert [k.operands for k in after.kernels if k not in copies] == [(a, *copies[0].results)] * 2


@pytest.mark.parametrize("case", ["turned already", "exact f32", "bf16", "small", "conditional"])
def test_other_operands_stay(case: str) -> None:
    expr = matmul(*((16, 16, 16) if case == "small" else ()))
    a, b = operands(expr)
    kernel = Kernel(expr, (a, b), (Value("y", expr.types[0]),), "y")
    layouts = {b: permuted(b.shape, (1, 0))} if case == "turned already" else {}
    if case == "conditional":
        kernel = replace(kernel, condition=Value("flag", tensor(F32)))
    before = placed(kernel, layouts=layouts)
    profile, floats = PLAIN if case == "exact f32" else DEEP, BF16 if case == "bf16" else F32
    after = with_turned_operands(before, BlockChooser(profile, floats), None)
    assert after.kernels == before.kernels
    assert [s.kernel for s in after.steps] == [s.kernel for s in before.steps]


def test_prices_tell_the_orders_apart() -> None:
    """A row-major second operand costs several times as much, as seen on an H200."""
    expr = matmul(m=8192, n=8192, k=1024)
    a, b = operands(expr)
    kernel, chooser = Kernel(expr, (a, b), (Value("y", expr.types[0]),), "y"), BlockChooser(DEEP)

    def seconds(order: tuple[int, int]) -> Seconds:
        return chooser.seconds(kernel, {b: permuted(b.shape, order)}, ())

    across, along = seconds((0, 1)), seconds((1, 0))
    assert 1.5e-3 < across < 3e-3  # It took 2.1 ms.
    assert 2.5e-4 < along < 6e-4
