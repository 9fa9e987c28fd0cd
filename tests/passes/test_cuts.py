"""Kernels that end earlier than the fusion rules say: where parts cost less, and only there."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
import tcc
from onnx import numpy_helper
from tcc.debug import Trace
from tcc.frontends import load_model
from tcc.ir.graph import Graph, Node
from tcc.passes.choose import cuts
from tcc.passes.choose.cuts import priced_ends
from tcc.passes.fuse.partition import partition
from tcc.passes.pipeline import run_pipeline
from tcc.passes.program.lower_graph import place_graph
from tcc.passes.tile.cpu.plan import CorePlanner
from tcc.schedule.cpu.core import CoreModel

from tests.e2e.agreement import assert_agree, expected, session

from .test_choose_layouts import planner

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
    """Attention of as many queries of 64 elements as keys; twice: of two kinds of queries."""
    form = f"float[1, {heads}, {keys}, 64]"
    result = {
        "side by side": f"float[1, {keys}, {heads}, 64]",
        "projected": f"float[1, {keys}, {heads * 64}]",
    }.get(name, form)
    words = " ".join(ATTENTION[name])
    made = "|".join(re.findall(r"(\w+) = [A-Z]", words))
    first = re.sub(rf"\b({made})\b", r"\1_", words)
    nodes = f"{re.sub(QUERY, 'u', first)} {words}" if twice else words
    found = onnx.parser.parse_model(
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
    read = {name for node in found.graph.node for name in node.input}
    kept = {name: array for name, array in constants.items() if name in read}
    found.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in kept.items())
    return found


def graph(name: str, keys: int = 512, twice: bool = False) -> Graph:
    return run_pipeline(load_model(model(name, keys, twice=twice)), 3, Trace())


def seconds(made: Graph, ends: frozenset[Node]) -> float:
    kernels = planner()
    placed = place_graph(made, model=kernels, ends=ends)
    return sum(kernels.seconds(k, placed.layouts, made.constants) for k in placed.kernels)


@pytest.mark.parametrize("name", ["normalised", "cosine", "capped"])
def test_what_units_would_make_again_has_a_kernel_of_its_own(name: str) -> None:
    made = graph(name)
    ends = priced_ends(made, planner())
    assert seconds(made, ends) < 0.5 * seconds(made, frozenset())
    again = priced_ends(made, planner())
    assert ends == again


def test_equal_kernels_are_priced_once() -> None:
    once, twice = planner(), planner()
    one, two = graph("cosine"), graph("cosine", twice=True)
    ends, both = priced_ends(one, once), priced_ends(two, twice)
    assert seconds(two, both) == pytest.approx(2 * seconds(one, ends), rel=0.1)
    assert twice.estimates < 1.2 * once.estimates  # both read the same normalised keys


def test_a_kernel_that_costs_less_whole_stays_whole() -> None:
    made = graph("plain")
    assert priced_ends(made, planner()) == frozenset()
    assert len(partition(made, planner())) == 1


def test_rows_that_stream_may_lie_around_heads() -> None:
    """As where heads are put side by side: the softmax is no kernel of its own."""
    made = graph("side by side")
    (group,) = partition(made, planner(), priced_ends(made, planner()))
    assert [n.op.name for n in group.members].count("matmul") == 2


def test_a_softmax_joins_its_products_where_a_projection_held_the_second() -> None:
    made = graph("projected")
    ends = priced_ends(made, planner())
    assert seconds(made, ends) < 0.9 * seconds(made, frozenset())
    names = [[n.op.name for n in g.members] for g in partition(made, planner(), ends)]
    assert [found.count("matmul") for found in names if "softmax" in found] == [2]


def test_without_prices_the_rules_decide() -> None:
    assert priced_ends(graph("normalised"), CorePlanner(CoreModel(16, 32))) == frozenset()


def test_small_kernels_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = planner()
    assert priced_ends(graph("normalised", 8), kernels) == frozenset()
    few = kernels.estimates
    monkeypatch.setattr(cuts, "_LEAST", 0.0)
    kernels = planner()
    priced_ends(graph("normalised", 8), kernels)
    assert kernels.estimates > few


@pytest.mark.parametrize("name", ATTENTION)
def test_what_is_cut_computes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "_LEAST", 0.0)
    proto = model(name, 70, heads=2)
    rng = np.random.default_rng(1)
    feeds = {n: rng.standard_normal((1, 2, 70, 64)).astype(np.float32) for n in "qkv"}
    found = tcc.compile(proto, jobs=1).run(feeds)
    assert_agree(found, expected(session(proto), feeds), 1e-5)
