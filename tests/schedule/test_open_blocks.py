"""Blocks of open size, whose remainder is masked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tcc.ir.index import IndexLike, symbol
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.shapes import AxisAttrs

from tests.passes.fuse.models import Model
from tests.schedule.test_choose import AVX512, only


@pytest.mark.parametrize(("size", "vectors"), [(symbol("n", 0), 2), (199, 4)])
def test_rows_of_open_size_pass_few_parts_of_a_block(size: IndexLike, vectors: int) -> None:
    """Of a softmax and of sums of squares, where the remainder of a row is masked."""
    masked = replace(AVX512, masked=True)
    for op, attrs in (("softmax", AxisAttrs(1)), ("reduce_sum_square", ReduceAttrs((1,), False))):
        m = Model("rows")
        _, schedule = only(m.finish(m.op(op, m.input("x", 64, size), attrs=attrs)), masked)
        for nest in schedule.nests:
            assert nest.block(nest.vector or "") in (1, vectors * masked.lanes)
        assert any(nest.vector for nest in schedule.nests)


@pytest.mark.parametrize("columns", [symbol("n", 0), 256])
def test_panels_keep_four_vectors_whatever_their_number(columns: IndexLike) -> None:
    m = Model("columns")
    product = m.op("matmul", m.input("x", 512, 64), m.input("y", 64, columns))
    _, schedule = only(m.finish(product), replace(AVX512, masked=True))
    (nest,) = schedule.nests
    assert nest.block(nest.vector or "") == 4 * AVX512.lanes
