"""Expressions convert to regions and back without a change except in names."""

from __future__ import annotations

import pytest
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import read
from tcc.ir.index import maximum, symbol
from tcc.ir.op import OpSpec
from tcc.ir.region import constant_of, is_leaf
from tcc.ir.region.convert import from_expr, region_text, to_expr
from tcc.ir.types import F32, I64, dtype_of, tensor
from tcc.ops import OPS
from tcc.ops.algebra.window import ConvAttrs

from tests.lib.oracle.expr.parse import parse_expr
from tests.ops.samples import samples_of

ROWS = [op for op in OPS.values() if op.expr is not None]


def expressions(op: OpSpec) -> list[Expr]:
    assert op.expr is not None
    return [
        op.expr(
            [None if a is None else tensor(dtype_of(a), *a.shape) for a in sample.inputs],
            sample.attrs,
        )
        for sample in samples_of(op)
    ]


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_every_op_comes_back(op: OpSpec) -> None:
    for expr in expressions(op):
        region = from_expr(expr)
        assert to_expr(region) == canonical(expr)
        assert from_expr(to_expr(region)) == region
        assert from_expr(parse_expr(region_text(region))) == region


@pytest.mark.parametrize("name", ["matmul", "conv"])
def test_contractions_are_seen(name: str) -> None:
    for expr in expressions(OPS[name]):
        stages = from_expr(expr).stages
        assert not any(map(is_leaf, stages))
        assert any(s.monoid == "sum" and constant_of(s) is not None for s in stages)


def test_symbolic_sizes_and_uneven_padding_survive() -> None:
    n, h = symbol("n", lo=1), symbol("h", lo=8)
    attrs = ConvAttrs((2, 1), (1, 0), (2, 3), (1, 2), 2)
    spec = OPS["conv"]
    assert spec.expr is not None
    expr = spec.expr((tensor(F32, n, 4, h, 9), tensor(F32, 6, 2, 3, 3), None), attrs)
    region = from_expr(expr)
    assert not any(map(is_leaf, region.stages))
    assert to_expr(region) == canonical(expr)
    assert n in region.stages[0].iters


def test_indirect_reads_and_extrema_of_loops_are_leaves() -> None:
    b = ExprBuilder(tensor(F32, 5), tensor(I64, 4), tensor(F32, 4))
    (i,) = b.iters(4)
    t = b.position(b.read(1, i), 5)
    first = b.stage((i,), b.read(0, t) * b.read(2, i))
    (j,) = b.iters(4)
    second = b.stage((j,), read(first, (maximum(j - 1, 0),), F32))
    (k,) = b.iters(4)
    expr = b.finish((k,), b.read(second, k) * 2.0)
    region = from_expr(expr)
    assert [is_leaf(s) for s in region.stages] == [True, True, False]
    assert {f.source for f in region.stages[0].factors} == {0, 1, 2}
    assert region.stages[1].factors[0].source == ~0
    assert to_expr(region) == canonical(expr)


def test_a_square_has_two_factors_and_a_large_power_one() -> None:
    b = ExprBuilder(tensor(F32, 5))
    (i,) = b.iters(5)
    x = b.read(0, i)
    square = from_expr(b.finish((i,), x * x)).stages[0]
    assert len(square.factors) == 2
    assert constant_of(square) == 1
    power = x
    for _ in range(40):
        power = power * power
    expr = ExprBuilder(tensor(F32, 5)).finish((i,), power)
    region = from_expr(expr)
    assert len(region.stages[0].factors) == 1
    assert constant_of(region.stages[0]) is None
    assert to_expr(region) == canonical(expr)
