"""Blocks of symbolic size have a masked remainder."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Apply, walk
from tcc.ir.index import IndexLike, symbol
from tcc.ir.tile import Compute, Load, walk_statements
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.types import F32, tensor
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.tile.cpu.lower import lower
from tcc.schedule.cpu.choose import choose

from tests.draws import RNG
from tests.passes.fuse.models import Model
from tests.passes.tile.cpu import tiles
from tests.schedule.cpu.test_choose import AVX512, only


@pytest.mark.parametrize(("size", "vectors"), [(symbol("n", 0), 2), (199, 4)])
def test_rows_of_symbolic_size_pass_few_parts_of_a_block(size: IndexLike, vectors: int) -> None:
    """The test covers a softmax and sums of squares, where the remainder of a row is masked."""
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


@pytest.mark.parametrize(("op", "fill"), [("reduce_max", -inf), ("reduce_min", inf)])
def test_lanes_behind_the_end_of_a_row_are_loaded_as_the_neutral_element(
    op: str, fill: float
) -> None:
    m = Model("rows")
    x = m.input("x", 64, symbol("n", 0))
    group, schedule = only(
        m.finish(m.op(op, x, attrs=ReduceAttrs((1,), False))), replace(AVX512, masked=True)
    )
    kernel = lower(group, schedule)
    verify_kernel(kernel)
    statements = list(walk_statements(kernel.body))
    assert {n.fill for n in statements if isinstance(n, Load) and n.guards} == {fill}
    scalars = (s for n in statements if isinstance(n, Compute) for s in walk(n.body))
    assert not [s for s in scalars if isinstance(s, Apply) and s.function == "select"]


@pytest.mark.parametrize("size", [1, 8, 40])
def test_a_read_outside_its_operand_keeps_its_fill(size: int) -> None:
    """The expression is the maximum of a row without its last element, and of a zero before it."""
    n = symbol("n", 1)
    b = ExprBuilder(tensor(F32, 3, n))
    i, j = b.iters(3, n)
    expr = b.finish((i,), b.read(0, i, j - 1, fill=0.0), over=(j,), monoid="max")
    x = -1 - RNG.random((3, size)).astype(np.float32)
    masked = replace(AVX512, masked=True)
    (output,) = tiles.run(expr, [x], {"n": size}, lambda group: choose(group, masked))
    np.testing.assert_array_equal(output, np.zeros(3, np.float32))
