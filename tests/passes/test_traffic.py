"""Predicted memory traffic of small graphs equals hand-computed bytes."""

from __future__ import annotations

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.index import symbol
from tcc.ir.types import F32, I64, tensor
from tcc.ops import OPS
from tcc.ops.control import ScanAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.traffic import Traffic, traffic, unfused_bytes

from tests.passes.fuse.models import Model
from tests.passes.placing import place_graph


def layer(rows: int | None = 32) -> Graph:
    """Returns relu(x @ w + b), with x of 64 columns and w of 96."""
    m = Model("layer")
    x = m.input("x", symbol("n") if rows is None else rows, 64)
    return m.finish(m.op("relu", m.op("add", m.op("matmul", x, m.weight(64, 96)), m.weight(96))))


def test_a_fused_layer_moves_its_ends_and_its_weights() -> None:
    x, w, b, y = 32 * 64, 64 * 96, 96, 32 * 96
    assert unfused_bytes(layer()) == 4 * (x + w + y + y + b + y + y + y)
    assert traffic(place_graph(layer()), {}) == Traffic(1, 4 * (x + w + b + y), 4 * (w + b))


def test_open_sizes_have_no_answer() -> None:
    assert unfused_bytes(layer(None)) is None
    assert traffic(place_graph(layer(None)), {}) is None


def test_a_gather_moves_the_rows_it_takes() -> None:
    m = Model("table")
    ids = m.input("ids", 5, dtype=I64)
    graph = m.finish(m.op("gather", m.weight(1000, 16), ids, attrs=AxisAttrs(0)))
    bytes_moved = 5 * 8 + 4 * (5 * 16 + 5 * 16)
    assert unfused_bytes(graph) == bytes_moved
    assert traffic(place_graph(graph), {}) == Traffic(1, bytes_moved, 4 * 5 * 16)


def test_weights_count_once_and_views_nothing() -> None:
    m = Model("twice")
    w = m.weight(64, 64)
    y = m.op("matmul", m.op("matmul", m.input("x", 16, 64), w), m.op("neg", w))
    graph = m.finish(m.reshape(m.op("matmul", y, w), 1024))
    # three matmuls with 16 x 64 in and out; w, and -w, which is computed from constants only
    assert unfused_bytes(graph) == 4 * (6 * 16 * 64 + 2 * 64 * 64)


def test_a_body_counts_as_often_as_it_runs() -> None:
    body = GraphBuilder("body")
    state, step = body.input("s", tensor(F32, 8)), body.input("r", tensor(F32, 8))
    (product,) = body.add(OPS["mul"], [state, step])
    inner = body.finish([product, product])
    outer = GraphBuilder("scan")
    start, rows = outer.input("start", tensor(F32, 8)), outer.input("rows", tensor(F32, 10, 8))
    attrs = ScanAttrs(inner, 1, (0,), (False,), (0,), (False,))
    graph = outer.finish(list(outer.add(OPS["scan"], [start, rows], attrs)))
    once = 4 * 3 * 8
    assert unfused_bytes(graph) == 10 * once
    assert traffic(place_graph(graph), {inner: place_graph(inner)}) == Traffic(10, 10 * once, 0)


def test_an_array_of_narrow_elements_counts_their_width() -> None:
    b = GraphBuilder("bytes")
    x = b.input("x", tensor(I64, 3))
    graph = b.finish(list(b.add(OPS["add"], [x, b.constant(np.ones(3, np.int64))])))
    assert unfused_bytes(graph) == 8 * 9
