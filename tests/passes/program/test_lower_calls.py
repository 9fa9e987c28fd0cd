"""Calls, data-dependent sizes and states, compiled and run, agree with the evaluator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import const, symbol
from tcc.ir.types import BOOL, F32, I64, tensor
from tcc.ops import OPS
from tcc.passes.program.lower_node import check_runnable
from tcc.runtime.module import Module

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Graph], Module]


def equal(graph: Graph, module: Module, feeds: dict[str, Array]) -> None:
    reference, outputs = evaluate_graph(graph, feeds), module.run(feeds)
    for name, array in reference.items():
        np.testing.assert_array_equal(outputs[name], array, err_msg=name)


def data_dependent() -> Graph:
    """Returns a graph of every call with a data-dependent result size, followed by work on the
    result."""
    b = GraphBuilder("g")
    x, flags = b.input("x", tensor(F32, 3, 5)), b.input("flags", tensor(BOOL, 3))
    (picked,) = b.add(OPS["compress"], [x, flags], OPS["compress"].attrs(0, symbol("rows")))
    (twice,) = b.add(OPS["add"], [picked, picked], names=["twice"])
    (places,) = b.add(OPS["non_zero"], [x], OPS["non_zero"].attrs(symbol("k")))
    (places,) = b.add(OPS["neg"], [places], names=["places"])
    unique = b.add(
        OPS["unique"], [x], OPS["unique"].attrs(None, True, symbol("u")), names=["u", "f", "i", "c"]
    )
    (double,) = b.add(OPS["add"], [unique[0], unique[0]], names=["double"])
    return b.finish([twice, places, *unique[:1], double, *unique[2:]])


def test_sizes_that_data_decide(compiled: Run) -> None:
    graph = data_dependent()
    module = compiled(graph)
    x = np.array([[0, 1, 2, 0, 5], [2, 2, 0, 0, 1], [3, 0, 0, 0, 9]], np.float32)
    for flags in ([True, False, True], [False, False, True], [True, True, True]):
        equal(graph, module, {"x": x, "flags": np.array(flags)})
    equal(graph, module, {"x": np.ones_like(x), "flags": np.array([True, False, False])})


def test_a_size_may_be_all_that_is_used(compiled: Run) -> None:
    b = GraphBuilder("g")
    x, k = b.input("x", tensor(F32, 5)), symbol("k")
    b.add(OPS["non_zero"], [x], OPS["non_zero"].attrs(k))
    graph = b.finish(b.add(OPS["dims"], [], OPS["dims"].attrs((k + 1,)), names=["count"]))
    module = compiled(graph)
    for count in (0, 3, 5):
        equal(graph, module, {"x": (np.arange(5) < count).astype(np.float32)})


def test_top_k_and_scatters(compiled: Run) -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, 4, 6))
    places, rows = b.input("places", tensor(I64, 2, 6)), b.input("rows", tensor(I64, 3, 1))
    top = OPS["top_k"].attrs(1, const(3), True, True)
    best, where = b.add(OPS["top_k"], [x], top, names=["best", "where"])
    (two,) = b.add(
        OPS["slice"], [x], OPS["slice"].attrs((const(1), const(0)), (1, 1), (const(2), const(6)))
    )
    outputs = [best, where]
    for reduction in ("none", "add", "mul", "max", "min"):
        op = OPS["scatter_elements"]
        outputs += b.add(op, [x, places, two], op.attrs(0, reduction), names=[f"e_{reduction}"])
        op = OPS["scatter_nd"]
        (three,) = b.add(
            OPS["slice"], [x], OPS["slice"].attrs((const(0),) * 2, (1, 1), (const(3), const(6)))
        )
        outputs += b.add(op, [x, rows, three], op.attrs(reduction), names=[f"n_{reduction}"])
    graph = b.finish(outputs)
    module = compiled(graph)
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((4, 6)).astype(np.float32),
        "places": rng.permuted(np.array([[0] * 6, [-1] * 6]), axis=0),
        "rows": np.array([[-4], [2], [2]]),
    }
    equal(graph, module, feeds)
    with pytest.raises(RuntimeError, match="index 4 of an axis of 4"):
        module.run({**feeds, "rows": np.array([[0], [4], [1]])})


def test_max_unpool_and_suppression(compiled: Run) -> None:
    b = GraphBuilder("g")
    x, at = b.input("x", tensor(F32, 1, 1, 2, 2)), b.input("at", tensor(I64, 1, 1, 2, 2))
    shape = tuple(map(const, (1, 1, 4, 4)))
    (wide,) = b.add(OPS["max_unpool"], [x, at], OPS["max_unpool"].attrs(shape), names=["wide"])
    boxes, scores = b.input("boxes", tensor(F32, 2, 9, 4)), b.input("scores", tensor(F32, 2, 3, 9))
    most, iou = b.constant(np.asarray(4), "most"), b.input("iou", tensor(F32))
    op = OPS["non_max_suppression"]
    (indices,) = b.add(op, [boxes, scores, most, iou], op.attrs(0, symbol("kept")), names=["kept"])
    graph = b.finish([wide, indices])
    module = compiled(graph)
    rng = np.random.default_rng(2)
    feeds = {
        "x": rng.standard_normal((1, 1, 2, 2)).astype(np.float32),
        "at": np.array([[[[5, 7], [13, 10]]]]),
        "boxes": rng.uniform(0, 1, (2, 9, 4)).astype(np.float32),
        "scores": rng.random((2, 3, 9)).astype(np.float32),
    }
    for limit in (0.1, 0.5, 1.0):
        equal(graph, module, {**feeds, "iou": np.asarray(limit, np.float32)})


def test_a_computed_size_is_bound_and_checked(compiled: Run) -> None:
    b = GraphBuilder("g")
    x, n = b.input("x", tensor(F32)), b.input("n", tensor(I64, 2))
    size = symbol("m", 1, 8)
    b.add(OPS["bind_size"], [n], OPS["bind_size"].attrs(size, 1), loc="here")
    (wide,) = b.add(OPS["expand"], [x], OPS["expand"].attrs((size,)), names=["wide"])
    require = OPS["require"].attrs(size, const(5), "of this test")
    b.add(OPS["require"], [], require, loc="there")
    graph = b.finish([wide])
    module = compiled(graph)
    x0 = np.asarray(3, np.float32)
    equal(graph, module, {"x": x0, "n": np.array([7, 5])})
    with pytest.raises(RuntimeError, match="there: m must be 5, because of this test"):
        module.run({"x": x0, "n": np.array([7, 4])})
    with pytest.raises(RuntimeError, match="here, size m: at most 8"):
        module.run({"x": x0, "n": np.array([7, 9])})


def test_a_computed_size_below_zero_is_refused(compiled: Run) -> None:
    b = GraphBuilder("g")
    x, n = b.input("x", tensor(F32)), b.input("n", tensor(I64, 1))
    size = symbol("m", 0, 8)
    b.add(OPS["bind_size"], [n], OPS["bind_size"].attrs(size, 0), loc="here")
    (wide,) = b.add(OPS["expand"], [x], OPS["expand"].attrs((size,)), names=["wide"])
    graph = b.finish([wide])
    module = compiled(graph)
    x0 = np.asarray(3, np.float32)
    equal(graph, module, {"x": x0, "n": np.array([0])})
    with pytest.raises(RuntimeError, match=r"here, size m: at least 0 is due \(0, -1\)"):
        module.run({"x": x0, "n": np.array([-1])})


def test_nodes_that_nothing_runs_are_all_named() -> None:
    b = GraphBuilder("g")
    x, unknown = b.input("x", tensor(F32, 2, 2)), replace(OPS["det"], name="unknown")
    outputs = []
    for name in ("first", "second"):
        outputs += b.add(unknown, [x], unknown.attrs(), loc=name, names=[name])
    with pytest.raises(UserError, match=r"(?s)unknown at first.*unknown at second"):
        check_runnable(b.finish(outputs))
