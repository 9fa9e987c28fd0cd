"""Planes that one point reads together begin in different cache sets."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.ir.expr import ExprBuilder
from tcc.ir.graph import Graph, GraphBuilder, Value
from tcc.ir.index import Index, IndexLike, as_int, const, evaluate, symbol
from tcc.ir.layout import Layout, axis_vars, offset, permuted, row_major, set_apart
from tcc.ir.types import F32, element_count, tensor
from tcc.ops import OPS
from tcc.ops.formula import fn
from tcc.passes.derive.bilinear.tiled_conv import Conv, ConvAxis, input_transform, products
from tcc.passes.layout.assign import Placed
from tcc.schedule.footprint import LINE, PAGE

from tests.passes.derive.bilinear.products import F4
from tests.passes.placing import place_graph


def planes(count: int, size: IndexLike, *, together: bool = True, seen: bool = False) -> Graph:
    """Returns a value of `count` planes, then sums over all planes, or over two neighbours in the
    last plane. With `seen`, the value is an output."""
    b = GraphBuilder("planes")
    op, attrs = OPS["expression"], OPS["expression"].attrs
    x = b.input("x", tensor(F32, size, count))
    body = ExprBuilder(x.type)
    p, i = body.iters(count, size)
    (k,) = body.iters(count)
    body.stage((p, i), fn("mul", body.read(0, i, k), body.read(0, i, p)), over=(k,), monoid="sum")
    (v,) = b.add(op, [x], attrs(body.done()))
    read = ExprBuilder(v.type)
    (j,) = read.iters(size)
    total = read.read(0, count - 1, j)
    for plane in range(count - 1):
        other = read.read(0, plane, j) if together else read.read(0, count - 1, (j + plane) % size)
        total = fn("add", total, other)
    read.stage((j,), total)
    (y,) = b.add(op, [v], attrs(read.done()))
    return b.finish([y, v] if seen else [y])


def first(placed: Placed) -> tuple[Value, Layout]:
    kernels = [s.kernel for s in placed.steps if s.kernel is not None]
    value = kernels[0].results[0]
    return value, placed.layouts[value]


def distance(value: Value, where: Layout) -> int:
    """Returns the bytes between planes."""
    zeros = [const(0)] * (value.type.rank - 1)
    here, there = (as_int(offset(where, (const(p), *zeros))) for p in (0, 1))
    assert here == 0
    assert there is not None
    return there * value.type.dtype.bytes


def test_planes_of_whole_pages_that_a_point_reads_are_set_apart() -> None:
    assert distance(*first(place_graph(planes(16, PAGE // 4)))) == PAGE + LINE
    assert distance(*first(place_graph(planes(8, PAGE)))) == 4 * PAGE + LINE


@pytest.mark.parametrize(
    "graph",
    [
        planes(16, 1000),  # the planes begin in different sets already
        planes(4, 1024),  # few planes
        planes(16, 1024, together=False),  # a point reads one plane
        planes(16, 1024, seen=True),  # the caller wants whole arrays
    ],
    ids=["spread", "few", "one", "seen"],
)
def test_spread_small_and_visible_values_stay_dense(graph: Graph) -> None:
    value, where = first(place_graph(graph))
    assert where == row_major(value.type.shape)


def test_planes_that_a_point_writes_are_set_apart() -> None:
    b = GraphBuilder("transform")
    x = b.input("x", tensor(F32, 1, 16, 32, 32))
    axis = ConvAxis(3, const(32), const(1), 1, 1, 1, None)
    conv = Conv(const(1), 16, 16, 1, (axis, axis))
    op, attrs = OPS["expression"], OPS["expression"].attrs
    (v,) = b.add(op, [x], attrs(input_transform(conv, F4, x.type)))
    u = b.constant(np.ones((36, 1, 1, 1, 1, 16, 16), np.float32), "u")
    (m,) = b.add(op, [v, u], attrs(products(conv, F4, v.type, u.type)))
    placed = place_graph(b.finish([m]))
    assert distance(v, placed.layouts[v]) == PAGE + LINE
    assert placed.layouts[m] == row_major(m.type.shape)


def test_elements_of_planes_set_apart_lie_as_before_within_their_plane() -> None:
    base = permuted(as_shape(3, 4, 5, 6), (0, 2, 3, 1))
    wide = set_apart(base, 8)  # 15 lines, an odd number
    at = axis_vars(as_shape(3, 4, 5, 6))
    assert offset(wide, at) is offset(base, at)
    wide = set_apart(base, 4)  # 30 lines
    assert offset(wide, at) is offset(base, at) + at[0] * 4
    assert as_int(element_count(wide.sizes)) == 3 * (4 * 5 * 6 + 4)


@pytest.mark.parametrize("channels", [1, 24, 64])
def test_planes_of_a_symbolic_size_begin_in_sets_of_their_own_at_every_size(channels: int) -> None:
    """The lines at the starts of as many planes as there are sets lie in different sets, and planes
    do not overlap."""
    size = symbol("n", 1)
    value, where = first(place_graph(planes(16, size * channels)))
    plane_distance = offset(where, (const(1), const(0))) - offset(where, (const(0), const(0)))
    sets = PAGE // LINE
    for count in (*range(1, 70), 127, 128, 255, 256, 1000):
        step = evaluate(plane_distance, {"n": count}) * value.type.dtype.bytes
        assert step >= count * channels * value.type.dtype.bytes
        assert step - count * channels * value.type.dtype.bytes < 2 * LINE
        assert len({plane * step // LINE % sets for plane in range(sets)}) == sets


def as_shape(*sizes: int) -> tuple[Index, ...]:
    return tuple(map(const, sizes))
