"""Rewritten comparisons of indices are equal at every point, and narrow only if the values fit."""

from __future__ import annotations

import operator
from itertools import product

import pytest
from tcc.ir.expr.scalar import Apply, IndexValue, Scalar, apply, index_value, literal
from tcc.ir.index import Index, evaluate, free_vars, iterator, symbol
from tcc.ir.types import I32, I64
from tcc.passes.tile.gpu.compare import in_few_bits, on_one_side

K, P = iterator("k", 3), iterator("p", 4)
ROW, COL = iterator("l0", 4), iterator("l1", 5)
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def compared(name: str, a: Index, b: Index) -> Scalar:
    return apply(name, index_value(a, I64), index_value(b, I64))


def sides(scalar: Scalar) -> tuple[Index, Index]:
    assert isinstance(scalar, Apply)
    a, b = scalar.args
    assert isinstance(a, IndexValue)
    assert isinstance(b, IndexValue)
    assert a.dtype is b.dtype is I32
    return a.index, b.index


@pytest.mark.parametrize("name", COMPARISONS)
def test_causal_masks_compare_lanes_with_one_number(name: str) -> None:
    a, b = 5 * K + COL, 4 * P + ROW - 2
    lanes = [v for i in (ROW, COL) for v in free_vars(i)]
    lhs, right = sides(on_one_side(in_few_bits(compared(name, a, b)), lanes))
    assert free_vars(right) == free_vars(ROW)
    holds = getattr(operator, name)
    for k, p, row, col in product(range(3), range(4), range(4), range(5)):
        at = {"k": k, "p": p, "l0": row, "l1": col}
        is_true = holds(evaluate(a, at), evaluate(b, at))
        assert holds(evaluate(lhs, at), evaluate(right, at)) == is_true


def test_comparisons_that_may_not_fit_stay() -> None:
    large = iterator("far", 1 << 31)
    for other in (large, symbol("open", 0), 4 * ROW + large):
        plain = compared("lt", COL, other)
        assert in_few_bits(plain) is plain
        assert on_one_side(plain, free_vars(COL)) is plain
    data = apply("lt", index_value(COL, I64), literal(1 << 40, I64))
    assert in_few_bits(data) is data


def test_a_side_that_is_equal_for_all_lanes_stays() -> None:
    """The compiler computes that side once, outside the loop."""
    comparison = in_few_bits(compared("lt", 5 * K + COL, 7 * P))
    assert on_one_side(comparison, free_vars(COL)) is comparison
