"""The graph evaluator agrees with hand-computed results."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tcc.errors import InternalError, UserError
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr import evaluate as module
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import apply, index_value, literal
from tcc.ir.graph import Graph, GraphBuilder, Node
from tcc.ir.graph.evaluate import GraphEvaluator, evaluate_graph
from tcc.ir.index import const, symbol
from tcc.ir.op import Arrays, OpSpec, OutArrays
from tcc.ir.types import BOOL, F32, I64, tensor

Ops = Mapping[str, OpSpec]
N = symbol("n", 1, 64, 2)


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def test_absent_operands_and_inputs_as_outputs(ops: Ops) -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, N))
    (y,) = b.add(ops["add"], [x, x], names=["y"])
    (z,) = b.add(ops["optional"], [None, y], names=["z"])
    outputs = evaluate_graph(b.finish([z, x]), {"x": f32(1, 2)})
    np.testing.assert_array_equal(outputs["z"], [2, 4])
    np.testing.assert_array_equal(outputs["x"], [1, 2])


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.zeros((2, 2), np.float64), "has type float64, f32 \\(as float32\\) is due"),
        (np.zeros(2, np.float32), "rank 1"),
        (np.zeros((3, 6), np.float32), "a multiple of 2 is due for n"),
        (np.zeros((66, 132), np.float32), r"n in \[1,64\] is due"),
        (np.zeros((2, 6), np.float32), r"2\*n = 4 is due"),
    ],
)
def test_refuses_inputs_that_do_not_fit(ops: Ops, array: np.ndarray[Any, Any], why: str) -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, N, 2 * N))
    with pytest.raises(UserError) as caught:
        evaluate_graph(b.finish([x]), {"x": array})
    assert caught.match("does not fit")
    with pytest.raises(UserError):
        evaluate_graph(b.finish([x]), {})
    assert re.search(why, caught.value.why)


def test_solves_linear_dimensions(ops: Ops) -> None:
    b = GraphBuilder("g")
    b.input("x", tensor(F32, 3 * N + 1))
    (y,) = b.add(ops["fill"], [], ops["fill"].attrs((N, N)), names=["y"])
    assert evaluate_graph(b.finish([y]), {"x": np.zeros(13, np.float32)})["y"].shape == (4, 4)
    with pytest.raises(UserError):
        evaluate_graph(b.finish([y]), {"x": np.zeros(12, np.float32)})


def test_names_the_node_whose_result_does_not_fit(ops: Ops) -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, N))
    (y,) = b.add(ops["wrong"], [x], loc="layer.3/bad")
    with pytest.raises(InternalError, match=r"wrong at layer\.3/bad"):
        evaluate_graph(b.finish([y]), {"x": f32(1, 2)})


def test_binds_data_dependent_sizes(ops: Ops) -> None:
    count, rows = symbol("count"), symbol("rows", 0, 8)
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, N))
    (where,) = b.add(ops["nonzero"], [x], ops["nonzero"].attrs(count), names=["where"])
    (flat,) = b.add(
        ops["reshape"], [where], ops["reshape"].attrs((count, const(1))), names=["flat"]
    )
    shape = b.input("shape", tensor(I64, 2))
    b.add(ops["bind_size"], [shape], ops["bind_size"].attrs(rows, 1))
    (filled,) = b.add(ops["fill"], [], ops["fill"].attrs((rows, count)), names=["filled"])
    graph = b.finish([flat, filled])
    outputs = evaluate_graph(graph, {"x": f32(0, 5, 0, 7), "shape": np.array([9, 3])})
    np.testing.assert_array_equal(outputs["flat"], [[1], [3]])
    np.testing.assert_array_equal(outputs["filled"], np.full((3, 2), 3))
    with pytest.raises(UserError, match="computed size"):
        evaluate_graph(graph, {"x": f32(0, 5, 0, 7), "shape": np.array([3, 9])})


def test_if_reads_the_values_around_it(ops: Ops) -> None:
    b = GraphBuilder("g")
    flag, x = b.input("flag", tensor(BOOL)), b.input("x", tensor(F32, N))
    (twice,) = b.add(ops["add"], [x, x])
    bodies = []
    for name in ("add", "mul"):
        inner = GraphBuilder(name, parent=b)
        bodies.append(inner.finish(inner.add(ops[name], [twice, x])))
    (y,) = b.add(ops["if"], [flag], ops["if"].attrs(*bodies), names=["y"])
    graph = b.finish([y])
    for value, expected in ((True, [3, 6]), (False, [2, 8])):
        outputs = evaluate_graph(graph, {"flag": np.array(value), "x": f32(1, 2)})
        np.testing.assert_array_equal(outputs["y"], expected)


def _powers(ops: Ops, with_trip: bool, with_cond: bool) -> Graph:
    """Returns a graph that doubles x while it is below 20; each value is also a row of the second
    output."""
    b = GraphBuilder("g")
    x, trip, cond = (b.input(n, t) for n, t in (
        ("x", tensor(F32)), ("trip", tensor(I64, 1)), ("cond", tensor(BOOL))))  # fmt: skip
    top = b.constant(np.array(20, np.float32))
    body = GraphBuilder("body", parent=b)
    body.input("i", tensor(I64))
    body.input("go", tensor(BOOL))
    state = body.input("state", tensor(F32))
    (double,) = body.add(ops["add"], [state, state])
    (low,) = body.add(ops["less"], [double, top])
    attrs = ops["loop"].attrs(body.finish([low, double, double]))
    inputs = [trip if with_trip else None, cond if with_cond else None, x]
    last, rows = b.add(ops["loop"], inputs, attrs, names=["last", "rows"])
    return b.finish([last, rows])


@pytest.mark.parametrize(
    ("with_trip", "with_cond", "trip", "cond", "rows"),
    [
        (True, False, 3, True, [2, 4, 8]),
        (True, True, 9, True, [2, 4, 8, 16, 32]),
        (False, True, 0, True, [2, 4, 8, 16, 32]),
        (True, True, 0, True, []),
        (True, True, 5, False, []),
    ],
)
def test_loop(
    ops: Ops, with_trip: bool, with_cond: bool, trip: int, cond: bool, rows: list[float]
) -> None:
    outputs = evaluate_graph(
        _powers(ops, with_trip, with_cond),
        {"x": np.float32(1).reshape(()), "trip": np.array([trip]), "cond": np.array(cond)},
    )
    np.testing.assert_array_equal(outputs["rows"], rows)
    assert outputs["rows"].dtype == np.float32
    assert outputs["last"] == (rows or [1])[-1]


@pytest.mark.parametrize("reverse_in", [False, True])
@pytest.mark.parametrize("reverse_out", [False, True])
def test_scan_over_the_second_axis(ops: Ops, reverse_in: bool, reverse_out: bool) -> None:
    b = GraphBuilder("g")
    start, x = b.input("start", tensor(F32, 3)), b.input("x", tensor(F32, 3, N))
    body = GraphBuilder("body", parent=b)
    total, row = body.input("total", tensor(F32, 3)), body.input("row", tensor(F32, 3))
    (sum_,) = body.add(ops["add"], [total, row])
    attrs = ops["scan"].attrs(
        body.finish([sum_, sum_]), 1, (1,), (reverse_in,), (1,), (reverse_out,)
    )
    last, sums = b.add(ops["scan"], [start, x], attrs, names=["last", "sums"])
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    outputs = evaluate_graph(b.finish([last, sums]), {"start": f32(1, 1, 1), "x": data})
    expected = 1 + np.cumsum(data[:, ::-1] if reverse_in else data, axis=1)
    np.testing.assert_array_equal(outputs["last"], expected[:, -1])
    np.testing.assert_array_equal(outputs["sums"], expected[:, ::-1] if reverse_out else expected)


def test_drops_arrays_after_their_last_use(ops: Ops) -> None:
    b = GraphBuilder("g")
    value = x = b.input("x", tensor(F32, N))
    for _ in range(6):
        (value,) = b.add(ops["add"], [value, value])
    alive: list[weakref.ref[Any]] = []
    most = 0

    class Observed(GraphEvaluator):
        def results(self, node: Node, arrays: Arrays) -> OutArrays:
            nonlocal most
            (result,) = super().results(node, arrays)
            alive.append(weakref.ref(result))
            most = max(most, sum(r() is not None for r in alive))
            return (result,)

    outputs = Observed(0).evaluate(b.finish([value]), {x.name: f32(1, 2)})
    np.testing.assert_array_equal(outputs[value.name], [64, 128])
    assert most <= 2


def test_only_reads_that_select_keeps_are_checked() -> None:
    def shifted(limit: int) -> Expr:
        """Returns the expression x[i - 2] for i >= limit, else 0."""
        b = ExprBuilder(tensor(F32, 4))
        (i,) = b.iters(4)
        early = apply("lt", index_value(i, I64), index_value(const(limit), I64))
        b.stage((i,), apply("select", early, literal(0, F32), b.read(0, i - 2)))
        return b.done()

    (right,) = evaluate_expr(shifted(2), [f32(1, 2, 3, 4)])
    np.testing.assert_array_equal(right, [0, 0, 1, 2])
    (wrong,) = evaluate_expr(shifted(1), [f32(1, 2, 3, 4)])
    np.testing.assert_array_equal(wrong, [0, np.nan, 1, 2])


def test_a_read_that_nothing_drops_must_stay_inside() -> None:
    b = ExprBuilder(tensor(F32, 4))
    (i,) = b.iters(4)
    b.stage((i,), b.read(0, i + 1))
    with pytest.raises(IndexError):
        evaluate_expr(b.done(), [f32(1, 2, 3, 4)])


@pytest.mark.parametrize("seed", range(40))
def test_large_reads_are_numpys(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices vary along separate or shared axes, with steps, repetitions and places outside."""
    monkeypatch.setattr(module, "_SMALL", 0)
    rng = np.random.default_rng(seed)
    for _ in range(50):
        grid = rng.integers(1, 5, rng.integers(1, 5))
        array = rng.standard_normal(rng.integers(1, 6, rng.integers(0, 4)))
        at = [_index(rng, grid, size) for size in array.shape]
        try:
            expected = array[tuple(at)]
        except IndexError:
            with pytest.raises(IndexError):
                module._gathered(array, at)
        else:
            assert np.array_equal(module._gathered(array, at), expected)
            assert np.shape(module._gathered(array, at)) == np.shape(expected)


def _index(rng: np.random.Generator, grid: Any, size: int) -> Any:
    """Returns a number or an index array that varies along up to two axes of a grid; some indices
    lie outside."""
    axes = rng.choice(len(grid), min(len(grid), rng.integers(0, 3)), replace=False)
    if not len(axes):
        return np.asarray(rng.integers(0, size))
    shape = [n if k in axes else 1 for k, n in enumerate(grid)]
    if len(axes) == 1 and rng.random() < 0.7:
        steps = np.arange(grid[axes[0]]) * rng.choice((1, 1, -1, 2))
        return np.reshape(steps + rng.integers(0, size), shape)
    return rng.integers(-1, size, shape) + (rng.random() < 0.1)
