"""With constants that differ by rank, every rank computes the results of a graph with its own
arrays, and all ranks share one graph and one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Trace
from tcc.ir.graph import ConstantStore, Graph, GraphBuilder, Value
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.verify import verify_graph
from tcc.ir.types import BF16, F32, I4, I8, U8, DType, tensor
from tcc.ops import OPS
from tcc.ops.algebra.quantize import DequantizeAttrs
from tcc.options import read_options
from tcc.passes.derive.merge import Bundle, MergePrices, merge_contractions
from tcc.passes.graph.emit import emit
from tcc.passes.graph.fold_constants import fold_constants
from tcc.passes.pipeline import lower, run_pipeline
from tcc.passes.place import LoweringContext
from tcc.passes.program.lowered import Lowered
from tcc.passes.quantize.precision import FULL, Precision
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.schedule.cpu.core import CoreModel
from tcc.target import CPUS, parse_targets
from tcc.variants import variant_backends

from tests.draws import RNG
from tests.lib.oracle.graph_of_rank import evaluate_rank, without_exchange
from tests.lib.oracle.program.evaluate import evaluate_program

Array = np.ndarray[Any, np.dtype[Any]]
RANKS = 3


def floats(*shape: int) -> Array:
    return (RNG.standard_normal(shape) / 4).astype(np.float32)


def per_rank(b: GraphBuilder, name: str, *shape: int) -> Value:
    return b.constant_per_rank([floats(*shape) for _ in range(RANKS)], name)


def of_rank(graph: Graph, rank: int) -> Graph:
    """Returns the graph with the constants of one rank."""
    store = ConstantStore()
    constants = {
        value: store.put(graph.store.on_rank(handle, rank), value.type.dtype)
        for value, handle in graph.constants.items()
    }
    return replace(graph, constants=constants, store=store)


def drawn(graph: Graph) -> dict[str, Array]:
    feeds = {}
    for value in graph.inputs:
        shape = value.type.static_shape
        assert shape is not None
        if value.type.dtype is F32:
            feeds[value.name] = floats(*shape)
        else:
            feeds[value.name] = RNG.integers(0, 127, shape).astype(value.type.dtype.carrier)
    return feeds


def assert_agrees(before: Graph, after: Graph, tolerance: float) -> None:
    verify_graph(after)
    feeds = drawn(before)
    for rank in range(RANKS):
        reference = evaluate_graph(of_rank(before, rank), feeds)
        results = evaluate_rank(after, feeds, without_exchange, rank)
        for name, array in reference.items():
            largest = tolerance * np.abs(array).max()
            np.testing.assert_allclose(
                results[name], array, rtol=0, atol=largest, err_msg=f"{rank}"
            )


# ---- graphs --------------------------------------------------------------------------------------


def test_nodes_of_constants_are_folded_for_every_rank() -> None:
    b = GraphBuilder("g")
    x, w = b.input("x", tensor(F32, 2, 5)), per_rank(b, "w", 4, 5)
    scaled = emit(b, "mul", emit(b, "transpose", w, perm=(1, 0)), b.constant(np.float32(3)))
    graph = b.finish([emit(b, "matmul", x, scaled)])
    folded = fold_constants(graph)
    assert [node.op.name for node in folded.nodes] == ["matmul"]
    (handle,) = folded.constants.values()
    arrays = folded.store.arrays(handle)
    assert len(arrays) == RANKS
    for rank, array in enumerate(arrays):
        reference = 3 * graph.store.on_rank(graph.constants[w], rank).T
        np.testing.assert_array_equal(array, reference)
    assert_agrees(graph, folded, 0)


def test_a_node_that_one_rank_cannot_fold_stays_on_all() -> None:
    b = GraphBuilder("g")
    rows = b.constant_per_rank([np.array([n], np.int64) for n in (0, 1, 2)], "rows")
    table = b.constant(floats(2, 3), "table")  # the table has no row 2
    graph = b.finish([emit(b, "gather", table, rows, axis=0)])
    assert fold_constants(graph) is graph


def test_equal_results_of_all_ranks_are_known_to_passes() -> None:
    b = GraphBuilder("g")
    w = b.constant_per_rank([np.float32([n, -n]) for n in range(1, RANKS + 1)], "w")
    graph = fold_constants(b.finish([emit(b, "sub", w, w)]))
    np.testing.assert_array_equal(graph.constant(graph.outputs[0]), np.zeros(2))


class Merged(MergePrices):
    """Prices that merge everything that may be merged."""

    def __init__(self) -> None:
        super().__init__(CoreChooser(CoreModel(16, 16)))

    def _seconds(self, graph: Graph, groups: Sequence[Bundle]) -> float:
        return float(len(groups))


def test_matrices_are_merged_for_every_rank() -> None:
    b = GraphBuilder("g")
    x, common = b.input("x", tensor(F32, 4, 8)), b.constant(floats(8, 6), "common")
    matrices = [per_rank(b, "w", 8, 3), common]
    graph = b.finish([emit(b, "matmul", x, w) for w in matrices])
    merged = merge_contractions(graph, Merged())
    (w,) = merged.constants
    arrays = merged.store.arrays(merged.constants[w])
    assert [a.shape for a in arrays] == [(8, 9)] * RANKS
    assert_agrees(graph, merged, 1e-6)


def chain(b: GraphBuilder) -> Sequence[Value]:
    """Returns two matmuls by constants whose product is small, so that a derivation multiplies them
    first."""
    x, tall = b.input("x", tensor(F32, 128, 64)), per_rank(b, "a", 64, 512)
    return [emit(b, "matmul", emit(b, "matmul", x, tall), per_rank(b, "b", 512, 16))]


def convolution(b: GraphBuilder) -> Sequence[Value]:
    x, w = b.input("x", tensor(F32, 1, 32, 32, 32)), per_rank(b, "w", 32, 32, 3, 3)
    plain = {"strides": (1, 1), "before": (1, 1), "after": (1, 1), "dilations": (1, 1), "group": 1}
    return [emit(b, "conv", x, w, **plain)]


def transposed(b: GraphBuilder) -> Sequence[Value]:
    x, w = b.input("x", tensor(F32, 1, 8, 6, 6)), per_rank(b, "w", 8, 4, 3, 3)
    bias = per_rank(b, "bias", 4)
    sizes = {"strides": (2, 2), "before": (1, 1), "after": (1, 1), "output_padding": (1, 1)}
    row = OPS["conv_transpose"]
    return b.add(row, [x, w, bias], row.attrs(dilations=(1, 1), group=1, **sizes))


MODELS = {m.__name__: m for m in (chain, convolution, transposed)}


@pytest.mark.parametrize("name", MODELS)
def test_all_steps_on_graphs_keep_the_results_of_every_rank(name: str) -> None:
    b = GraphBuilder(name)
    graph = b.finish(MODELS[name](b))
    options = read_options({"cpu": "x86-64-v3", "jobs": 1})
    (code,) = variant_backends(
        parse_targets("cpu", "x86-64-v3", lambda: CPUS["x86-64-v3"]), options, 1 << 20
    )
    optimised = run_pipeline(graph, 2, Trace(), replace(code.settings, fold_factors=True))
    names = [node.op.name for node in optimised.nodes]
    constants = optimised.constants.values()
    store = optimised.store
    arrays = [store.arrays(handle) for handle in constants if store.ranks(handle) > 1]
    if name == "chain":
        assert [a[0].shape for a in arrays] == [(64, 16)]
    if name == "convolution":
        assert "guarded" in names  # has fewer multiplications than the direct sums
    if name == "transposed":
        assert "conv_transpose" not in names
    assert arrays
    assert_agrees(graph, optimised, 1e-5)


# ---- programs ------------------------------------------------------------------------------------


def section(lowered: Lowered, rank: int) -> Array:
    parts = [part() for part in lowered.weights.parts(rank)]
    assert sum(part.nbytes for part in parts) == lowered.weights.size
    return np.concatenate(parts)


def run(lowered: Lowered, feeds: dict[str, Array], rank: int) -> Array:
    names = tuple(f"k{n}" for n in range(len(lowered.kernels)))
    program = replace(lowered.program, kernels=names)
    inputs = [feeds[port.name] for port in program.inputs]
    results = evaluate_program(program, list(lowered.kernels), inputs, section(lowered, rank))
    return np.asarray(results[0])


def on_core(precision: Precision = FULL) -> LoweringContext:
    return LoweringContext(CoreChooser(CoreModel(16, 16)), arena_planner(), precision)


def one_matrix(b: GraphBuilder) -> Value:
    w = per_rank(b, "w", 128, 256)
    return emit(b, "matmul", b.input("x", tensor(F32, 2, 128)), w)


def narrow_matrix(b: GraphBuilder) -> Value:
    arrays = [RNG.integers(-8, 8, (16, 8)).astype(np.int8) for _ in range(RANKS)]
    w = b.constant_per_rank(arrays, "w", I4)
    row = OPS["dequantize_linear"]
    levels = b.add(row, [w, b.constant(np.float32(0.5)), None], DequantizeAttrs(1, 0, F32))
    return emit(b, "matmul", b.input("x", tensor(F32, 3, 16)), levels[0])


@pytest.mark.parametrize(
    ("made", "precision", "tolerance"),
    [
        (one_matrix, FULL, 1e-6),
        (one_matrix, Precision(BF16), 1e-2),
        (one_matrix, Precision(bits=8), 2e-2),
        (one_matrix, Precision(bits=4), 0.3),
        (narrow_matrix, FULL, 1e-6),
    ],
    ids=["f32", "bf16", "int8", "int4", "packed"],
)
def test_every_rank_has_weights_of_its_own(
    made: Callable[[GraphBuilder], Value], precision: Precision, tolerance: float
) -> None:
    b = GraphBuilder("g")
    graph = b.finish([made(b)])
    lowered, feeds = lower(graph, on_core(precision), Trace()), drawn(graph)
    assert lowered.weights.ranks == RANKS
    for rank in range(RANKS):
        (reference,) = evaluate_graph(of_rank(graph, rank), feeds).values()
        largest = np.abs(reference).max()
        np.testing.assert_allclose(
            run(lowered, feeds, rank), reference, rtol=0, atol=tolerance * largest
        )
    single = lower(of_rank(graph, 1), on_core(precision), Trace())
    np.testing.assert_array_equal(section(single, 0), section(lowered, 1))


@pytest.mark.parametrize("dtype", [U8, I8])
def test_products_of_bytes_are_exact_on_every_rank(dtype: DType) -> None:
    b, info = GraphBuilder("bytes"), np.iinfo(dtype.carrier)
    draw = partial(RNG.integers, info.min, info.max + 1)
    x = b.input("x", tensor(U8, 40, 96))
    arrays = [draw((96, 33)).astype(dtype.carrier) for _ in range(RANKS)]
    points = [draw(33).astype(dtype.carrier) for _ in range(RANKS)]
    w, point = b.constant_per_rank(arrays, "w"), b.constant_per_rank(points, "point")
    row = OPS["matmul_integer"]
    graph = b.finish(b.add(row, [x, w, None, point]))
    lowered = lower(graph, LoweringContext(BlockChooser(), arena_planner(), FULL), Trace())
    feeds = drawn(graph)
    for rank in range(RANKS):
        (reference,) = evaluate_graph(of_rank(graph, rank), feeds).values()
        np.testing.assert_array_equal(run(lowered, feeds, rank), reference)
