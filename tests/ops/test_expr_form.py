"""Every row's expression, on each of its samples, is well formed and reads back from its text."""

from __future__ import annotations

import pytest
from tcc.ir.expr import Expr
from tcc.ir.expr.verify import verify_expr
from tcc.ir.graph.text import expr_text
from tcc.ir.op import OpSpec
from tcc.ir.types import TensorType, dtype_of, tensor
from tcc.ops import OPS

from tests.lib.oracle.expr.parse import parse_expr

from .samples import samples_of

ROWS = [op for op in OPS.values() if op.expr is not None]


def expressions(op: OpSpec) -> list[tuple[Expr, list[TensorType | None]]]:
    forms = []
    for sample in samples_of(op):
        types = [None if a is None else tensor(dtype_of(a), *a.shape) for a in sample.inputs]
        assert op.expr is not None
        forms.append((op.expr(types, sample.attrs), types))
    return forms


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_expression_is_well_formed(op: OpSpec) -> None:
    for expr, types in expressions(op):
        verify_expr(expr, types)


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_expression_reads_back(op: OpSpec) -> None:
    for expr, _ in expressions(op):
        text = expr_text(expr)
        again = parse_expr(text)
        assert again == expr
        assert expr_text(again) == text
