"""Twice the layers take twice the work, in every step of a compile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.ir.graph import Graph, Value
from tcc.ops.composite.normalization import NormAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.pipeline import GRAPH, LOWER, PLAIN
from tcc.passes.place import LoweringContext
from tcc.passes.tile.plan import KernelChooser

from tests.lib.oracle.calls import calls_of
from tests.passes.fuse.models import Model

from .layout.test_choose import planner

_ROWS, _WIDTH, _HEADS = 16, 32, 2
# For fewer calls than this, the one-time work of a step dominates.
_LEAST = 5000


def transformer(layers: int) -> Graph:
    m = Model("transformer")
    x = m.input("x", _ROWS, _WIDTH)

    def product(x: Value, columns: int) -> Value:
        return m.op(
            "add", m.op("matmul", x, m.weight(x.type.shape[1].const, columns)), m.weight(columns)
        )

    def norm(x: Value) -> Value:
        return m.op(
            "layer_normalization", x, m.weight(_WIDTH), m.weight(_WIDTH), attrs=NormAttrs(1)
        )

    def heads(x: Value) -> Value:
        return m.transpose(m.reshape(x, _ROWS, _HEADS, _WIDTH // _HEADS), 1, 0, 2)

    for _ in range(layers):
        rows = norm(x)
        q, k, v = (heads(product(rows, _WIDTH)) for _ in range(3))
        p = m.op("softmax", m.op("matmul", q, m.transpose(k, 0, 2, 1)), attrs=AxisAttrs(2))
        mixed = m.reshape(m.transpose(m.op("matmul", p, v), 1, 0, 2), _ROWS, _WIDTH)
        x = m.op("add", x, product(mixed, _WIDTH))
        x = m.op("add", x, product(m.op("tanh", product(norm(x), 2 * _WIDTH)), _WIDTH))
    return m.finish(x)


def convolutions(layers: int) -> Graph:
    m = Model("convolutions")
    x = m.input("x", 1, 8, 8, 8)
    for _ in range(layers):
        y = m.op("relu", m.conv(x, 8, 3, pad=1))
        x = m.op("add", x, m.conv(m.op("sigmoid", m.conv(y, 16, 1)), 8, 1))
    return m.finish(x)


def work(graph: Graph, kernels: KernelChooser) -> dict[str, int]:
    """Returns the number of function calls of each step."""
    plan, calls, form = LoweringContext(kernels, arena_planner()), {}, graph

    def run(name: str, function: Callable[[Any], Any]) -> None:
        def step() -> None:
            nonlocal form
            form = function(form)

        calls[name] = calls_of(step)

    for steps, settings in ((GRAPH, PLAIN), (LOWER, plan)):
        for step in steps:
            if step.runs(settings):
                run(step.name, partial(step.apply, settings=settings))
    return calls


@pytest.mark.parametrize("network", [transformer, convolutions])
def test_twice_the_layers_are_twice_the_work(network: Callable[[int], Graph]) -> None:
    kernels = planner()
    work(network(4), kernels)  # fills caches by structure
    few, many = (work(network(layers), kernels) for layers in (24, 48))
    ratios = {name: many[name] / n for name, n in few.items() if n > _LEAST}
    assert len(ratios) > 5
    assert {name: ratio for name, ratio in ratios.items() if ratio > 2.1} == {}
