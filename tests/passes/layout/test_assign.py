"""Layout assignment: channels last inside, row-major for the caller, halos and copies."""

from __future__ import annotations

from tcc.ir.expr import ExprBuilder
from tcc.ir.graph import Graph, Value
from tcc.ir.index import Index, IndexLike, as_int, const, substitute, symbol
from tcc.ir.layout import Layout, axis_vars, offset, permuted, row_major
from tcc.ir.types import element_count
from tcc.ops.algebra.pool import PoolAttrs
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.expression import ExpressionAttrs
from tcc.ops.formula import fn
from tcc.ops.shapes import AxisAttrs
from tcc.passes.layout.assign import Placed
from tcc.passes.program.lower_graph import halo_widths

from tests.passes.fuse.models import MODELS, Model
from tests.passes.placing import place_graph


def stored(placed: Placed) -> dict[Value, Layout]:
    """Returns the layouts of the values that kernels store."""
    kernels = [s.kernel for s in placed.steps if s.kernel is not None]
    return {v: placed.layouts[v] for k in kernels for v in k.results}


def convolutions(pad: int, *, n: IndexLike = 1) -> Graph:
    m = Model("convolutions")
    first = m.op("relu", m.conv(m.input("x", n, 3, 8, 8), 4, 1))
    return m.finish(m.conv(first, 5, 3, pad=pad))


def test_values_between_convolutions_have_channels_last() -> None:
    graph = convolutions(0)
    (between, layout_), (last, row) = stored(place_graph(graph)).items()
    assert layout_ == permuted(between.type.shape, (0, 2, 3, 1))
    assert last in graph.outputs
    assert row == row_major(last.type.shape)


def test_channels_that_a_kernel_moves_to_the_end_stay_there() -> None:
    """In speech models, convolutions compute the tokens of a sequence this way."""
    m = Model("tokens")
    first = m.op("relu", m.conv(m.input("x", 1, 3, 8, 8), 4, 1))
    y = m.op("add", m.transpose(m.conv(first, 5, 3), 0, 2, 3, 1), m.scalar(1.0))
    sums = (m.op("reduce_max", y, attrs=ReduceAttrs((axis,), True)) for axis in (1, 2))
    layouts = stored(place_graph(m.finish(*sums)))
    (tokens,) = (v for v in layouts if v.type.shape == y.type.shape)
    assert layouts[tokens] == row_major(tokens.type.shape)


def test_padded_readers_give_a_halo_as_wide_as_their_padding() -> None:
    for n in (1, symbol("n", 1)):
        value, where = next(iter(stored(place_graph(convolutions(2, n=n))).items()))
        assert where.fill == 0
        assert halo_widths(value, where) == (0, 0, 2, 2, 2, 2, 0, 0)
        assert [as_int(s) for s in where.sizes[1:]] == [12, 12, 4]
        assert where.sizes[0] is value.type.shape[0]


def test_the_widest_reader_decides_and_open_sizes_may_have_halos() -> None:
    m = Model("widest")
    h = symbol("h", 4)
    y = m.op("relu", m.conv(m.input("x", 1, 3, h, 8), 4, 1))
    graph = m.finish(m.conv(y, 5, 3, pad=1), m.conv(y, 5, 5, pad=2))
    value, where = next(iter(stored(place_graph(graph)).items()))
    assert halo_widths(value, where) == (0, 0, 2, 2, 2, 2, 0, 0)
    assert where.sizes[1] is h + 4


def test_readers_that_want_different_fills_get_no_halo() -> None:
    m = Model("disagreement")
    y = m.op("relu", m.conv(m.input("x", 1, 3, 8, 8), 4, 1))
    pool = PoolAttrs((1, 1), (1, 1), (1, 1), (1, 1), (3, 3))
    graph = m.finish(m.conv(y, 5, 3, pad=1), m.op("max_pool", y, attrs=pool))
    value, where = next(iter(stored(place_graph(graph)).items()))
    assert where.fill is None
    assert where == permuted(value.type.shape, (0, 2, 3, 1))


def test_wide_padding_is_stored_where_reads_outnumber_it() -> None:
    value, where = next(iter(stored(place_graph(convolutions(17))).items()))
    assert halo_widths(value, where) == (0, 0, 17, 17, 17, 17, 0, 0)


def test_padding_that_is_hardly_read_is_checked_instead() -> None:
    """The pool has three results of two elements each, a million elements apart."""
    m = Model("far")
    y = m.op("relu", m.input("x", 1, 1, 4))
    width = 1 << 20
    pool = PoolAttrs((width,), (width,), (width,), (1,), (2,))
    where = next(iter(stored(place_graph(m.finish(m.op("max_pool", y, attrs=pool)))).values()))
    assert where.fill is None


def test_an_input_that_needs_a_halo_is_copied_once() -> None:
    m = Model("copied")
    x = m.input("x", 1, 3, 8, 8)
    graph = m.finish(m.conv(x, 5, 3, pad=1), m.conv(x, 5, 3, pad=1))
    placed = place_graph(graph)
    assert placed.layouts[x] == row_major(x.type.shape)
    first, *other_kernels = (s.kernel for s in placed.steps if s.kernel is not None)
    (copy,) = first.results
    assert first.operands == (x,)
    assert copy.type.shape == tuple(map(const, (1, 3, 10, 10)))
    assert placed.layouts[copy] == permuted(copy.type.shape, (0, 2, 3, 1))
    assert len(other_kernels) == 2
    assert all(copy in k.operands and x not in k.operands for k in other_kernels)


def test_operands_of_calls_are_row_major() -> None:
    m = Model("call")
    y = m.op("relu", m.conv(m.input("x", 1, 3, 8, 8), 4, 1))
    determinant = m.op("det", y)
    graph = m.finish(m.conv(y, 5, 1), determinant)
    layouts = place_graph(graph).layouts
    assert layouts[y] == row_major(y.type.shape)
    assert layouts[determinant] == row_major(determinant.type.shape)


def is_row_major(where: Layout, shape: tuple[Index, ...]) -> bool:
    """Returns True if storage is the plain row-major array of `shape`; axes of size one are
    ignored."""
    plain = row_major(shape)
    one = {v: const(0) for v in plain.axes if v.extent is not None and as_int(v.extent) == 1}
    element = substitute(offset(where, axis_vars(shape)), one)
    return element is substitute(offset(plain, axis_vars(shape)), one) and (
        element_count(where.sizes) is element_count(shape)
    )


def test_networks_without_windows_are_row_major() -> None:
    for name in ("attention", "masked_softmax", "projections", "gathered"):
        for value, where in stored(place_graph(MODELS[name]())).items():
            assert is_row_major(where, value.type.shape)


def test_channels_last_goes_on_through_pointwise_work() -> None:
    m = Model("onward")
    y = m.conv(m.input("x", 1, 3, 8, 8), 4, 1)
    z = m.op("softmax", y, attrs=AxisAttrs(1))
    w = m.op("add", m.op("exp", y), z)
    graph = m.finish(m.conv(w, 2, 1), m.conv(m.op("neg", w), 2, 1))
    for value, where in stored(place_graph(graph)).items():
        if value not in graph.outputs:
            assert where == permuted(value.type.shape, (0, 2, 3, 1))


def test_several_padded_reads_of_one_value_give_it_a_halo() -> None:
    m = Model("neighbours")
    x = m.op("matmul", m.input("x", 6, 4), m.weight(4, 5))
    for count in (1, 2):
        b = ExprBuilder(x.type)
        i, j = b.iters(6, 5)
        value = b.read(0, i - 1, j, fill=0.0)
        b.stage((i, j), fn("add", value, b.read(0, i + 1, j, fill=0.0)) if count == 2 else value)
        y = m.op("expression", x, attrs=ExpressionAttrs(b.done()))
        where = stored(place_graph(m.finish(y)))[x]
        assert halo_widths(x, where) == ((1, 1, 0, 0) if count == 2 else (0, 0, 0, 0))
