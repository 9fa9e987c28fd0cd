"""Scalars that depend on one index become tables of constants with the right values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import Scalar, cast, index_value
from tcc.ir.graph import ConstantStore, Graph, Value
from tcc.ir.index import Index, as_index, symbol
from tcc.ir.types import F32, I64, TensorType
from tcc.ops.formula import fn
from tcc.passes.graph.tabulate import with_tables
from tcc.passes.layout.assign import Kernel, Placed, ProgramStep
from tcc.schedule.limits import TYPICAL_LIMITS

from tests.draws import RNG, seeded

ROWS, COLUMNS = 6, 9
with seeded("test_tabulate: x"):
    X = RNG.standard_normal((ROWS, COLUMNS)).astype(np.float32)
Formula = Callable[[ExprBuilder, Index, Index], Scalar]


def half(i: Index) -> Scalar:
    """Returns half of an index as a float, from a rounded integer."""
    return fn("floor", (index_value(i, F32) + 0.5) / 2.0)


def gathered(b: ExprBuilder, i: Index, j: Index) -> Scalar:
    at = b.position(cast(half(i), I64), ROWS)
    return b.read(0, at, j)


def weighted(b: ExprBuilder, i: Index, j: Index) -> Scalar:
    return b.read(0, i, j) * half(i) + half(j)


def unbounded(b: ExprBuilder, i: Index, j: Index) -> Scalar:
    """Returns a scalar that is NaN for small indices, and infinite for others."""
    return b.read(0, i, j) * ((index_value(i, F32) - 1.0) / 0.0 + half(i) / half(i))


def short(b: ExprBuilder, i: Index, j: Index) -> Scalar:
    return b.read(0, i, j) + (index_value(i, F32) + 0.5) / 2.0


def joint(b: ExprBuilder, i: Index, j: Index) -> Scalar:
    return b.read(0, i, j) + half(i + j)


def given(b: ExprBuilder, i: Index, j: Index) -> Scalar:
    x = b.read(0, i, j)
    return fn("floor", (x + index_value(i, F32)) / 2.0) + x


def expr_of(formula: Formula, rows: Any = ROWS, columns: int = COLUMNS) -> Expr:
    b = ExprBuilder(TensorType(F32, (as_index(rows), as_index(columns))))
    i, j = b.iters(rows, columns)
    b.stage((i, j), formula(b, i, j))
    return b.done()


def tabulated(expr: Expr) -> tuple[Expr, list[np.ndarray[Any, Any]]]:
    """Returns the kernel of `expr` after the pass, and its tables."""
    x, y = Value("x", expr.params[0]), Value("y", expr.params[0])
    graph = Graph("g", (x,), (y,), (), {}, ConstantStore())
    step = ProgramStep(Kernel(expr, (x,), (y,), "kernel"))
    placed = with_tables(Placed(graph, (step,), {}, {}), TYPICAL_LIMITS)
    (kernel,) = placed.kernels
    tables = [placed.graph.constant(value) for value in kernel.operands[1:]]
    return kernel.expr, [table for table in tables if table is not None]


@pytest.mark.parametrize(
    ("formula", "lengths"), [(gathered, [ROWS]), (weighted, [ROWS, COLUMNS]), (unbounded, [ROWS])]
)
def test_values_of_one_index_become_a_table(formula: Formula, lengths: list[int]) -> None:
    expr = expr_of(formula)
    tabulated_expr, tables = tabulated(expr)
    assert sorted(map(len, tables)) == lengths
    (output,), (reference,) = evaluate_expr(tabulated_expr, [X, *tables]), evaluate_expr(expr, [X])
    np.testing.assert_array_equal(output, reference)


@pytest.mark.parametrize("formula", [short, joint, given])
def test_short_values_and_values_of_several_indices_are_computed(formula: Formula) -> None:
    expr = expr_of(formula)
    assert tabulated(expr) == (expr, [])


def test_no_table_is_long_or_of_symbolic_length_or_read_once() -> None:
    def rows_alone(b: ExprBuilder, i: Index, j: Index) -> Scalar:
        return b.read(0, i, j) * half(i)

    most = int(TYPICAL_LIMITS.launch_bytes) // 4
    for rows, columns in ((symbol("n", 1), COLUMNS), (most + 1, 2)):
        expr = expr_of(rows_alone, rows, columns)
        assert tabulated(expr) == (expr, [])
    assert len(tabulated(expr_of(rows_alone, most, 2))[1]) == 1
    b = ExprBuilder(TensorType(F32, (ROWS,)))
    (i,) = b.iters(ROWS)
    b.stage((i,), b.read(0, i) * half(i))
    lone_expr = b.done()
    assert tabulated(lone_expr) == (lone_expr, [])
