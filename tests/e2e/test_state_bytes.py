"""`--state-type int8` stores caches as bytes with a scale for each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tcc
from tcc.ir.graph import GraphBuilder
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.verify import verify_graph
from tcc.ir.index import symbol
from tcc.ir.types import DTYPES, F32, I8, tensor
from tcc.ops import OPS
from tcc.passes.graph.state import bind_states
from tcc.runtime.module import Module

from tests.draws import RNG
from tests.lib.language_model import HEADS, STATES, WIDTH, language_model, tables

Array = np.ndarray[Any, np.dtype[Any]]
CAPACITY, WORDS = 110, 20


@pytest.fixture(scope="module")
def module() -> Module:
    pairs = dict(pair.split("=") for pair in STATES)
    return tcc.compile(language_model(WORDS), state=pairs, state_type="int8", level=1, jobs=1)


def rounded(rows: Array) -> tuple[Array, Array]:
    """Returns the levels of `rows` and their scales, in float64."""
    scales = np.maximum(np.abs(rows).max(-1, keepdims=True), 2.0**-100) / 127
    return np.round(rows / scales), scales


class Oracle:
    """The language model in float64, whose caches are rounded as they are written."""

    def __init__(self) -> None:
        self.tables: Mapping[str, Array] = {n: a.astype("f8") for n, a in tables(WORDS, 0).items()}
        self.caches = {name: np.zeros((0, HEADS, WIDTH)) for name in "kv"}

    def run(self, tokens: Array) -> Array:
        t, past, count = self.tables, len(self.caches["k"]), len(tokens)
        x = t["words"][tokens] + t["places"][past : past + count]
        for name in "kv":
            levels, scales = rounded((x @ t[f"w{name}"]).reshape(count, HEADS, WIDTH))
            self.caches[name] = np.concatenate([self.caches[name], levels * scales])
        q = (x @ t["wq"]).reshape(count, HEADS, WIDTH)
        scores = np.einsum("qhw,khw->hqk", q, self.caches["k"]) * WIDTH**-0.5
        later = np.arange(past + count) > np.arange(past, past + count)[:, None]
        scores = np.exp(np.where(later, -np.inf, scores))
        weights = scores / scores.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khw->qhw", weights, self.caches["v"]).reshape(count, -1)
        result: Array = (x + mixed @ t["wo"]) @ t["head"]
        return result


def test_logits_and_rows_are_those_of_rounded_caches(module: Module) -> None:
    """A prefix keeps its bytes, whatever follows it."""
    types = {port.name: port.dtype for port in module.inputs}
    assert types["cache.0.k"] == "i8"
    assert types["cache.0.v.scales"] == "f32"
    sizes = {"i8": (np.int8, WIDTH), "f32": (np.float32, 1)}
    memory = {
        name: np.zeros((CAPACITY, HEADS, sizes[types[name]][1]), sizes[types[name]][0])
        for name in types
        if name.startswith("cache")
    }
    oracle, length = Oracle(), 0
    for count in (1, 2, 100, 1):
        tokens, end = RNG.integers(0, WORDS, count), length + count
        before = {name: array[:length].copy() for name, array in memory.items()}
        views = {name: array[:end] for name, array in memory.items()}
        logits = module.run({"tokens": tokens, "rows": np.arange(count), **views})["logits"]
        np.testing.assert_allclose(logits, oracle.run(tokens), rtol=1e-3, atol=1e-3)
        for name, array in before.items():
            np.testing.assert_array_equal(memory[name][:length], array)
        for name in "kv":
            read = memory[f"cache.0.{name}"][:end] * memory[f"cache.0.{name}.scales"][:end]
            np.testing.assert_allclose(read, oracle.caches[name], rtol=1e-5, atol=1e-5)
        length = end


@pytest.mark.parametrize("wide", ["f16", "f32", "f64"])
@pytest.mark.parametrize("axis", [1, 2])
def test_rows_of_special_values(wide: str, axis: int) -> None:
    """Zeros stay zeros; a NaN or an infinity makes its own row NaN; axis 2 grows along the end."""
    rows = np.array([[0, 0, 0], [1, np.nan, 2], [np.inf, 1, 0], [1, -2, 0.5], [1e-30, 0, 0]])
    rows = rows.astype(DTYPES[wide].carrier)
    turn = (lambda a: a) if axis == 1 else (lambda a: a.swapaxes(1, 2))
    b, past = GraphBuilder("g"), symbol("p")
    old = (1, past, 3) if axis == 1 else (1, 3, past)
    old_rows = b.input("past", tensor(DTYPES[wide], *old))
    new = b.input("x", tensor(DTYPES[wide], *turn(rows[None]).shape))
    (present,) = b.add(OPS["concat"], [old_rows, new], OPS["concat"].attrs(axis), names=["present"])
    (y,) = b.add(OPS["abs"], [present], names=["y"])
    graph = bind_states(b.finish([y, present]), [("past", "present")], I8)
    verify_graph(graph)
    assert [v.dtype for v in graph.inputs] == [I8, DTYPES[wide], F32]
    shape = turn(np.zeros((1, 5, 3))).shape
    scales = turn(np.zeros((1, 5, 1))).shape
    feeds = {"past": np.zeros(shape, np.int8), "past.scales": np.zeros(scales, np.float32)}
    with np.errstate(invalid="ignore"):
        rows_read = turn(evaluate_graph(graph, {**feeds, "x": turn(rows[None])})["y"])[0]
    levels, size = rounded(np.nan_to_num(rows.astype("f8"), nan=0, posinf=0))
    reference = np.abs(levels * size)
    reference[1:3] = np.nan
    np.testing.assert_allclose(rows_read, reference, rtol=2e-3, atol=1e-40)
