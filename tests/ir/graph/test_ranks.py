"""Constants with one array per rank share a handle, and passes do not see their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tcc.errors import InternalError, UserError
from tcc.ir.graph import ConstantStore, Graph, GraphBuilder, constant_bytes
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.text import graph_text
from tcc.ir.graph.verify import verify_graph
from tcc.ir.op import OpSpec
from tcc.ir.types import F32, tensor

from tests.lib.oracle.graph.parse import parse_graph
from tests.lib.oracle.graph_of_rank import evaluate_rank, without_exchange

Ops = Mapping[str, OpSpec]
PARTS = [np.full((3,), n, np.float32) for n in (1, 2, 1)]


def divided(ops: Ops) -> Graph:
    """Returns a graph of x + 1 on ranks 0 and 2, x + 2 on rank 1."""
    b = GraphBuilder("main")
    x = b.input("x", tensor(F32, 3))
    w = b.constant_per_rank(PARTS, "w", sources=["weight"])
    assert b.array(w) is None
    assert b.sources(w) == ("weight",)
    return b.finish(b.add(ops["add"], [x, w], names=["y"]))


def test_a_store_keeps_one_array_per_rank_under_one_handle() -> None:
    store = ConstantStore()
    handle = store.put_per_rank(PARTS)
    arrays = store.arrays(handle)
    np.testing.assert_array_equal(arrays, PARTS)
    assert arrays[0] is arrays[2]  # equal contents are stored once
    assert not any(array.flags.writeable for array in arrays)
    assert store.put_per_rank([part.copy() for part in PARTS]) == handle
    assert store.put_per_rank(PARTS[1:]) != handle
    assert store.put_per_rank(PARTS[::-1]) == handle
    assert store.put_per_rank([PARTS[1], PARTS[0], PARTS[0]]) != handle
    np.testing.assert_array_equal(store.on_rank(handle, 1), PARTS[1])
    assert store.common(handle) is None
    with pytest.raises(InternalError, match="another array on each rank"):
        store.get(handle)
    with pytest.raises(InternalError, match="for 3 ranks has no array for rank 3"):
        store.on_rank(handle, 3)


def test_equal_arrays_of_all_ranks_are_an_ordinary_constant() -> None:
    store = ConstantStore()
    handle = store.put_per_rank([PARTS[0], PARTS[2]])
    assert handle == store.put(PARTS[0])
    assert store.ranks(handle) == 1
    np.testing.assert_array_equal(store.on_rank(handle, 1), PARTS[0])


def test_another_store_adopts_the_arrays_of_all_ranks() -> None:
    store, other = ConstantStore(), ConstantStore()
    handle = other.put_per_rank(PARTS, sources=["weight"])
    store.adopt(handle, other)
    pairs = zip(store.arrays(handle), other.arrays(handle), strict=True)
    assert all(array is twin for array, twin in pairs)
    assert store.sources(handle) == ("weight",)
    assert list(store.handles()) == [handle]


@pytest.mark.parametrize(
    "arrays",
    [
        [],
        [np.zeros(2, np.float32), np.zeros(3, np.float32)],
        [np.zeros(2, np.float32), np.zeros(2, np.int32)],
    ],
    ids=["no array", "two shapes", "two types"],
)
def test_arrays_of_different_types_are_refused(arrays: list[np.ndarray[Any, Any]]) -> None:
    with pytest.raises(InternalError, match="different types"):
        ConstantStore().put_per_rank(arrays)


def test_a_graph_does_not_show_values_that_differ_by_rank(ops: Ops) -> None:
    graph = divided(ops)
    verify_graph(graph)
    (value,) = graph.constants
    assert graph.constant(value) is None
    assert constant_bytes(graph) == 12  # the bytes of one rank


def test_text_names_the_number_of_ranks(ops: Ops) -> None:
    graph = divided(ops)
    text = graph_text(graph)
    (handle,) = graph.constants.values()
    assert f"%w = const @{handle.digest[:16]} on 3 ranks : f32[3]" in text
    assert graph_text(parse_graph(text, ops, graph.store)) == text
    for wrong in (" on 2 ranks", ""):
        with pytest.raises(UserError, match="another number of arrays"):
            parse_graph(text.replace(" on 3 ranks", wrong), ops, graph.store)


def test_the_evaluator_takes_the_arrays_of_its_rank(ops: Ops) -> None:
    graph, x = divided(ops), np.arange(3, dtype=np.float32)
    for rank, part in enumerate(PARTS):
        outputs = evaluate_rank(graph, {"x": x}, without_exchange, rank)
        np.testing.assert_array_equal(outputs["y"], x + part)
    with pytest.raises(InternalError, match="another array on each rank"):
        evaluate_graph(graph, {"x": x})
