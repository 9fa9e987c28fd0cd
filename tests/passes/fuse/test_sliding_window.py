"""Stages that read each other through windows form one kernel that keeps strips of rows."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ops.algebra.pool import PoolAttrs
from tcc.ops.algebra.window import ConvAttrs
from tcc.passes.fuse.compose import compose

from tests.part import part
from tests.passes.tile.cpu.tiles import Built, Chooser, build, chosen, drawn, run_kernel

from .models import Model

Array = np.ndarray[Any, np.dtype[Any]]

# Height, width, kernel, stride, padding before and after the rows and columns, dilation.
WINDOWS = {
    "same": (9, 5, 3, 1, ((1, 1), (1, 1)), 1),
    "halved": (8, 6, 3, 2, ((0, 0), (1, 1)), 1),
    "uneven": (9, 6, 3, 2, ((1, 0), (0, 2)), 1),
    "dilated": (11, 5, 3, 1, ((2, 2), (2, 2)), 2),
    "valid": (10, 5, 3, 1, ((0, 0), (0, 0)), 1),
    "wide": (7, 6, 5, 1, ((2, 2), (2, 2)), 1),
    "apart": (12, 5, 2, 3, ((1, 1), (0, 1)), 1),
}


def inverted(name: str, batch: int = 1) -> Graph:
    """Returns a matmul over channels, a window over each channel, and another matmul."""
    height, width, kernel, stride, (before, after), dilation = WINDOWS[name]
    m = Model(name)
    x = m.input("x", batch, 3, height, width)
    y = m.op("relu", m.conv(x, 5, 1))
    attrs = ConvAttrs((stride, stride), before, after, (dilation, dilation), 5)
    y = m.op("conv", y, m.weight(5, 1, kernel, kernel), m.weight(5), attrs=attrs)
    return m.finish(m.conv(m.op("relu", y), 4, 1))


def convolutions() -> Graph:
    """Returns three consecutive windows over all channels."""
    m = Model("chain")
    y = m.input("x", 1, 2, 10, 6)
    for channels, stride in ((3, 1), (4, 2), (2, 1)):
        y = m.op("relu", m.conv(y, channels, 3, stride=stride, pad=1))
    return m.finish(y)


def pooled() -> Graph:
    """Returns a maximum over windows, where elements outside are less than any other."""
    m = Model("pooled")
    y = m.conv(m.input("x", 1, 3, 11, 7), 4, 3, stride=2, pad=1)
    attrs = PoolAttrs((2, 2), (1, 1), (1, 1), (1, 1), (3, 3))
    return m.finish(m.op("max_pool", y, attrs=attrs))


def line() -> Graph:
    """Returns a chain with a single spatial axis."""
    m = Model("line")
    y = m.input("x", 2, 3, 13)
    for size, pads in ((3, (1,)), (5, (2,))):
        w = m.weight(4, y.type.shape[1].const, size)
        y = m.op("conv", y, w, attrs=ConvAttrs((1,), pads, pads, (1,), 1))
    return m.finish(y)


GRAPHS = {
    **{name: (lambda name=name: inverted(name)) for name in WINDOWS},
    "batch": lambda: inverted("same", batch=2),
    "convolutions": convolutions,
    "pooled": pooled,
    "line": line,
}


def check(graph: Graph, chooser: Chooser) -> Built:
    """Compares the kernel of a whole graph with the graph, and checks that all its accesses are
    proved."""
    expr, values = compose(graph.nodes, graph.outputs)
    built = build(expr, chooser)
    assert built.unproved == ()
    rng = np.random.default_rng(3)
    inputs: dict[str, Array] = {}
    for value in graph.inputs:
        shape = [d.const for d in value.type.shape]
        inputs[value.name] = rng.standard_normal(shape).astype(np.float32)
    operands = [
        graph.store.get(graph.constants[v]) if v in graph.constants else inputs[v.name]
        for v in values
    ]
    (actual,) = run_kernel(built.kernel, expr.types, operands, {})
    expected = evaluate_graph(graph, inputs)[graph.outputs[0].name]
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)
    return built


@pytest.mark.parametrize("name", list(GRAPHS))
def test_strips_agree_with_graph(name: str) -> None:
    built = check(GRAPHS[name](), chosen)
    assert any(s.strip is not None and s.strip.rows is not s.strip.loop for s in built.group.stages)


@pytest.mark.parametrize(("name", "seed"), part("strips", product(GRAPHS, range(4)), 2))
def test_every_schedule_of_strips_is_right(name: str, seed: int) -> None:
    check(GRAPHS[name](), drawn(np.random.default_rng(seed)))


def test_rows_that_windows_reach_add_up() -> None:
    built = check(convolutions(), chosen)
    strips = [s.strip for s in built.group.stages if s.strip is not None]
    # A strip reads rows 2*i - 1 .. 2*i + 1 of rows i - 1 .. i + 1, hence rows 2*i - 3 .. 2*i + 3 of
    # the first.
    assert (strips[0].scale, strips[0].low, strips[0].high) == (2, -3, 3)
    assert strips[0].count(4) == 13


def test_results_that_others_read_keep_their_kernel() -> None:
    m = Model("stored")
    y = m.conv(m.input("x", 1, 3, 8, 8), 4, 3, pad=1)
    graph = m.finish(y, m.conv(y, 4, 3, pad=1))
    expr, _ = compose(graph.nodes, graph.outputs)
    assert all(s.strip is None for s in build(expr).group.stages)
