"""Values of which readers use a part are computed in part, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tcc
from onnx import numpy_helper, parser
from tcc.ir.graph import Graph, GraphBuilder, Value, walk_nodes
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.verify import verify_graph
from tcc.ir.index import Index, const, maximum, symbol
from tcc.ir.types import F32, I64, tensor
from tcc.ops import OPS
from tcc.passes.graph.axis_parts import AxisPart, joined, restricted, whole
from tcc.passes.graph.canonicalize import canonicalize
from tcc.passes.graph.emit import emit
from tcc.passes.graph.shrink import shrink

from tests.draws import RNG

Build = Callable[[GraphBuilder], Value]


def graph_of(build: Build) -> Graph:
    b = GraphBuilder("part")
    return b.finish([emit(b, "identity", build(b))])


def cut(b: GraphBuilder, x: Value, axis: int, start: Any, size: Any, step: int = 1) -> Value:
    starts, sizes, steps = [const(0)] * x.type.rank, list(x.type.shape), [1] * x.type.rank
    starts[axis], sizes[axis], steps[axis] = start + const(0), size + const(0), step
    return emit(b, "slice", x, starts=tuple(starts), steps=tuple(steps), sizes=tuple(sizes))


def matrix(*shape: int) -> np.ndarray[Any, Any]:
    """Returns small integers, so that sums of products in f32 are exact in every order."""
    return RNG.integers(-4, 5, shape).astype(np.float32)


def feeds_of(graph: Graph, size: int = 9) -> dict[str, Any]:
    feeds: dict[str, Any] = {}
    for value in graph.inputs:
        shape = [d.const if not d.terms else size for d in value.type.shape]
        feeds[value.name] = matrix(*shape) if value.type.dtype is F32 else RNG.integers(0, 4, shape)
    return feeds


def check(graph: Graph, tolerance: float = 0) -> Graph:
    """Returns the shrunk graph, which computes the same for random integers."""
    new = canonicalize(shrink(graph))
    verify_graph(new)
    feeds = feeds_of(graph)
    before, after = evaluate_graph(graph, feeds), evaluate_graph(new, feeds)
    assert [v.name for v in graph.outputs] == [v.name for v in new.outputs]
    for name, array in before.items():
        np.testing.assert_allclose(array, after[name], rtol=tolerance, atol=tolerance)
    return new


def results(graph: Graph, op: str) -> list[tuple[Index, ...]]:
    return [n.outputs[0].type.shape for n in walk_nodes(graph) if n.op.name == op]


def shape(*sizes: int) -> tuple[Index, ...]:
    return tuple(map(const, sizes))


def dense(b: GraphBuilder, x: Value, width: int) -> Value:
    """Returns a matmul, a bias and a ReLU."""
    weights = b.constant(matrix(x.type.shape[-1].const, width), "w")
    return emit(b, "relu", emit(b, "add", emit(b, "matmul", x, weights), b.constant(matrix(width))))


def test_a_slice_moves_before_a_matmul_its_bias_and_its_relu() -> None:
    new = check(graph_of(lambda b: cut(b, dense(b, b.input("x", tensor(F32, 20, 6)), 8), 0, 3, 2)))
    assert results(new, "matmul") == results(new, "relu") == [shape(2, 8)]


def test_columns_of_the_weights_that_nothing_reads_are_dropped() -> None:
    new = check(graph_of(lambda b: cut(b, dense(b, b.input("x", tensor(F32, 20, 6)), 8), 1, 3, 2)))
    assert results(new, "matmul") == [shape(20, 2)]


@pytest.mark.parametrize("norm", ["softmax", "log_softmax"])
def test_norms_over_other_axes_shrink(norm: str) -> None:
    def build(axis: int) -> Build:
        def graph(b: GraphBuilder) -> Value:
            y = emit(b, norm, dense(b, b.input("x", tensor(F32, 20, 6)), 8), axis=axis)
            return cut(b, y, 0, 3, 2)

        return graph

    assert results(check(graph_of(build(1)), 1e-6), "matmul") == [shape(2, 8)]
    assert results(check(graph_of(build(0)), 1e-6), "matmul") == [shape(20, 8)]


def test_several_readers_get_the_hull() -> None:
    def build(b: GraphBuilder) -> Value:
        x = dense(b, b.input("x", tensor(F32, 20, 6)), 6)
        y = emit(b, "add", dense(b, emit(b, "relu", x), 6), x)
        parts = cut(b, y, 0, 3, 4), cut(b, y, 0, 5, 6)
        return emit(b, "concat", *parts, axis=0)

    assert results(check(graph_of(build)), "matmul") == [shape(8, 6)] * 2


def test_a_reader_of_all_elements_keeps_a_value_whole() -> None:
    def build(b: GraphBuilder) -> Value:
        x = dense(b, b.input("x", tensor(F32, 20, 6)), 6)
        every = emit(b, "reduce_max", x, axes=(0,), keepdims=True)
        return emit(b, "add", cut(b, x, 0, 3, 2), every)

    assert results(check(graph_of(build)), "matmul") == [shape(20, 6)]


def test_queries_shrink_and_keys_do_not() -> None:
    def build(b: GraphBuilder) -> Value:
        x = b.input("x", tensor(F32, 12, 4))
        q, k, v = (dense(b, x, 4) for _ in range(3))
        scores = emit(b, "matmul", q, emit(b, "transpose", k, perm=(1, 0)))
        return cut(b, emit(b, "matmul", emit(b, "relu", scores), v), 0, 7, 1)

    sizes = [size[0].const for size in results(check(graph_of(build)), "matmul")]
    assert sorted(sizes) == [1, 1, 1, 12, 12]


def test_a_concatenation_reads_the_operands_that_matter() -> None:
    def build(start: int) -> Build:
        def graph(b: GraphBuilder) -> Value:
            parts = (dense(b, b.input(n, tensor(F32, 10, 6)), 8) for n in "xy")
            return cut(b, emit(b, "relu", emit(b, "concat", *parts, axis=0)), 0, start, 3)

        return graph

    assert results(check(graph_of(build(8))), "matmul") == [shape(2, 8), shape(1, 8)]
    assert results(check(graph_of(build(12))), "matmul") == [shape(3, 8)]


def test_an_unread_part_of_a_split_is_not_computed() -> None:
    def build(b: GraphBuilder) -> Value:
        x = dense(b, b.input("x", tensor(F32, 10, 6)), 12)
        _, middle, _ = b.add(OPS["split"], [x], OPS["split"].attrs(1, shape(4, 4, 4)))
        return emit(b, "matmul", middle, b.constant(matrix(4, 3), "v"))

    assert results(check(graph_of(build)), "matmul") == [shape(10, 4), shape(10, 3)]


@pytest.mark.parametrize("is_constant", [True, False])
def test_a_gather_of_rows_moves_before_its_producers(is_constant: bool) -> None:
    def build(b: GraphBuilder) -> Value:
        x = b.input("x", tensor(F32, 20, 6))
        places = np.array([[7, -1], [2, 7]])
        rows = b.constant(places, "rows") if is_constant else b.input("rows", tensor(I64, 2, 2))
        y = dense(b, x, 6)
        return emit(b, "gather", emit(b, "add", y, x), rows, axis=0)

    new = check(graph_of(build))
    assert results(new, "matmul") == [shape(4, 6)]
    assert results(new, "gather") == [shape(4, 6)]


def test_rows_that_later_nodes_choose_are_computed_first() -> None:
    def build(b: GraphBuilder) -> Value:
        x = b.input("x", tensor(F32, 20, 6))
        y = dense(b, x, 6)
        scores = emit(b, "reduce_max", dense(b, x, 3), axes=(1,), keepdims=False)
        attrs = OPS["top_k"].attrs(axis=0, k=const(3), largest=True, sorted=True)
        _, rows = b.add(OPS["top_k"], [scores], attrs)
        return emit(b, "gather", y, rows, axis=0)

    assert results(check(graph_of(build)), "matmul") == [shape(20, 3), shape(3, 6)]


@pytest.mark.parametrize("op", ["trilu", "reshape", "slice"])
def test_rows_stay_behind_nodes_that_use_their_positions(op: str) -> None:
    def build(b: GraphBuilder) -> Value:
        x, rows = dense(b, b.input("x", tensor(F32, 12, 6)), 6), b.input("rows", tensor(I64, 3))
        match op:
            case "trilu":
                y = emit(b, "trilu", x, k=const(0), upper=True)
            case "reshape":
                y = emit(b, "reshape", x, shape=shape(8, 9))
            case _:
                y = cut(b, x, 0, 1, 11)
        return emit(b, "gather", y, rows, axis=0)

    first = 11 if op == "slice" else 12
    assert results(check(graph_of(build)), "matmul") == [shape(first, 6)]


def test_rows_that_outnumber_their_table_stay_behind() -> None:
    def build(b: GraphBuilder) -> Value:
        x, rows = b.input("x", tensor(F32, 4, 6)), b.input("rows", tensor(I64, 30))
        return emit(b, "gather", dense(b, x, 8), rows, axis=0)

    assert results(check(graph_of(build)), "matmul") == [shape(4, 8)]


def test_the_last_row_of_a_symbolic_axis() -> None:
    n = symbol("n", 1)

    def build(b: GraphBuilder) -> Value:
        x = b.input("x", tensor(F32, n, 6))
        return cut(b, dense(b, x, 8), 0, n - 1, 1)

    assert results(check(graph_of(build)), "matmul") == [shape(1, 8)]


def test_the_last_row_of_a_cache() -> None:
    past, new = symbol("past", 0), symbol("new", 1)

    def build(b: GraphBuilder) -> Value:
        parts = (dense(b, b.input(s.key, tensor(F32, s, 6)), 8) for s in (past, new))
        cache = emit(b, "relu", emit(b, "concat", *parts, axis=0))
        return cut(b, cache, 0, past + new - 1, 1)

    assert results(check(graph_of(build)), "matmul") == [shape(1, 8)]


def test_windows_stay_whole() -> None:
    def build(b: GraphBuilder) -> Value:
        x, w = b.input("x", tensor(F32, 1, 2, 9, 9)), b.constant(matrix(3, 2, 3, 3), "w")
        fields = {"strides": (1, 1), "dilations": (1, 1), "group": 1}
        y = emit(b, "conv", x, w, before=shape(1, 1), after=shape(1, 1), **fields)
        return cut(b, y, 2, 4, 1)

    assert results(check(graph_of(build)), "conv") == [shape(1, 3, 9, 9)]


def test_backward_slices() -> None:
    new = check(
        graph_of(lambda b: cut(b, dense(b, b.input("x", tensor(F32, 20, 6)), 8), 0, 9, 3, -2))
    )
    assert results(new, "matmul") == [shape(5, 8)]


def test_a_dear_form_is_not_taken() -> None:
    graph = graph_of(lambda b: cut(b, dense(b, b.input("x", tensor(F32, 20, 6)), 8), 0, 3, 2))
    assert shrink(graph, lambda forms: 0) is graph
    assert results(shrink(graph, lambda forms: 1), "matmul") == [shape(2, 8)]


# ---- random graphs -------------------------------------------------------------------------------


def random_node(b: GraphBuilder, values: list[Value]) -> Value:
    """Adds a random node on random values with short axes."""
    x = values[-1 if RNG.integers(3) else RNG.integers(len(values))]
    axis = int(RNG.integers(x.type.rank))
    size = x.type.shape[axis].const
    match int(RNG.integers(9)):
        case 0 if size > 2:
            start = int(RNG.integers(size - 1))
            return cut(b, x, axis, start, int(RNG.integers(1, size - start)))
        case 1:
            step, count = -2, (size + 1) // 2
            return cut(b, x, axis, 2 * (count - 1), count, step)
        case 2:
            rows = RNG.integers(-size, size, int(RNG.integers(1, size + 1)))
            return emit(b, "gather", x, b.constant(rows, "rows"), axis=axis)
        case 3:
            other = values[RNG.integers(len(values))]
            if other.type == x.type:
                return emit(b, "concat", x, other, axis=axis)
            return emit(b, "relu", x)
        case 4:
            peers = [v for v in values if v.type == x.type]
            return emit(b, "add", x, peers[RNG.integers(len(peers))])
        case 5:
            perm = tuple(map(int, RNG.permutation(x.type.rank)))
            return emit(b, "transpose", x, perm=perm)
        case 6:
            width = int(RNG.integers(2, 6))
            weights = b.constant(matrix(x.type.shape[-1].const, width), "w")
            return emit(b, "clip", emit(b, "matmul", x, weights), *clip_ends(b))
        case 7:
            return emit(b, "reduce_max", x, axes=(axis,), keepdims=True)
        case _:
            first, second, *more = (d.const for d in x.type.shape)
            return emit(b, "reshape", x, shape=shape(second, *more, first))


def clip_ends(b: GraphBuilder) -> tuple[Value, Value]:
    return b.constant(np.float32(-4), "low"), b.constant(np.float32(4), "high")


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_compute_the_same(seed: int) -> None:
    b = GraphBuilder("random")
    values = [b.input(name, tensor(F32, *RNG.integers(3, 7, 3))) for name in "xy"]
    for _ in range(12):
        values.append(random_node(b, values))
    last = values[-1]
    graph = b.finish([emit(b, "identity", cut(b, last, 0, last.type.shape[0].const - 1, 1))])
    new = check(graph)
    # The new graph reads these inputs through slices only, so other elements do not matter.
    feeds = feeds_of(graph)
    poisoned = {v.name: poison(new, v, feeds[v.name]) for v in new.inputs}
    for name, array in evaluate_graph(graph, feeds).items():
        np.testing.assert_array_equal(array, evaluate_graph(graph, poisoned)[name])


def poison(graph: Graph, value: Value, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns `array` with other numbers where no slice of `value` reads it."""
    readers = [node for node in graph.nodes if value in node.inputs]
    if any(node.op.name != "slice" for node in readers) or value in graph.outputs:
        return array
    result = np.full_like(array, 77)
    for node in readers:
        ends = zip(node.attrs.starts, node.attrs.steps, node.attrs.sizes, strict=True)
        at = np.ix_(*(s.const + step * np.arange(n.const) for s, step, n in ends))
        result[at] = array[at]
    return result


# ---- compiled ------------------------------------------------------------------------------------

ENCODER = """<ir_version: 10, opset_import: ["" : 20]> g
(float[2,9,16] x, float[16,16] q, float[16,16] k, float[16,16] v, float[16,32] w, float[32,16] u,
 float[16] g, float[16] s) => (float[2,16] y)
<int64 first = {0}> {
  n = LayerNormalization<axis=-1>(x, g, s)
  a = MatMul(n, q)
  b = MatMul(n, k)
  c = MatMul(n, v)
  t = Transpose<perm=[0,2,1]>(b)
  scores = MatMul(a, t)
  p = Softmax(scores)
  o = MatMul(p, c)
  r = Add(o, x)
  m = LayerNormalization<axis=-1>(r, g, s)
  h = MatMul(m, w)
  e = Relu(h)
  z = MatMul(e, u)
  f = Add(z, r)
  y = Gather<axis=1>(f, first)
}"""


def dims_of(value: Any) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_the_last_layer_of_a_classifier(numerics: str) -> None:
    model = parser.parse_model(ENCODER)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feeds = {
        v.name: RNG.standard_normal([d.dim_value for d in v.type.tensor_type.shape.dim]).astype(
            "f4"
        )
        for v in model.graph.input
    }
    (expected,) = session.run(None, feeds)
    output = tcc.compile(model, numerics=numerics).run(feeds)["y"]
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def test_positions_that_a_sum_combines_are_not_independent() -> None:
    def build(b: GraphBuilder) -> Value:
        x, w = b.input("x", tensor(F32, 1, 1, 9)), b.constant(matrix(1, 1, 3), "w")
        fields = {"strides": (1,), "dilations": (1,), "group": 1}
        return emit(b, "conv", x, w, before=shape(0), after=shape(0), **fields)

    node = graph_of(build).nodes[0]
    expr = node.op.expr(tuple(v and v.type for v in node.inputs), node.attrs)
    every = whole(node.outputs[0].type.shape)
    assert restricted(expr, 0, every) is not None
    assert restricted(expr, 0, (*every[:2], AxisPart(const(2), const(1)))) is None


@pytest.mark.parametrize("first_is_whole", [False, True])
def test_a_part_joined_with_the_whole_is_the_whole(first_is_whole: bool) -> None:
    """This also holds for a part that has all elements, but not in the same form."""
    m = maximum(symbol("m", 0) - 3, const(0)) * 2
    part, every = (AxisPart(const(0), const(-1) // m + 17),), whole((const(16),))
    assert part != every
    pair = (every, part) if first_is_whole else (part, every)
    assert joined(*pair, (const(16),)) == every


def test_no_size_is_divided_by_a_size_that_may_be_zero() -> None:
    """The index of the second transposed convolution's channels is divided by the image's size."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        layers (float[1, 16, h] x) => (float[1, 2, w] y, float[1, 32, v] z) {
            first = Constant <value = int64[1] {2}> ()
            last = Constant <value = int64[1] {-1}> ()
            axis = Constant <value = int64[1] {2}> ()
            s = Slice(x, first, last, axis)
            y = ConvTranspose <group = 2, pads = [0, 1], output_padding = [1], strides = [2]> (s, a)
            z = ConvTranspose <group = 16> (s, b)
        }""")
    for name, sizes in (("a", (16, 1, 2)), ("b", (16, 2, 1))):
        model.graph.initializer.append(numpy_helper.from_array(matrix(*sizes), name))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    module = tcc.compile(model)
    assert [y.shape for y in module(matrix(1, 16, 3))] == [(1, 2, 0), (1, 32, 0)]
    for size in (4, 9):
        feeds = {"x": matrix(1, 16, size)}
        for y, expected in zip(module(feeds["x"]), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_images_without_rows_divide_by_no_size(numerics: str) -> None:
    """A bound of the second convolution's channels would be divided by the number of pixels."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        layers (float[1, 1, h, w] x) => (float[1, 16, a, b] y) {
            s = Conv <strides = [2, 2]> (x, first)
            y = ConvTranspose
                <group = 4, pads = [0, 1, 0, 0], output_padding = [1, 2], strides = [2, 3]>
                (s, second)
        }""")
    for name, sizes in (("first", (4, 1, 2, 4)), ("second", (4, 4, 1, 4))):
        model.graph.initializer.append(numpy_helper.from_array(matrix(*sizes), name))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    module = tcc.compile(model, numerics=numerics)
    assert module(matrix(1, 1, 0, 13)).shape == (1, 16, 0, 17)
    for size in ((5, 9), (2, 4)):
        feeds = {"x": matrix(1, 1, *size)}
        (expected,) = session.run(None, feeds)
        np.testing.assert_allclose(module(feeds["x"]), expected, rtol=1e-4, atol=1e-4)
