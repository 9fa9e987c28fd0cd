"""Variants of attention are fused exactly if one kernel is predicted to take less time."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import product

import numpy as np
import onnx
import pytest
import tcc
from onnx import numpy_helper
from tcc.debug import Trace
from tcc.frontends import load_model
from tcc.ir.graph import Graph, Node
from tcc.passes.fuse.partition import partition
from tcc.passes.pipeline import run_pipeline

from tests.lib.agreement import assert_agree, expected, session
from tests.part import part
from tests.passes.layout.test_choose import planner
from tests.passes.placing import place_graph

QUERY = re.compile(r"\bq\b")
# RMS norm of the rows of NAME, as NAMEn.
NORM = (
    "{0}2 = Mul ({0}, {0}) {0}m = ReduceMean <axes = [-1]> ({0}2) {0}e = Add ({0}m, e) "
    "{0}r = Sqrt ({0}e) {0}d = Div ({0}, {0}r) {0}n = Mul ({0}d, w)"
)
LENGTH = "{0}r = ReduceL2 <axes = [-1]> ({0}) {0}n = Div ({0}, {0}r)"
SCORES = "kt = Transpose <perm = [0, 1, 3, 2]> ({1}) m = MatMul ({0}, kt) s = Mul (m, c)"
VALUES = "p = Softmax <axis = -1> ({0}) y = MatMul (p, v)"
SIDE_BY_SIDE = f"{VALUES.replace('y', 'h')} y = Transpose <perm = [0, 2, 1, 3]> (h)"
ATTENTION = {
    "plain": (SCORES.format("q", "k"), VALUES.format("s")),
    "normalised": (
        NORM.format("q"), NORM.format("k"), SCORES.format("qn", "kn"), VALUES.format("s"),
    ),
    "cosine": (
        LENGTH.format("q"), LENGTH.format("k"), SCORES.format("qn", "kn"), "a = Add (s, b)",
        VALUES.format("a"),
    ),
    "capped": (SCORES.format("q", "k"), "t = Tanh (s)", VALUES.format("t")),
    "side by side": (SCORES.format("q", "k"), SIDE_BY_SIDE.format("s")),
    "projected": (
        SCORES.format("q", "k"), SIDE_BY_SIDE.replace("y =", "g =").format("s"),
        "f = Reshape (g, z) u = MatMul (f, o) y = Add (u, i)",
    ),
}  # fmt: skip


def model(name: str, keys: int, heads: int = 8, twice: bool = False) -> onnx.ModelProto:
    """Returns attention with as many queries as keys, of 64 elements; with `twice`, for two kinds
    of queries."""
    form = f"float[1, {heads}, {keys}, 64]"
    result = {
        "side by side": f"float[1, {keys}, {heads}, 64]",
        "projected": f"float[1, {keys}, {heads * 64}]",
    }.get(name, form)
    words = " ".join(ATTENTION[name])
    results = "|".join(re.findall(r"(\w+) = [A-Z]", words))
    first = re.sub(rf"\b({results})\b", r"\1_", words)
    nodes = f"{re.sub(QUERY, 'u', first)} {words}" if twice else words
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g ({form} q, {form} k, {form} v{f", {form} u" if twice else ""}) =>
          ({result} y{f", {result} y_" if twice else ""}) {{ {nodes} }}"""
    )
    rng = np.random.default_rng(0)
    constants = {
        "c": np.float32(0.125), "e": np.float32(1e-6), "w": rng.standard_normal(64, np.float32),
        "b": rng.standard_normal((heads, keys, keys), np.float32),
        "z": np.array([1, keys, heads * 64]),
        "i": rng.standard_normal(heads * 64, np.float32),
        "o": rng.standard_normal((heads * 64, heads * 64), np.float32) / 8,
    }  # fmt: skip
    read = {name for node in proto.graph.node for name in node.input}
    initializers = {name: array for name, array in constants.items() if name in read}
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in initializers.items())
    return proto


def graph(name: str, keys: int = 512, twice: bool = False) -> Graph:
    return run_pipeline(load_model(model(name, keys, twice=twice)), 3, Trace())


def parts(made: Graph) -> list[list[str]]:
    """Returns the ops of each kernel in order, without index maps."""
    groups = partition(made, planner())
    maps = {"reshape", "transpose"}
    return [[n.op.name for n in g.members if n.op.name not in maps] for g in groups]


def seconds(made: Graph, ends: Collection[Node] = ()) -> float:
    """Returns the predicted seconds of all kernels; nothing fuses across `ends`."""
    kernels = planner()
    placed = place_graph(made, model=kernels, ends=ends)
    return sum(kernels.seconds(k, placed.layouts, made.constants) for k in placed.kernels)


@pytest.mark.parametrize("name", ATTENTION)
def test_kernels_are_predicted_to_take_less_than_one_for_each_node(name: str) -> None:
    attention_graph = graph(name)
    assert seconds(attention_graph) < 0.75 * seconds(attention_graph, attention_graph.nodes)


@pytest.mark.parametrize(("name", "keys"), part("cuts", product(ATTENTION, [128, 512]), 2))
def test_no_cut_behind_a_node_is_predicted_to_take_less(name: str, keys: int) -> None:
    """Fusion is decided node by node; the test prices each cut of a complete kernel in two."""
    attention_graph = graph(name, keys)
    joined_seconds = seconds(attention_graph)
    ratios = {
        f"{n.op.name} {n.outputs[0].name}": seconds(attention_graph, [n]) / joined_seconds
        for n in attention_graph.nodes
    }
    assert min(ratios.values()) > 0.98, ratios


@pytest.mark.parametrize("name", ["normalised", "cosine"])
def test_values_that_tiles_would_recompute_have_a_separate_kernel(name: str) -> None:
    """Keys are normalised in a separate kernel, once, and not again for each tile of queries."""
    last = partition(graph(name), planner())[-1].members
    assert any(node.op.name == "matmul" for node in last)
    assert not {"km", "kr"} & {value.name for node in last for value in node.outputs}


def test_a_kernel_that_costs_less_whole_stays_whole() -> None:
    assert parts(graph("plain")) == [["matmul", "mul", "softmax", "matmul"]]


def test_tiles_hold_more_than_half_a_cache_where_that_costs_less() -> None:
    """Biased scores of 1500 keys take 3 MB per tile; normalised queries still fuse with their
    matmul."""
    attention_graph = graph("cosine", 1500)
    assert parts(attention_graph)[-1] == [
        "reduce_l2",
        "div",
        "matmul",
        "mul",
        "add",
        "softmax",
        "matmul",
    ]
    lengths = [n for n in attention_graph.nodes if n.outputs[0].name == "qr"]
    assert seconds(attention_graph) < seconds(attention_graph, lengths)


def test_rows_that_stream_may_lie_around_heads() -> None:
    """The heads lie side by side here, and the softmax is still no separate kernel."""
    assert parts(graph("side by side")) == [["matmul", "mul", "softmax", "matmul"]]


def test_a_softmax_joins_its_products_and_leaves_the_projection() -> None:
    groups = parts(graph("projected"))
    assert [names.count("matmul") for names in groups if "softmax" in names] == [2]


def test_equal_kernels_are_priced_once() -> None:
    once, twice = planner(), planner()
    partition(graph("cosine"), once)
    partition(graph("cosine", twice=True), twice)
    first, second = (chooser.price_of.cache_info().currsize for chooser in (once, twice))
    assert second < 1.2 * first  # both read the same normalised keys


@pytest.mark.parametrize("name", ATTENTION)
def test_the_kernels_compute_the_same(name: str) -> None:
    proto = model(name, 70, heads=2)
    rng = np.random.default_rng(1)
    feeds = {n: rng.standard_normal((1, 2, 70, 64)).astype(np.float32) for n in "qkv"}
    outputs = tcc.compile(proto, jobs=1).run(feeds)
    assert_agree(outputs, expected(session(proto), feeds), 1e-5)
