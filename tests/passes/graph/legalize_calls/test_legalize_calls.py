"""Host functions rewritten as expressions give the right results, evaluated and in block
kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Trace
from tcc.errors import TccError
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import const, symbol
from tcc.ir.op import Array
from tcc.ir.types import F32, I64, TensorType, dtype_of, tensor
from tcc.ops import OPS
from tcc.ops.algebra.cumulative import CumSumAttrs
from tcc.ops.data.data_dependent import CompressAttrs, NonZeroAttrs, TopKAttrs
from tcc.ops.data.indexing import ScatterAttrs, ScatterNdAttrs
from tcc.passes.graph.legalize_calls import EXPRESSED, SCATTERS, legalize_calls
from tcc.passes.graph.legalize_calls import prefix_sums as prefix
from tcc.passes.graph.legalize_calls import top_k as ranks
from tcc.passes.graph.legalize_calls.prefix_sums import BLOCK, DIRECT, Combination, Totals
from tcc.passes.graph.legalize_calls.scatter import first_form
from tcc.passes.pipeline import GraphSettings, lower, run_pipeline
from tcc.passes.place import LoweringContext
from tcc.passes.quantize.precision import FULL
from tcc.passes.tile.gpu.plan import BlockChooser

from tests.lib.oracle.program.evaluate import evaluate_program
from tests.ops.samples import Sample, samples_of

SIZED = ("non_zero", "compress")
COUNT = Combination("sum", "add", 0)


def samples() -> list[tuple[str, Sample]]:
    rng = np.random.default_rng(5)
    names = (*EXPRESSED, *SCATTERS)
    return [(name, sample) for name in names for sample in samples_of(OPS[name], rng)]


SAMPLES = samples()


def graph_of(name: str, operands: tuple[Array | None, ...], attrs: Any) -> Graph:
    """Returns a graph of one node; data-dependent sizes are symbols."""
    b = GraphBuilder(name)
    values = [
        b.input(f"x{n}", TensorType(dtype_of(x), tuple(map(const, x.shape))))
        for n, x in enumerate(operands)
        if x is not None
    ]
    if name in SIZED:
        attrs = type(attrs)(
            **{**{f: getattr(attrs, f) for f in attrs.__slots__}, "size": symbol("s")}
        )
    return b.finish(b.add(OPS[name], values, attrs, loc=name))


def feeds(operands: tuple[Array | None, ...]) -> dict[str, Array]:
    return {f"x{n}": np.asarray(x) for n, x in enumerate(operands) if x is not None}


def check(graph: Graph, given: dict[str, Array]) -> None:
    changed = legalize_calls(graph)
    assert changed is not graph
    assert not {n.op.name for n in changed.nodes} & {*EXPRESSED, *SCATTERS}
    reference = evaluate_graph(graph, given)
    outputs = evaluate_graph(changed, given)
    lowering = lower(
        run_pipeline(graph, 2, Trace(), settings=GraphSettings(cheapest=first_form)),
        LoweringContext(BlockChooser(), arena_planner(), FULL),
        Trace(),
    )
    assert not any("call" in type(i).__name__.lower() for i in lowering.program.body)
    section = np.zeros(0, np.uint8)
    ran = evaluate_program(lowering.program, lowering.kernels, list(given.values()), section)
    for value, other, array in zip(graph.outputs, changed.outputs, ran, strict=True):
        agree(outputs[other.name], reference[value.name])
        agree(array, reference[value.name])


def agree(got: Array, want: Array) -> None:
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
    else:
        tolerance = 2e-3 if want.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "sample"), SAMPLES, ids=[f"{n}-{i}-{s.label}" for i, (n, s) in enumerate(SAMPLES)]
)
def test_samples(name: str, sample: Sample) -> None:
    check(graph_of(name, sample.inputs, sample.attrs), feeds(sample.inputs))


# ---- beyond the samples -------------------------------------------------------------------------


def lines(name: str, attrs: Any, *operands: Array) -> None:
    check(graph_of(name, operands, attrs), feeds(operands))


@pytest.mark.parametrize("count", [1, 9, 10, 57])
def test_running_totals_of_lines_of_any_length(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "BLOCK", 4)
    monkeypatch.setattr(prefix, "DIRECT", 9)
    x = np.random.default_rng(count).integers(-9, 9, (2, count))
    for exclusive, reverse in ((False, True), (True, False)):
        lines("cum_sum", CumSumAttrs(1, exclusive, reverse), x)


def test_running_totals_of_lines_of_symbolic_length() -> None:
    b = GraphBuilder("open")
    x = b.input("x", TensorType(I64, (symbol("n", lo=1),)))
    graph = legalize_calls(b.finish(b.add(OPS["cum_sum"], [x], CumSumAttrs(0, False, False))))
    for count in (1, BLOCK, BLOCK + 1, 3 * DIRECT):
        numbers = np.random.default_rng(count).integers(-9, 9, count)
        (output,) = evaluate_graph(graph, {"x": numbers}).values()
        np.testing.assert_array_equal(output, np.cumsum(numbers))


def test_totals_of_blocks_of_blocks() -> None:
    x = np.ones(BLOCK * DIRECT + 1, np.int64)
    b = ExprBuilder(tensor(I64, x.size))
    totals = Totals(b, (), const(x.size), lambda _, n: b.read(0, n, fill=0), COUNT)
    assert totals.within is not None
    assert totals.outer.within is not None
    (at,) = b.iters(x.size)
    b.stage((at,), totals.before((), at))
    (output,) = evaluate_expr(b.done(), [x])
    np.testing.assert_array_equal(output, np.arange(x.size))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("kind", ["random", "equal", "odd", "integers"])
def test_order_of_equal_ones_and_of_nan(kind: str, largest: bool) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, 40)).astype(np.float32)
    if kind == "equal":
        x = rng.integers(0, 3, x.shape).astype(np.float32) * np.float32(-0.0)
    elif kind == "odd":
        x = np.where(rng.random(x.shape) < 0.3, np.nan, rng.choice([np.inf, -np.inf, 1], x.shape))
        x = x.astype(np.float32)
    elif kind == "integers":
        x = rng.integers(0, 2, x.shape) * np.iinfo(np.int64).min
    for axis, count in ((1, 40), (1, 12), (0, 2)):
        lines("top_k", TopKAttrs(axis, const(count), largest, True), x)


def test_the_best_of_many_are_looked_for_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_BLOCK", 32)
    x = np.random.default_rng(1).integers(0, 90, (2, 301)).astype(np.float32)
    for axis, count in ((1, 4), (0, 2)):
        lines("top_k", TopKAttrs(axis, const(count), True, True), x)


def test_more_than_there_are_is_refused() -> None:
    n = symbol("n", lo=1)
    b = GraphBuilder("open")
    x = b.input("x", TensorType(F32, (n,)))
    attrs = TopKAttrs(0, const(9), True, True)
    graph = legalize_calls(b.finish(b.add(OPS["top_k"], [x], attrs, loc="best")))
    assert {node.loc for node in graph.nodes} == {"best"}  # also the check of n
    outputs = evaluate_graph(graph, {"x": np.arange(12, dtype=np.float32)})
    np.testing.assert_array_equal(outputs[graph.outputs[1].name], range(11, 2, -1))
    with pytest.raises(TccError, match="no more elements"):
        evaluate_graph(graph, {"x": np.arange(8, dtype=np.float32)})


def test_updates_that_nothing_is_there_for_are_dropped() -> None:
    x, u = np.zeros((4, 2), np.float32), np.ones((3, 2), np.float32)
    for name, attrs, at in (
        ("scatter_elements", ScatterAttrs(0, "add"), np.array([[4, -5], [1, 1 << 40], [1, 3]])),
        ("scatter_nd", ScatterNdAttrs("none"), np.array([[4], [-5], [2]])),
    ):
        graph = legalize_calls(graph_of(name, (x, at, u), attrs))
        (output,) = evaluate_graph(graph, feeds((x, at, u))).values()
        reference = (
            [[0, 0], [2, 0], [0, 0], [0, 1]] if name == "scatter_elements" else [[0] * 2] * 4
        )
        if name == "scatter_nd":
            reference[2] = [1, 1]
        np.testing.assert_array_equal(output, reference)


def test_zeros_that_nothing_is_added_to_keep_their_sign() -> None:
    x = np.full(3, -0.0, np.float32)
    graph = legalize_calls(
        graph_of("scatter_nd", (x, np.array([[1]]), np.ones(1, np.float32)), ScatterNdAttrs("add"))
    )
    (output,) = evaluate_graph(graph, feeds((x, np.array([[1]]), np.ones(1, np.float32)))).values()
    np.testing.assert_array_equal(np.signbit(output), [True, False, True])


def test_last_of_several_updates_wins_and_small_integers_wrap() -> None:
    at = np.array([[1], [1], [0], [1]])
    lines(
        "scatter_nd", ScatterNdAttrs("none"), np.zeros(3, np.float32), at, np.arange(4, dtype="f4")
    )
    narrow = np.array([100, 100, 7], np.int8)
    for reduction in ("add", "mul", "max"):
        lines("scatter_nd", ScatterNdAttrs(reduction), narrow, at, np.full(4, 99, np.int8))
    flags = np.array([True, False, True])
    lines("scatter_nd", ScatterNdAttrs("none"), flags, at, np.array([True, False, False, True]))


def test_many_that_fulfil_a_condition() -> None:
    rng = np.random.default_rng(8)
    for share in (0.0, 0.02, 1.0):
        x = (rng.random((3, 50)) < share).astype(np.float32)
        lines("non_zero", NonZeroAttrs(const(0)), x)
    lines(
        "compress", CompressAttrs(1, const(0)), rng.standard_normal((2, 80)), rng.random(70) < 0.4
    )


def test_scalars_and_undefined_calls_stay() -> None:
    flags = np.array([True, False])
    for name, attrs, operands in (
        ("non_zero", NonZeroAttrs(const(0)), (np.array(1.0),)),
        ("scatter_nd", ScatterNdAttrs("max"), (flags, np.array([[0]]), flags[:1])),
    ):
        graph = graph_of(name, operands, attrs)
        assert legalize_calls(graph) is graph
