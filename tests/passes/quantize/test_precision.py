"""Narrow modes store the right values in fewer bits, and round results there and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.graph import Graph, Value, carrier
from tcc.ir.index import symbol
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.types import BF16, F16, F32, I8, I64, DType, tensor
from tcc.ops.algebra.activation import GeluAttrs
from tcc.ops.algebra.movement import ConcatAttrs
from tcc.ops.composite.normalization import NormAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.derive.derive import derive
from tcc.passes.layout.assign import Placed
from tcc.passes.memory.plan_arena import plan_arena
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import lower_node
from tcc.passes.quantize import precision as precisions
from tcc.passes.quantize.precision import FULL, Precision
from tcc.passes.quantize.quantize_weights import group_size, quantized
from tcc.passes.quantize.round_stages import with_rounded
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.gpu.schedule import BlockProfile

from tests.closeness import assert_within
from tests.lib.oracle.program.evaluate import evaluate_program
from tests.passes.derive.bilinear.products import FREE
from tests.passes.fuse.models import Model
from tests.passes.placing import place_graph

Array = np.ndarray[Any, np.dtype[Any]]

PAIRS = Precision(BF16, pairs=True)
NO_PAIRS = Precision(BF16)


def bf16(array: Array) -> Array:
    return carrier(array.astype(np.float32), BF16).astype(np.float64)


def run(graph: Graph, precision: Precision, *inputs: Array) -> Array:
    """Returns the first output of the program in `precision`, by the evaluator."""
    planner = CoreChooser(CoreModel(16, 32))
    program, table, weights = lower_program(
        place_graph(graph, precision), planner, lower_node, precision
    )
    for bound in table.bounds:
        verify_kernel(bound.kernel)
    names = tuple(f"k{n}" for n in range(len(table.bounds)))
    planned = plan_arena(replace(program, kernels=names), arena_planner())
    section = np.concatenate([part() for part in weights.parts()])
    kernels = [b.kernel for b in table.bounds]
    return np.asarray(evaluate_program(planned, kernels, list(inputs), section)[0])


def stored(placed: Placed) -> dict[str, DType]:
    """Returns the types of the values that kernels write, by name."""
    kernels = [s.kernel for s in placed.steps if s.kernel is not None]
    return {v.name: v.type.dtype for k in kernels for v in k.results}


def constants(placed: Placed) -> list[DType]:
    """Returns the types of the constants that kernels read."""
    kernels = [s.kernel for s in placed.steps if s.kernel is not None]
    known = placed.graph.constants
    return [v.type.dtype for k in kernels for v in k.operands if v in known]


def array(graph: Graph, value: Value) -> Array:
    found = graph.constant(value)
    assert found is not None
    return found


def two_products(depth: int = 128) -> tuple[Graph, Value, Value]:
    """Returns relu(x @ v) @ w, and v and w."""
    m = Model("two")
    v, w = m.weight(depth, 128), m.weight(128, 40)
    hidden = m.op("relu", m.op("matmul", m.input("x", 5, depth), v))
    return m.finish(m.op("matmul", hidden, w)), v, w


def rows(graph: Graph) -> Array:
    shape = [d.const for d in graph.inputs[0].type.shape]
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def test_f32_changes_nothing() -> None:
    graph, _, _ = two_products()
    assert set(stored(place_graph(graph, FULL)).values()) == {F32}
    assert constants(place_graph(graph, FULL)) == [F32, F32]


def test_pairs_are_multiplied_where_both_factors_are_ours_to_store() -> None:
    graph, v, w = two_products()
    placed = place_graph(graph, PAIRS)
    between, last = stored(placed).values()
    assert (between, last) == (BF16, F32)
    assert constants(placed) == [BF16, BF16]  # the large constant, and the constant that pairs need
    x = rows(graph)
    hidden = bf16(np.maximum(x @ bf16(array(graph, v)), 0))
    want = hidden @ bf16(array(graph, w))
    got = run(graph, PAIRS, x)
    np.testing.assert_allclose(got, want, atol=2e-4)
    # The test would detect unrounded weights or an unrounded intermediate value.
    unrounded = np.maximum(x @ bf16(array(graph, v)), 0) @ bf16(array(graph, w))
    assert np.abs(got - unrounded).max() > 2e-3


def test_without_the_instruction_only_large_weights_are_narrow() -> None:
    graph, v, w = two_products()
    placed = place_graph(graph, NO_PAIRS)
    assert set(stored(placed).values()) == {F32}
    assert constants(placed) == [BF16, F32]
    x = rows(graph)
    want = np.maximum(x @ bf16(array(graph, v)), 0) @ array(graph, w)
    np.testing.assert_allclose(run(graph, NO_PAIRS, x), want, atol=2e-5)


def test_f16_weights_that_fit() -> None:
    graph, _, _ = two_products()
    assert constants(place_graph(graph, Precision(F16))) == [F16, F32]
    m = Model("large")
    big = m.builder.constant(np.full((128, 128), 1e6, np.float32), "w")
    graph = m.finish(m.op("matmul", m.input("x", 2, 128), big))
    assert constants(place_graph(graph, Precision(F16))) == [F32]
    assert constants(place_graph(graph, NO_PAIRS)) == [BF16]


def test_weights_that_a_run_uses_often_stay_exact() -> None:
    graph, _, _ = two_products()  # five rows
    assert constants(place_graph(graph, Precision(F16, uses=5))) == [F16, F32]
    assert constants(place_graph(graph, Precision(F16, uses=4.9))) == [F32, F32]
    assert constants(place_graph(graph, Precision(BF16, pairs=True, uses=1))) == [F32, BF16]


def test_symbolic_numbers_of_rows_may_be_small() -> None:
    m = Model("open")
    graph = m.finish(m.op("matmul", m.input("x", symbol("n"), 128), m.weight(128, 128)))
    assert constants(place_graph(graph, Precision(F16, uses=1))) == [F16]


def test_every_result_of_a_window_uses_its_weights() -> None:
    m = Model("windows")
    graph = m.finish(m.conv(m.input("x", 1, 64, 5, 5), 64, 3, bias=False))
    assert constants(place_graph(graph, Precision(F16, uses=9))) == [F16]
    assert constants(place_graph(graph, Precision(F16, uses=8))) == [F32]


@pytest.mark.parametrize("precision", [PAIRS, NO_PAIRS, Precision(F16)], ids=str)
def test_transformed_filters_stay_exact(precision: Precision) -> None:
    """The error of rounded transformed filters would show against the direct sums."""
    m = Model("transformed")
    x = m.input("x", 1, 64, 8, 8)
    graph = m.finish(m.conv(m.op("relu", x), 64, 3, pad=1, bias=False))
    faster = derive(graph, FREE)
    assert len(faster.nodes) > len(graph.nodes)
    placed = place_graph(faster, precision)
    assert constants(placed) == [F32, F32]  # of the transform, and of direct sums
    assert {t for t in stored(placed).values() if t.is_float} == {F32}
    image = rows(graph)
    np.testing.assert_allclose(run(faster, precision, image), run(graph, FULL, image), atol=1e-4)


@pytest.mark.parametrize("precision", [PAIRS, NO_PAIRS, Precision(F16)], ids=str)
def test_rows_of_a_table_are_exact(precision: Precision) -> None:
    m = Model("table")
    table, ids = m.weight(500, 64), m.input("ids", 3, dtype=I64)
    graph = m.finish(m.op("gather", table, ids, attrs=AxisAttrs(0)))
    wanted = np.array([4, 0, 499])
    np.testing.assert_array_equal(run(graph, precision, wanted), array(graph, table)[wanted])


@pytest.mark.parametrize("depth", [130, 131])
def test_odd_depths(depth: int) -> None:
    graph, v, w = two_products(depth)
    x = rows(graph)
    want = bf16(np.maximum(x @ bf16(array(graph, v)), 0)) @ bf16(array(graph, w))
    np.testing.assert_allclose(run(graph, PAIRS, x), want, atol=2e-4)


def test_everything_but_products_is_computed_in_f32() -> None:
    """No matmul reads the operand of the residual sum, so it is not rounded."""
    m = Model("residual")
    x, w, u = m.input("x", 4, 64), m.weight(64, 256), m.weight(256, 64)
    first = m.op("gelu", m.op("matmul", x, w), attrs=GeluAttrs("tanh"))
    second = m.op("matmul", first, u)
    total = m.op("add", second, x)
    graph = m.finish(total)
    types = stored(place_graph(graph, PAIRS))
    assert list(types.values()) == [BF16, F32]


def test_images_keep_their_halo() -> None:
    m = Model("images")
    x = m.input("x", 1, 4, 9, 11)
    first = m.op("relu", m.conv(x, 32, 3, pad=1))
    graph = m.finish(m.conv(first, 16, 3, pad=1))
    placed = place_graph(graph, PAIRS)
    assert BF16 in stored(placed).values()
    image = rows(graph)
    full, narrow = run(graph, FULL, image), run(graph, PAIRS, image)
    error = np.abs(full - narrow).max() / np.abs(full).max()
    assert 1e-5 < error < 2e-2


def joined_images() -> Graph:
    """Returns two convolutions whose concatenation a third convolution reads."""
    m = Model("joined")
    x = m.input("x", 1, 4, 9, 11)
    a, b = (m.op("relu", m.conv(x, n, 1)) for n in (32, 16))
    return m.finish(m.conv(m.op("concat", a, b, attrs=ConcatAttrs(1)), 16, 3, pad=1))


def test_parts_and_their_whole_are_stored_in_one_type() -> None:
    graph = joined_images()
    placed = place_graph(graph, PAIRS)
    assert {v.type.dtype for pair in placed.containers.items() for v in pair} == {BF16}
    assert len(placed.containers) == 2
    assert {*placed.containers, *placed.containers.values()} <= {*placed.layouts}
    image = rows(graph)
    full, narrow = run(graph, FULL, image), run(graph, PAIRS, image)
    error = np.abs(full - narrow).max() / np.abs(full).max()
    assert 1e-5 < error < 2e-2


def test_a_part_stays_in_f32_where_its_whole_does() -> None:
    """A matmul reads the part, and the caller the whole."""
    m = Model("shown")
    x, y = m.input("x", 6, 32), m.input("y", 6, 32)
    a, b = (m.op("relu", m.op("matmul", v, m.weight(32, 64))) for v in (x, y))
    whole = m.op("concat", a, b, attrs=ConcatAttrs(0))
    w = m.weight(64, 40)
    graph = m.finish(whole, m.op("matmul", a, w))
    placed = place_graph(graph, PAIRS)
    assert {v.type.dtype for pair in placed.containers.items() for v in pair} == {F32}
    assert len(placed.containers) == 2
    alone = replace(graph, outputs=graph.outputs[1:])
    assert BF16 in stored(place_graph(alone, PAIRS)).values()


def test_depthwise_images_stay_in_f32() -> None:
    """No sum runs along the channels there; a dense window reads the padded copy of the image."""
    m = Model("depthwise")
    x = m.input("x", 1, 4, 9, 9)
    first = m.op("relu", m.conv(x, 32, 3, pad=1))
    second = m.conv(first, 32, 3, pad=1, group=32)
    graph = m.finish(m.op("add", second, first))  # a second reader, for which the image is stored
    assert list(stored(place_graph(graph, PAIRS)).values()) == [BF16, F32, F32]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("depth", [128, 48, 131])
def test_integer_weights(bits: int, depth: int) -> None:
    m = Model("integers")
    w = m.weight(depth, 384)
    graph = m.finish(m.op("matmul", m.input("x", 3, depth), w))
    precision = Precision(bits=bits)
    assert constants(place_graph(graph, precision)) == [I8, BF16]
    x, weights = rows(graph), array(graph, w)
    found = quantized(weights, 0, 8 if depth % 2 else bits)
    assert found is not None
    scales = np.repeat(found[1].astype(np.float64), group_size(depth), 0)
    got = run(graph, precision, x)
    np.testing.assert_allclose(got, x @ (found[0] * scales), atol=2e-5)
    assert np.abs(got - x @ weights).max() > 1e-3


def test_integer_weights_of_a_transposed_matrix() -> None:
    m = Model("turned")
    w = m.weight(384, 64)
    graph = m.finish(m.op("matmul", m.input("x", 2, 64), m.transpose(w, 1, 0)))
    x, weights = rows(graph), array(graph, w)
    found = quantized(weights, 1, 4)
    assert found is not None
    want = x @ (found[0] * np.repeat(found[1].astype(np.float64), 32, 1)).T
    np.testing.assert_allclose(run(graph, Precision(bits=4), x), want, atol=2e-5)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows_of_x", [1, 2, 16])
def test_weights_are_integers_where_a_gpu_sums_in_parts(rows_of_x: int, bits: int) -> None:
    depth, precision = 8192, Precision(bits=bits)
    m = Model("parts")
    w = m.weight(depth, 64)
    graph = m.finish(m.op("matmul", m.input("x", rows_of_x, depth), w))
    placed = place_graph(graph, precision, model=BlockChooser(BlockProfile(processors=100)))
    assert len(placed.kernels) == 2
    assert constants(placed) == [I8, BF16]
    x, weights = rows(graph), array(graph, w)
    levels = quantized(weights, 0, bits)
    assert levels is not None
    values = {graph.inputs[0]: x}
    values |= {v: array(placed.graph, v) for v in placed.graph.constants if v != w}
    for kernel in placed.kernels:
        results = evaluate_expr(kernel.expr, [values[v] for v in kernel.operands])
        values.update(zip(kernel.results, results, strict=True))
    rounded = levels[0] * np.repeat(levels[1].astype(np.float64), group_size(depth), 0)
    bound = 2.0**-20 * (np.abs(x.astype(np.float64)) @ np.abs(rounded)).max()
    np.testing.assert_allclose(values[graph.outputs[0]], x @ rounded, rtol=0, atol=bound)


def test_small_and_convolution_weights_are_not_integers() -> None:
    m = Model("small")
    graph = m.finish(m.op("matmul", m.input("x", 2, 64), m.weight(64, 64)))
    assert constants(place_graph(graph, Precision(bits=8))) == [F32]
    m = Model("windows")
    graph = m.finish(m.conv(m.input("x", 1, 64, 5, 5), 64, 3, pad=1, bias=False))
    assert constants(place_graph(graph, Precision(bits=8))) == [F32]


def test_a_window_of_one_place_is_a_matrix_where_there_is_one_place() -> None:
    for side, types in ((1, [I8, BF16]), (4, [F32])):
        m = Model("pointwise")
        x = m.input("x", 1, 256, side, side)
        graph = m.finish(m.conv(x, 128, 1, bias=False))
        assert constants(place_graph(graph, Precision(bits=8))) == types


# ---- values between stages of one kernel ---------------------------------------------------------

# Half the distance between neighbouring bf16 numbers, relative to the smaller.
HALF = 2.0**-8


def kernel_count(placed: Placed) -> int:
    return sum(s.kernel is not None for s in placed.steps)


def normalised(x: Array) -> Array:
    """Returns rows of mean 0 and variance 1, in f64."""
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5))


def rounding_bound(a: Array, b: Array) -> Array:
    """Returns a bound of the error of a f32 matmul with operands rounded to bf16, if `a` itself has
    an error of 16 f32 roundings."""
    products, depth = np.abs(a) @ np.abs(b), a.shape[-1]
    factors = (1 + HALF) ** 2 * (1 + 16 * 2.0**-24) - 1
    sums = depth * 2.0**-24 / (1 - depth * 2.0**-24)
    return np.asarray(products * (factors + sums * (1 + factors)))


def rows_and_product(op: str, attrs: Any, *constants: float) -> Graph:
    """Returns op(x, constants) @ w."""
    m = Model("rows")
    vectors = (m.builder.constant(np.full(64, v, np.float32), "c") for v in constants)
    made = m.op(op, m.input("x", 16, 64), *vectors, attrs=attrs)
    return m.finish(m.op("matmul", made, m.weight(64, 256)))


def weight_of(graph: Graph) -> Array:
    return max((array(graph, v) for v in graph.constants), key=lambda a: a.size)


def test_a_norm_and_its_product_share_a_kernel_and_multiply_pairs() -> None:
    graph = rows_and_product("layer_normalization", NormAttrs(1), 1, 0)
    placed = place_graph(graph, replace(PAIRS, uses=1))
    assert kernel_count(placed) == 1
    assert BF16 in constants(placed)
    assert BF16 not in constants(place_graph(graph, replace(NO_PAIRS, uses=1)))
    x, w = rows(graph), weight_of(graph).astype(np.float64)
    n, got = normalised(x), run(graph, PAIRS, x)
    assert np.all(np.abs(got - n @ w) <= rounding_bound(n, w))
    # Both operands are rounded like stored values, and nothing else is.
    assert np.median(np.abs(got - bf16(n) @ bf16(w))) < 1e-5
    assert np.median(np.abs(got - n @ bf16(w))) > 1e-3
    assert np.median(np.abs(got - bf16(n) @ w)) > 1e-3


def test_other_readers_of_a_rounded_factor_see_the_exact_value() -> None:
    """The exponentials of a softmax are multiplied and summed; the sums use the exact values."""
    graph = rows_and_product("softmax", AxisAttrs(1))
    assert kernel_count(place_graph(graph, PAIRS)) == 1
    x, w = rows(graph), bf16(weight_of(graph))
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    got = run(graph, PAIRS, x)
    totals = e.sum(-1, keepdims=True)
    assert np.median(np.abs(got - bf16(e) @ w / totals)) < 1e-7
    assert np.median(np.abs(got - bf16(e) @ w / bf16(e).sum(-1, keepdims=True))) > 1e-6


def heads(width: int) -> Graph:
    """Returns four heads of `width` columns, computed separately, side by side in a matmul."""
    m = Model("heads")
    a, b = m.input("a", 1, 4, 5, 8), m.input("b", 1, 4, 8, width)
    together = m.transpose(m.op("matmul", a, b), 0, 2, 1, 3)
    y = m.reshape(together, 5, 4 * width)
    return m.finish(m.op("matmul", y, m.weight(4 * width, 128)))


@pytest.mark.parametrize("width", [16, 15])
def test_pairs_of_one_head_are_multiplied(width: int) -> None:
    """Pairs that span two heads are not adjacent, so that their matmul stays in f32."""
    graph = heads(width)
    paired = width % 2 == 0
    assert constants(place_graph(graph, PAIRS)) == [BF16 if paired else F32]
    rng = np.random.default_rng(7)
    shapes = [[d.const for d in v.type.shape] for v in graph.inputs]
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    w = weight_of(graph).astype(np.float64)
    y = (a.astype(np.float64) @ b).transpose(0, 2, 1, 3).reshape(5, 4 * width)
    error = np.abs(run(graph, PAIRS, a, b) - y @ w)
    assert np.all(error <= rounding_bound(y, w))
    assert (error.max() > 1e-3) == paired


def test_a_sum_is_rounded_in_a_stage_of_its_own() -> None:
    """A sum cannot be rounded where it is accumulated; other readers see the unrounded sum."""
    builder = ExprBuilder(tensor(F32, 6, 8), tensor(F32, 6, 4))
    i, j, d = builder.iters(6, 4, 8)
    total = builder.stage((i,), builder.read(0, i, d), over=(d,), monoid="sum")
    product = builder.read(total, i) * builder.read(1, i, j)
    summed = builder.stage((j,), product, over=(i,), monoid="sum")
    twice = builder.stage((i,), builder.read(total, i) * 2)
    expr = with_rounded(builder.done(summed, twice), {total: frozenset({summed.stage})}, BF16)
    rng = np.random.default_rng(9)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 8), (6, 4)))
    got = evaluate_expr(expr, [x, w])
    sums, magnitudes = x.astype(np.float64).sum(-1), np.abs(x).sum(-1)
    bound = 1e-6 * (magnitudes @ np.abs(w))
    assert_within(got[0], bf16(sums) @ w, bound)
    assert_within(got[1], 2 * sums, 1e-6 * magnitudes)
    assert np.any(np.abs(got[0] - sums @ w) > 100 * bound)


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (3, 4)])
def test_the_sum_of_bytes_takes_arrays_of_any_rank(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert precisions._byte_sum((array, array)) == 2 * sum(array.tobytes())
