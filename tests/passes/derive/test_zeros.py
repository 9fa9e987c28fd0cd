"""Products with zeros and repeats of constants: what leaves them out exactly, and what may not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import index_value
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import symbol
from tcc.ir.types import F32
from tcc.ops import OPS
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.passes.derive.repeats import kronecker_factors, repeated_rows
from tcc.passes.derive.zeros import skip_zeros
from tcc.passes.graph.emit import express

from tests.draws import RNG
from tests.passes.fuse.models import Model

from .site_cases import MATRICES, by_matrix, masked, one_hot, without_zeros

Array = np.ndarray[Any, np.dtype[Any]]
Agree = Callable[..., None]


def way(number: int) -> Callable[[Sequence[Graph]], int]:
    """Takes alternative `number` of a site, whatever it costs; none where there are fewer."""
    return lambda graphs: number if number < len(graphs) else 0


def results(graph: Graph, feeds: dict[str, Array]) -> Array:
    with np.errstate(all="ignore"):
        (y,) = evaluate_graph(graph, feeds).values()
    return y


def matrix_with_zeros(seed: int) -> Array:
    """A matrix of whole numbers with ranges of rows, blocks, or single numbers in columns."""
    rng = np.random.default_rng(seed)
    rows, columns = (int(n) for n in rng.choice((6, 8, 12, 16, 24), 2))
    k, j = np.arange(rows)[:, None], np.arange(columns)
    width = int(rng.integers(1, 5))
    kept = (
        abs(k - j * int(rng.integers(1, 3)) - int(rng.integers(-3, 4))) < width,
        k // width == j // width,
        k <= j,
        k == rng.integers(0, rows, columns),
        (k >= width) & (j >= width),
        rng.random((rows, columns)) < 0.2,
    )[seed % 6]
    return np.where(kept, rng.integers(-4, 5, (rows, columns)), 0).astype(np.float32)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("seed", range(18))
def test_every_way_gives_the_same_numbers(seed: int, number: int) -> None:
    """Also where an entry beside the structure is not 0, and with an infinity or a NaN."""
    matrix = matrix_with_zeros(seed)
    if seed % 2:
        matrix[tuple(RNG.integers(0, matrix.shape))] = 7
    x = RNG.integers(-8, 9, (5, len(matrix))).astype(np.float32)
    graph = by_matrix(matrix, 5)
    after = skip_zeros(graph, way(number))
    want = x.astype(np.float64) @ matrix
    got = results(after, {"x": x})
    assert np.array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(results(graph, {"x": x})))
    x[2, int(RNG.integers(len(matrix)))] = RNG.choice([np.nan, np.inf])
    finite = np.isfinite(results(graph, {"x": x}))
    assert np.array_equal(np.isfinite(results(after, {"x": x})), finite)


@pytest.mark.parametrize(
    "name",
    ["permutation", "blocks", "band", "zero rows", "upper ones", "repeated columns", "Kronecker"],
)
def test_compiled_results_are_the_same(name: str, agree: Agree) -> None:
    graph = by_matrix(MATRICES[name], 3)
    after = without_zeros(graph)
    assert after is not graph
    agree(graph, after, tolerance=1e-5)


def triangle(upper: bool, strict: bool, seed: int) -> Array:
    """A matrix whose rows, in any order, have a number from a column on or up to a column."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 40))
    ones = (np.triu if upper else np.tril)(np.ones((n, n + 2)), (1 if upper else -1) * strict)
    return (ones * rng.integers(1, 5, n)[:, None])[rng.permutation(n)].astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_triangles_become_running_sums(upper: bool, strict: bool, seed: int) -> None:
    """Zeros of a triangle still make NaN of infinities."""
    matrix = triangle(upper, strict, seed)
    graph = by_matrix(matrix, 3)
    after = skip_zeros(graph, lambda graphs: len(graphs) - 1)
    assert "cum_sum" in [node.op.name for node in after.nodes]
    x = RNG.integers(-8, 9, (3, len(matrix))).astype(np.float32)
    assert np.array_equal(results(after, {"x": x}), x.astype(np.float64) @ matrix)
    x[1, int(RNG.integers(len(matrix)))] = RNG.choice([np.nan, np.inf])
    finite = np.isfinite(results(graph, {"x": x}))
    assert np.array_equal(np.isfinite(results(after, {"x": x})), finite)


@pytest.mark.parametrize("seed", range(4))
def test_other_triangles_are_multiplied(seed: int) -> None:
    """A number that differs from the others of its row is no step of a running sum."""
    matrix = triangle(bool(seed % 2), False, seed)
    places = np.argwhere(matrix if seed < 2 else matrix == 0)
    row, column = places[(places[:, 1] > 1) & (places[:, 1] < len(matrix) - 1)][seed]
    matrix[row, column] += 0.5
    after = skip_zeros(by_matrix(matrix, 3), lambda graphs: len(graphs) - 1)
    assert "cum_sum" not in [node.op.name for node in after.nodes]


def test_numbers_that_end_are_no_running_sum() -> None:
    """A running sum would subtract them again, and lose the digits of smaller ones."""
    matrix = np.array([[1e8, 1e8, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0]], np.float32)
    for number in (1, 2, 3, 4):
        after = skip_zeros(by_matrix(matrix, 3), way(number))
        assert "cum_sum" not in [node.op.name for node in after.nodes]


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("operand", ["a", "b"])
def test_masks_keep_infinities_and_nan(axes: tuple[int, ...], operand: str) -> None:
    graph = masked(axes, 12)
    after = skip_zeros(graph, way(1))
    assert after is not graph
    feeds = {v: RNG.integers(-3, 4, (12, 12)).astype(np.float32) for v in "ab"}
    want = (np.eye(12) * (feeds["a"].astype(np.float64) @ feeds["b"])).sum(axes)
    assert np.array_equal(results(after, feeds), want)
    feeds[operand][3, 5] = np.inf
    finite = np.isfinite(results(graph, feeds))
    assert np.array_equal(np.isfinite(results(after, feeds)), finite)


def test_a_masked_sum_keeps_values_for_the_other_columns() -> None:
    m = Model("trace")
    x, eye = m.input("x", 6, 6), m.builder.constant(np.eye(6, dtype=np.float32), "eye")
    attrs = ReduceAttrs((0, 1), False)
    graph = m.finish(m.op("reduce_sum", m.op("mul", x, eye), attrs=attrs))
    after = skip_zeros(graph, way(1))
    assert after is not graph
    array = RNG.integers(-4, 5, (6, 6)).astype(np.float32)
    assert results(after, {"x": array}) == np.trace(array)
    array[1, 4] = np.inf
    assert np.isnan(results(after, {"x": array}))


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_sums_of_several_products_give_the_same_numbers(seed: int, number: int) -> None:
    """A bias, a second matrix, a mask of the result, and another order of the factors."""
    a, c = matrix_with_zeros(seed), matrix_with_zeros(seed + 7)
    between = RNG.integers(-2, 3, (a.shape[1], c.shape[0])).astype(np.float32)
    bias, mask = (RNG.integers(0, 2, c.shape[1]).astype(np.float32) for _ in range(2))
    m = Model("several")
    x = m.input("x", 2, 3, len(a))
    a_, between_, c_, bias_, mask_ = (m.builder.constant(w) for w in (a, between, c, bias, mask))
    y = m.op("matmul", m.op("matmul", x, a_), between_)
    y = m.op("mul", m.op("add", m.op("matmul", y, c_), bias_), mask_)
    graph = m.finish(m.op("reduce_sum", y, attrs=ReduceAttrs((1,), False)))
    after = skip_zeros(graph, way(number))
    array = RNG.integers(-3, 4, (2, 3, len(a)))
    want = ((array.astype(np.float64) @ a @ between @ c + bias) * mask).sum(1)
    assert np.array_equal(results(after, {"x": array.astype(np.float32)}), want)


def convolution() -> Graph:
    """A 1 x 1 convolution that exchanges channels."""
    m = Model("convolution")
    w = np.eye(8, dtype=np.float32)[::-1].reshape(8, 8, 1, 1).copy()
    x = m.input("x", 2, 8, 3, 3)
    attrs = OPS["conv"].attrs((1, 1), (0, 0), (0, 0), (1, 1), 1)
    return m.finish(m.op("conv", x, m.builder.constant(w, "w"), None, attrs=attrs))


def batches() -> Graph:
    m = Model("batches")
    w = np.kron(np.eye(3), np.ones((2, 4))).astype(np.float32)
    x = m.input("x", symbol("n", 1), 2, 6)
    return m.finish(m.op("matmul", x, m.builder.constant(w, "w")))


def from_the_left() -> Graph:
    m = Model("from_the_left")
    w = np.tril(np.ones((8, 8), np.float32))
    return m.finish(m.op("matmul", m.builder.constant(w, "w"), m.input("x", 8, 5)))


@pytest.mark.parametrize("model", [convolution, batches, from_the_left])
def test_other_sums_of_products_leave_zeros_out(model: Callable[[], Graph]) -> None:
    graph = model()
    after = skip_zeros(graph, way(1))
    assert after is not graph
    shape = [d.const if not d.terms else 3 for d in graph.inputs[0].type.shape]
    x = RNG.integers(-4, 5, shape).astype(np.float32)
    assert np.array_equal(results(after, {"x": x}), results(graph, {"x": x}))


def test_rows_at_positions_are_read(agree: Agree) -> None:
    """A position outside of the table gives zeros; no result is a negative zero."""
    graph = one_hot(8, 20, 6, last=-0.0)
    after = without_zeros(graph)
    assert "gather" in [node.op.name for node in after.nodes]
    index = np.array([[0, 19, 20, -1], [5, 5, 1 << 40, -(1 << 40)]])
    (table,) = (a for a in map(graph.store.common, graph.constants.values()) if a.shape == (20, 6))
    want = (index[..., None] == np.arange(20)).astype(np.float64) @ table
    got = results(after, {"index": index})
    assert np.array_equal(got, want)
    assert not np.signbit(got).any()
    agree(graph, after, tolerance=0)


@pytest.mark.parametrize(
    "other", [{"on": 2.0}, {"off": 1e-3}, {"first": 1}, {"last": np.inf}, {"last": np.nan}]
)
def test_rows_that_are_not_one_hot_are_multiplied(other: dict[str, float]) -> None:
    graph = one_hot(8, 20, 6, **other)  # type: ignore[arg-type]
    assert skip_zeros(graph, way(1)) is graph


def test_a_node_without_operands_is_no_lookup() -> None:
    m = Model("counted")
    b = ExprBuilder()
    i, k = b.iters(4, 20)
    (matrix,) = express(m.builder, b.finish((i, k), index_value(i + k, F32)))
    graph = m.finish(m.op("matmul", matrix, m.weight(20, 6)))
    assert skip_zeros(graph, way(1)) is graph


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_constants_that_are_not_finite_stay(value: float) -> None:
    matrix = np.eye(16)
    matrix[3, 3] = value
    graph = by_matrix(matrix)
    assert skip_zeros(graph, way(1)) is graph


def with_repeated_columns(seed: int) -> Array:
    rng = np.random.default_rng(seed)
    columns = rng.integers(-8, 9, (12, 9)).astype(np.float32)
    return columns[:, rng.integers(0, 9, 20)]


@pytest.mark.parametrize("seed", range(4))
def test_a_column_that_repeats_is_multiplied_once(seed: int) -> None:
    """Infinities and NaN reach the same results as before."""
    matrix = with_repeated_columns(seed)
    graph = by_matrix(matrix, 5)
    after = skip_zeros(graph, lambda graphs: len(graphs) - 1)
    assert "gather" in [node.op.name for node in after.nodes]
    (table,) = (a for a in map(after.store.common, after.constants.values()) if a.ndim > 1)
    assert table.shape == np.unique(matrix, axis=1).shape
    x = RNG.integers(-8, 9, (5, 12)).astype(np.float32)
    assert np.array_equal(results(after, {"x": x}), x.astype(np.float64) @ matrix)
    x[1, 3], x[2, 4], x[4, :2] = np.inf, np.nan, (np.inf, -np.inf)
    want = results(graph, {"x": x})
    assert np.array_equal(results(after, {"x": x}), want, equal_nan=True)


@pytest.mark.parametrize("row", range(12))
def test_a_column_that_differs_in_one_number_is_multiplied(row: int) -> None:
    """Also where the number lies between the rows that are compared first."""
    matrix = np.repeat(np.arange(1.0, 21.0)[None], 120, 0).repeat(2, 1)
    x = RNG.integers(-8, 9, (5, 120)).astype(np.float32)
    matrix[row * 10 + 3, 7] += 0.5
    after = skip_zeros(by_matrix(matrix, 5), way(1))
    assert np.array_equal(results(after, {"x": x}), x.astype(np.float64) @ matrix)
    matrix[5, 8] = np.nan
    graph = by_matrix(matrix, 5)
    assert skip_zeros(graph, way(1)) is graph


def test_zeros_of_other_signs_are_other_columns() -> None:
    matrix = np.array([[0.0], [-0.0]] * 4, np.float32)
    pair = repeated_rows(matrix)
    assert pair is not None
    rows, labels = pair
    assert rows[labels].tobytes() == matrix.tobytes()


def repeated_channels() -> Graph:
    """A 1 x 1 convolution with two equal channels."""
    m = Model("channels")
    w = RNG.integers(1, 9, (4, 8, 1, 1)).astype(np.float32).repeat(2, 0)
    x = m.input("x", 2, 8, 3, 3)
    attrs = OPS["conv"].attrs((1, 1), (0, 0), (0, 0), (1, 1), 1)
    return m.finish(m.op("conv", x, m.builder.constant(w, "w"), None, attrs=attrs))


def repeated_rows_from_the_left() -> Graph:
    m = Model("left")
    w = RNG.integers(1, 9, (4, 8)).astype(np.float32)[[0, 3, 1, 1, 2, 3, 0, 0]]
    return m.finish(m.op("matmul", m.builder.constant(w, "w"), m.input("x", 8, symbol("n", 1))))


@pytest.mark.parametrize("model", [repeated_channels, repeated_rows_from_the_left])
def test_columns_of_other_sums_of_products_repeat(model: Callable[[], Graph]) -> None:
    graph = model()
    after = skip_zeros(graph, lambda graphs: len(graphs) - 1)
    assert "gather" in [node.op.name for node in after.nodes]
    shape = [d.const if not d.terms else 3 for d in graph.inputs[0].type.shape]
    x = RNG.integers(-4, 5, shape).astype(np.float32)
    assert np.array_equal(results(after, {"x": x}), results(graph, {"x": x}))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_kronecker_products_are_computed_by_factors(seed: int, number: int) -> None:
    """Results that are infinite or NaN are so afterwards, also where a factor has zeros."""
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(1 - 4 * (seed % 2), 8, rng.integers(2, 6, 2)) for _ in range(2))
    matrix = np.kron(a * 3, b * 0.25).astype(np.float32)
    factors = kronecker_factors(matrix)
    assert factors is not None
    assert np.array_equal(np.kron(*factors), matrix)
    graph = by_matrix(matrix, 5)
    after = skip_zeros(graph, way(number))
    assert after is not graph
    x = RNG.integers(-8, 9, (5, len(matrix))).astype(np.float32)
    assert np.array_equal(results(after, {"x": x}), x.astype(np.float64) @ matrix)
    x[1, 1], x[2, -1] = np.inf, np.nan
    finite = np.isfinite(results(graph, {"x": x}))
    assert np.array_equal(np.isfinite(results(after, {"x": x})), finite)


@pytest.mark.parametrize("seed", range(12))
def test_one_other_entry_is_no_kronecker_product(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = np.kron(rng.integers(1, 8, (4, 6)), rng.integers(1, 8, (6, 4))).astype(np.float32)
    matrix[tuple(rng.integers(0, 24, 2))] *= 1 + 2.0**-20
    assert kronecker_factors(matrix) is None
    graph = by_matrix(matrix, 5)
    assert skip_zeros(graph, way(1)) is graph


@pytest.mark.parametrize("value", [np.inf, np.nan, 0.0, 1e-45, 3e38])
def test_extreme_blocks_are_compared_exactly(value: float) -> None:
    matrix = np.kron(np.array([[1, value]]), np.ones((2, 2))).astype(np.float32)
    pair = kronecker_factors(matrix)
    assert pair is None or np.array_equal(np.kron(*pair), matrix)


def test_dense_and_dearer_products_stay() -> None:
    dense = by_matrix(RNG.uniform(1, 2, (64, 64)))
    assert skip_zeros(dense, way(1)) is dense
    scattered = by_matrix(np.where(RNG.random((64, 64)) < 0.3, 1.0, 0.0))
    assert without_zeros(scattered) is scattered
    small = by_matrix(np.tril(np.ones((16, 16))), 1)
    assert without_zeros(small) is small
