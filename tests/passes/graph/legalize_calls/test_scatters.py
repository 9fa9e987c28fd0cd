"""Scatters by sorting give the right results with bounded work, and the form is chosen by price."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, prod

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Trace
from tcc.ir.expr import known_extent
from tcc.ir.expr.scalar import Read, walk
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import const, symbol
from tcc.ir.op import Array
from tcc.ir.types import F32, I64, TensorType, dtype_of
from tcc.ops import OPS
from tcc.ops.data.indexing import ScatterAttrs, ScatterNdAttrs
from tcc.passes.graph.legalize_calls import legalize_calls
from tcc.passes.graph.legalize_calls.scatter import first_form
from tcc.passes.pipeline import GraphSettings, lower, run_pipeline
from tcc.passes.place import LoweringContext
from tcc.passes.program.lowered import Lowered
from tcc.passes.quantize.precision import FULL
from tcc.passes.tile.gpu.plan import BlockChooser

from tests.closeness import assert_within
from tests.lib.oracle.program.evaluate import evaluate_program

UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def scatter_graph(name: str, operands: Sequence[Array], reduction: str, axis: int = 0) -> Graph:
    b = GraphBuilder(name)
    values = [
        b.input(f"x{n}", TensorType(dtype_of(x), tuple(map(const, x.shape))))
        for n, x in enumerate(operands)
    ]
    by_line = name == "scatter_elements"
    attrs = ScatterAttrs(axis, reduction) if by_line else ScatterNdAttrs(reduction)
    return b.finish(b.add(OPS[name], values, attrs, loc=name))


def lowered(graph: Graph) -> Lowered:
    legalized = run_pipeline(graph, 2, Trace(), settings=GraphSettings(cheapest=first_form))
    return lower(legalized, LoweringContext(BlockChooser(), arena_planner(), FULL), Trace())


def results_of(graph: Graph, operands: Sequence[Array]) -> tuple[Array, Array]:
    """Returns the results of the expressions, and the results of the program's block kernels."""
    changed = legalize_calls(graph)
    (one,) = evaluate_graph(changed, {f"x{n}": x for n, x in enumerate(operands)}).values()
    lowering = lowered(graph)
    assert not any("call" in type(i).__name__.lower() for i in lowering.program.body)
    section = np.zeros(0, np.uint8)
    (other,) = evaluate_program(lowering.program, lowering.kernels, list(operands), section)
    return np.asarray(one), np.asarray(other)


def places(kind: str, count: int, rows: int) -> Array:
    rng = np.random.default_rng(7)
    match kind:
        case "skewed":
            return (rng.random(count) ** 4 * 2 * rows).astype(np.int64) - rows
        case "equal":
            return np.full(count, rows // 2)
        case "falling":
            return np.sort(rng.integers(0, rows, count))[::-1].copy()
    return rng.integers(0, 3, count)  # most rows get no update


@pytest.mark.parametrize("reduction", UFUNCS)
@pytest.mark.parametrize("kind", ["skewed", "equal", "falling", "few"])
def test_floats_by_order(kind: str, reduction: str) -> None:
    """NaN and infinities reach only the rows for which they are meant."""
    rng = np.random.default_rng(1)
    rows, count, width = 45, 150, 3
    x = rng.uniform(0.99, 1.01, (rows, width)).astype(np.float32)
    updates = rng.uniform(0.99, 1.01, (count, width)).astype(np.float32)
    updates[9, 0], updates[70, 1], updates[71, 2] = np.nan, np.inf, -np.inf
    where = places(kind, count, rows)
    reference = x.astype(np.float64)
    UFUNCS[reduction].at(reference, where, updates.astype(np.float64))
    operands = (x, where[:, None], updates)
    graph = scatter_graph("scatter_nd", operands, reduction)
    for output in results_of(graph, operands):
        # any order of `count` roundings, each of a value of the result's size
        bound = count * 2.0**-24 * np.where(np.isfinite(reference), np.abs(reference), 0.0)
        assert_within(output, reference, bound)


@pytest.mark.parametrize("dtype", ["i1", "i8", "u2"])
@pytest.mark.parametrize("reduction", UFUNCS)
def test_integers_are_exact(dtype: str, reduction: str) -> None:
    rng = np.random.default_rng(2)
    x, updates = (rng.integers(0, 100, size).astype(dtype) for size in (40, 90))
    where = places("skewed", 90, 40)
    reference = x.copy()
    UFUNCS[reduction].at(reference, where, updates)
    operands = (x, where[:, None], updates)
    for output in results_of(scatter_graph("scatter_nd", operands, reduction), operands):
        np.testing.assert_array_equal(output, reference)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_lines_of_places_of_their_own(axis: int, reduction: str) -> None:
    """The updates may be shorter than x along the other axes; indices outside are dropped."""
    rng = np.random.default_rng(axis)
    shape, size = [3, 4, 3], [4, 5, 4]
    shape[axis], size[axis] = 50, 36
    x, updates = (rng.integers(-9, 9, dims).astype(np.float32) for dims in (size, shape))
    at = rng.integers(-40, 40, shape)
    reference = x.copy()
    for spot in np.ndindex(*shape):
        row = at[spot]
        if -36 <= row < 36:
            target = (*spot[:axis], row, *spot[axis + 1 :])
            reference[target] = updates[spot] + (reference[target] if reduction == "add" else 0)
    operands = (x, at, updates)
    for output in results_of(
        scatter_graph("scatter_elements", operands, reduction, axis), operands
    ):
        np.testing.assert_array_equal(output, reference)


def test_no_updates() -> None:
    x = np.arange(70.0, dtype=np.float32).reshape(35, 2)
    operands = (x, np.zeros((0, 1), np.int64), np.zeros((0, 2), np.float32))
    for reduction in ("none", "add"):
        for output in results_of(scatter_graph("scatter_nd", operands, reduction), operands):
            np.testing.assert_array_equal(output, x)


def test_symbolic_counts() -> None:
    """One graph serves all counts; more updates than can be sorted are refused."""
    b = GraphBuilder("open")
    count = symbol("n")
    operands = (
        b.input("x", TensorType(F32, (const(40),))),
        b.input("i", TensorType(I64, (count, const(1)))),
        b.input("u", TensorType(F32, (count,))),
    )
    graph = b.finish(b.add(OPS["scatter_nd"], operands, ScatterNdAttrs("add"), loc="s"))
    changed = legalize_calls(graph)
    assert any(node.op.name == "require" for node in changed.nodes)
    rng = np.random.default_rng(4)
    for size in (0, 1, 37, 300):
        x, u = rng.integers(-9, 9, 40).astype("f4"), rng.integers(-9, 9, size).astype("f4")
        at = rng.integers(-40, 40, size)
        reference = x.copy()
        np.add.at(reference, at, u)
        (output,) = evaluate_graph(changed, {"x": x, "i": at[:, None], "u": u}).values()
        np.testing.assert_array_equal(output, reference)


# ---- work ----------------------------------------------------------------------------------------


def reads(made: Lowered) -> list[int]:
    """Returns the number of elements that each kernel of a program reads."""
    return [
        sum(
            prod(known_extent(v) or 0 for v in stage.loops)
            * sum(isinstance(node, Read) for node in walk(*stage.body))
            for stage in bound.group.stages
        )
        for bound in made.table.bounds
    ]


@pytest.mark.parametrize(("rows", "count", "width"), [
    (1000, 1000, 1), (20_000, 50, 4), (50, 20_000, 4), (100_000, 1_000_000, 16), (4000, 4000, 256),
])  # fmt: skip
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_kernels_do_no_more_than_n_log_n_work(
    rows: int, count: int, width: int, reduction: str
) -> None:
    """A step of a bisection reads two elements; a level of sums reads at most three for each of
    16."""
    b = GraphBuilder("work")
    operands = (
        b.input("x", TensorType(F32, (const(rows), const(width)))),
        b.input("i", TensorType(I64, (const(count), const(1)))),
        b.input("u", TensorType(F32, (const(count), const(width)))),
    )
    graph = b.finish(b.add(OPS["scatter_nd"], operands, ScatterNdAttrs(reduction), loc="s"))
    size = (rows + count) * width
    assert max(reads(lowered(graph))) <= 16 * size * log2(size)


def test_few_updates_are_compared_by_price() -> None:
    """If one side is short, both forms are alternatives, and the chooser decides."""
    rng = np.random.default_rng(0)
    operands = (rng.random((99, 4), "f4"), np.zeros((20, 1), np.int64), rng.random((20, 4), "f4"))
    graph = scatter_graph("scatter_nd", operands, "add")
    numbers: list[int] = []

    def take(number: int) -> int:
        numbers.append(number)
        return number

    direct = legalize_calls(graph, lambda forms: take(0))
    by_order = legalize_calls(graph, lambda forms: take(len(forms) - 1))
    assert numbers == [0, 1]
    assert len(direct.nodes) < len(by_order.nodes)
    feeds = {f"x{n}": x for n, x in enumerate(operands)}
    outputs = [next(iter(evaluate_graph(g, feeds).values())) for g in (direct, by_order)]
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)


def test_bisections_do_each_step_once() -> None:
    """Twice the steps take twice the statements, not four times as many."""
    sizes = []
    for count in (200, 50_000):
        b = GraphBuilder("steps")
        operands = (
            b.input("x", TensorType(F32, (const(99),))),
            b.input("i", TensorType(I64, (const(count), const(1)))),
            b.input("u", TensorType(F32, (const(count),))),
        )
        graph = b.finish(b.add(OPS["scatter_nd"], operands, ScatterNdAttrs("none"), loc="s"))
        sizes.append(max(len(k.body) for k in lowered(graph).kernels))
    assert sizes[1] <= 2.5 * sizes[0]
