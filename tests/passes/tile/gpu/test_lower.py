"""Block kernels have the expected structure, and are right at odd, symbolic and empty sizes."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest
from tcc.ir.graph import Graph, Value
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import as_int, const, evaluate, symbol
from tcc.ir.op import Array
from tcc.ir.tile import Block, Contract, Load, Reduce, Relayout, Store, TileLoop
from tcc.ir.types import BOOL
from tcc.ops.algebra.activation import GeluAttrs
from tcc.ops.algebra.movement import ExpandAttrs
from tcc.ops.algebra.pool import PoolAttrs
from tcc.ops.algebra.reduce import ArgAttrs, ReduceAttrs
from tcc.ops.composite.normalization import NormAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.fuse.compose import compose
from tcc.passes.fuse.partition import partition
from tcc.passes.fuse.split import Kernel, split
from tcc.passes.tile.gpu.legality import is_gpu_kernel
from tcc.passes.tile.gpu.lower import NotBlocks, blocks_fit, lower_blocks
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.schedule.gpu.schedule import TYPICAL_DEVICE, BlockSchedule

from tests.ops.test_matrix import CASES
from tests.passes.fuse.models import Model

from . import tiles
from .test_op_matrix import REFUSED, composed
from .tiles import Built, statements

N = symbol("n", 0)


def softmax(m: Model, x: Value) -> Value:
    return m.op("softmax", x, attrs=AxisAttrs(x.type.rank - 1))


def chain() -> Graph:
    m = Model("chain")
    x, y = m.input("x", N, 37), m.input("y", 37)
    return m.finish(m.op("tanh", m.op("mul", m.op("add", x, y), m.op("exp", x))))


def transposed() -> Graph:
    m = Model("transposed")
    return m.finish(m.transpose(m.input("x", 3, 37, N), 0, 2, 1))


def rows() -> Graph:
    m = Model("rows")
    return m.finish(softmax(m, m.input("x", N, 37)))


def open_rows() -> Graph:
    m = Model("open_rows")
    return m.finish(softmax(m, m.input("x", 5, N)))


def long_rows() -> Graph:
    m = Model("long_rows")
    return m.finish(softmax(m, m.input("x", 2, 9001)))


def norm() -> Graph:
    m = Model("norm")
    x = m.input("x", N, 197)
    return m.finish(
        m.op("layer_normalization", x, m.weight(197), m.weight(197), attrs=NormAttrs(1))
    )


def columns() -> Graph:
    m = Model("columns")
    return m.finish(m.op("reduce_mean", m.input("x", N, 37), attrs=ReduceAttrs((0,), False)))


def largest() -> Graph:
    m = Model("largest")
    return m.finish(m.op("arg_max", m.input("x", N, 37), attrs=ArgAttrs(1, False, False)))


def product() -> Graph:
    m = Model("product")
    sums = m.op("matmul", m.input("x", N, 37), m.weight(37, 50))
    return m.finish(m.op("gelu", m.op("add", sums, m.weight(50)), attrs=GeluAttrs("none")))


def one_row() -> Graph:
    m = Model("one_row")
    return m.finish(m.op("matmul", m.input("x", 1, 197), m.weight(197, 300)))


def batched() -> Graph:
    m = Model("batched")
    return m.finish(m.op("matmul", m.input("x", 3, N, 37), m.input("y", 3, 37, 20)))


def strided() -> Graph:
    m = Model("strided")
    return m.finish(m.op("relu", m.conv(m.input("x", N, 5, 9, 7), 18, 3, stride=2, pad=1)))


def deep() -> Graph:
    m = Model("deep")
    return m.finish(m.conv(m.input("x", 1, 33, 8, N), 20, 3, pad=1))


def depthwise() -> Graph:
    m = Model("depthwise")
    return m.finish(m.conv(m.input("x", N, 6, 9, 7), 6, 3, pad=1, group=6))


def grouped() -> Graph:
    m = Model("grouped")
    return m.finish(m.conv(m.input("x", 2, 32, 7, N), 32, 3, pad=1, group=2))


def pooled() -> Graph:
    m = Model("pooled")
    attrs = PoolAttrs((2, 2), (1, 1), (1, 1), (1, 1), (3, 3))
    return m.finish(m.op("max_pool", m.input("x", N, 3, 37, 8), attrs=attrs))


def attention(causal: bool = False, group: int = 1, keys: int | None = None) -> Graph:
    """Returns heads of 16 over `keys` keys (symbolic if None); `group` heads share theirs."""
    m = Model("attention")
    heads, width, count = 4, 16, N if keys is None else keys
    q = m.input("q", heads, count, width)
    k, v = (m.input(name, heads // group, count, width) for name in "kv")
    if group > 1:
        k, v = (m.op("gather", x, _shared(m, heads, group), attrs=AxisAttrs(0)) for x in (k, v))
    scores = m.op("mul", m.op("matmul", q, m.transpose(k, 0, 2, 1)), m.scalar(0.25))
    if causal:
        mask = m.input("mask", count, count, dtype=BOOL)
        scores = m.op("where", mask, scores, m.scalar(-1e9))
    return m.finish(m.op("matmul", softmax(m, scores), v))


def _shared(m: Model, heads: int, group: int) -> Value:
    return m.builder.constant(np.arange(heads, dtype=np.int64) // group, "heads")


GRAPHS = MappingProxyType(
    {
        f.__name__: f
        for f in (
            *(chain, transposed, rows, open_rows, long_rows, norm, columns, largest, product),
            *(one_row, batched, strided, deep, depthwise, grouped, pooled, attention),
        )
    }
    | {
        "causal": lambda: attention(causal=True),
        "shared": lambda: attention(group=2),
        "few_keys": lambda: attention(keys=37),
    }
)
# Without elements there is no maximum, no mean, and no row for a share.
NEVER_EMPTY = ("columns", "open_rows", "attention", "causal", "shared")


def built(graph: Graph) -> tuple[Built, tuple[Value, ...]]:
    """Returns the block kernel of a whole graph, and the values that it reads."""
    expr, values = compose(graph.nodes, graph.outputs)
    return tiles.build(expr), values


def arrays(graph: Graph, size: int) -> dict[str, Array]:
    rng = np.random.default_rng(size)
    arrays_by_name: dict[str, Array] = {}
    for value in graph.inputs:
        shape = tuple(int(evaluate(d, {"n": size})) for d in value.type.shape)
        drawn = rng.standard_normal(shape)
        arrays_by_name[value.name] = (
            drawn > -0.5 if value.type.dtype is BOOL else drawn.astype(np.float32)
        )
    return arrays_by_name


@pytest.mark.parametrize("size", [0, 1, 2, 37])
@pytest.mark.parametrize("name", list(GRAPHS))
def test_kernel_agrees_with_graph(name: str, size: int) -> None:
    graph = GRAPHS[name]()
    is_open = any(as_int(d) is None for v in graph.inputs for d in v.type.shape)
    if (not is_open and size) or (size == 0 and name in NEVER_EMPTY):
        pytest.skip("the size is not open, or has to be more")
    bound, values = built(graph)
    inputs = arrays(graph, size)
    operands = [inputs[v.name] if v in graph.inputs else graph.constant(v) for v in values]
    types = [v.type for v in graph.outputs]
    actual = tiles.run_kernel(bound.kernel, types, operands, {"n": size})
    reference = evaluate_graph(graph, inputs)
    for value, array in zip(graph.outputs, actual, strict=True):
        np.testing.assert_allclose(array, reference[value.name], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("size", [1, 5])
def test_an_axis_that_has_one_element_or_all_is_repeated_where_it_has_one(size: int) -> None:
    m = Model("stretched")
    wide = m.op("expand", m.input("x", N, 37), attrs=ExpandAttrs((const(5), const(37))))
    graph = m.finish(m.op("add", wide, m.input("y", 5, 37)))
    bound, values = built(graph)
    inputs = arrays(graph, size)
    operands = [inputs[value.name] for value in values]
    (actual,) = tiles.run_kernel(bound.kernel, [graph.outputs[0].type], operands, {"n": size})
    np.testing.assert_array_equal(actual, inputs["x"] + inputs["y"])


# ---- structure ----------------------------------------------------------------------------------


def test_a_product_is_a_contraction_of_padded_blocks_with_its_epilogue() -> None:
    bound, _ = built(product())
    (dot,) = [s for s in statements(bound.kernel.body) if isinstance(s, Contract)]
    assert [len(b.shape) for b in (dot.a, dot.b, dot.out)] == [2, 2, 2]
    assert min(*dot.out.shape, dot.a.shape[1]) >= 16
    (store,) = [s for s in bound.kernel.body if isinstance(s, Store)]
    assert store.block.shape == dot.out.shape
    assert len(store.guards) == 2  # for the 50 columns and the symbolic rows


def test_a_row_is_loaded_once_for_all_stages() -> None:
    bound, _ = built(rows())
    loads = [s for s in statements(bound.kernel.body) if isinstance(s, Load)]
    assert len(loads) == 1
    assert not any(isinstance(s, TileLoop) for s in bound.kernel.body)
    assert sum(isinstance(s, Reduce) for s in bound.kernel.body) == 2


def test_rows_longer_than_a_block_are_walked() -> None:
    bound, _ = built(long_rows())
    loops = [s for s in bound.kernel.body if isinstance(s, TileLoop)]
    assert loops
    assert max(len(b.shape) and max(b.shape) for b in blocks(bound)) <= 1 << 13


def test_attention_is_one_loop_over_keys() -> None:
    bound, _ = built(attention())
    (loop,) = [s for s in bound.kernel.body if isinstance(s, TileLoop)]
    dots = [s for s in statements(loop.body) if isinstance(s, Contract)]
    assert len(dots) == 2
    assert len(loop.carried) == 3  # maxima, sums and mixed values


def test_one_row_of_a_product_is_no_contraction() -> None:
    bound, _ = built(one_row())
    assert not any(isinstance(s, Contract) for s in statements(bound.kernel.body))


def test_a_deep_convolution_takes_a_tap_and_channels_at_a_time() -> None:
    bound, _ = built(deep())
    assert any(isinstance(s, Contract) for s in statements(bound.kernel.body))


def test_a_transposition_is_square() -> None:
    bound, _ = built(transposed_static())
    (load,) = [s for s in bound.kernel.body if isinstance(s, Load)]
    assert min(load.out.shape) >= 16


def transposed_static() -> Graph:
    m = Model("transposed_static")
    return m.finish(m.transpose(m.input("x", 2, 100, 70), 0, 2, 1))


def test_contiguous_loops_are_stored_as_one() -> None:
    """The store's offset is the position along the fused axis, without quotients."""
    bound, _ = built(pooled_static())
    (store,) = [s for s in statements(bound.kernel.body) if isinstance(s, Store)]
    assert "//" not in store.indices[0].key


def pooled_static() -> Graph:
    m = Model("pooled_static")
    attrs = PoolAttrs((1, 1), (1, 1), (1, 1), (1, 1), (3, 3))
    return m.finish(m.op("max_pool", m.input("x", 1, 3, 37, 8), attrs=attrs))


def blocks(made: Built) -> list[Block]:
    return [s.out for s in statements(made.kernel.body) if isinstance(s, Load | Relayout)]


# ---- refusals -----------------------------------------------------------------------------------


def test_totals_read_elsewhere_are_refused_and_cut_into_kernels() -> None:
    refused = [c for c in CASES if c.name.startswith(REFUSED) and not c.half]
    assert refused
    for case in refused[:4]:
        expr, _ = composed(case)
        assert not blocks_fit(tiles.group_of(expr))
        operands = tuple(Value(f"x{n}", t) for n, t in enumerate(expr.params) if t is not None)
        results = tuple(Value(f"y{n}", t) for n, t in enumerate(expr.types))
        kernel = Kernel(expr, operands, results)
        pieces = split(kernel, lambda e: is_gpu_kernel(e, (False,) * len(e.params)))
        assert len(pieces) > 1
        assert all(blocks_fit(tiles.group_of(p.expr)) for p in pieces)


def test_parallel_axes_have_to_be_the_shared_loops() -> None:
    expr, _ = compose((graph := chain()).nodes, graph.outputs)
    with pytest.raises(NotBlocks, match="parallel axes"):
        lower_blocks(tiles.group_of(expr), BlockSchedule((), (), 4, 2))


# ---- fusion -------------------------------------------------------------------------------------


def groups_of(graph: Graph) -> list[list[str]]:
    groups = partition(graph, BlockChooser(TYPICAL_DEVICE))
    return [[n.op.name for n in g.members] for g in groups]


def normalised(rows: int) -> Graph:
    """Returns a matmul of normalised rows."""
    m = Model("normalised")
    x = m.input("x", rows, 512)
    norm = m.op("layer_normalization", x, m.weight(512), m.weight(512), attrs=NormAttrs(1))
    return m.finish(m.op("matmul", norm, m.weight(512, 640)))


def test_many_rows_are_normalised_once_and_one_row_in_every_tile() -> None:
    assert len(groups_of(normalised(128))) == 2
    assert len(groups_of(normalised(1))) == 1


def test_attention_joins_its_softmax_and_both_products() -> None:
    assert len(groups_of(attention(keys=256))) == 1
