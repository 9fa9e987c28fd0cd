"""States are updated in place, by scatters into a cache and by rows appended to a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.verify import verify_graph
from tcc.ir.index import IndexLike, as_int, const, symbol
from tcc.ir.types import F32, I64, tensor
from tcc.ops import OPS
from tcc.passes.graph.state import appends_entry, bind_states, updates_in_place
from tcc.runtime.module import Module

from tests.passes.placing import place_graph

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Graph], Module]

P, S = symbol("p"), symbol("s")


def cache(reader_behind: bool) -> Graph:
    """Returns a cache of 4 rows, whose row `at` becomes x; y sums the rows after the update, or
    before it."""
    b = GraphBuilder("g")
    past, x = b.input("past", tensor(F32, 4, 3)), b.input("x", tensor(F32, 1, 3))
    at = b.input("at", tensor(I64, 1, 1))
    op = OPS["scatter_nd"]
    (present,) = b.add(op, [past, at, x], op.attrs("none"), names=["present"])
    total = OPS["reduce_sum"].attrs((0,), False)
    (y,) = b.add(OPS["reduce_sum"], [present], total, names=["late" if reader_behind else "y"])
    if reader_behind:
        (early,) = b.add(OPS["reduce_sum"], [past], total)
        (y,) = b.add(OPS["sub"], [y, early], names=["y"])
    return bind_states(b.finish([y, present]), [("past", "present")])


@pytest.mark.parametrize("reader_behind", [False, True])
def test_a_cache_is_updated_in_the_callers_array(compiled: Run, reader_behind: bool) -> None:
    graph = cache(reader_behind)
    module = compiled(graph)
    past = np.arange(12, dtype=np.float32).reshape(4, 3)
    mirror = past.copy()
    for row in (2, 0, 2):
        x = np.full((1, 3), row + 10.0, np.float32)
        feeds = {"x": x, "at": np.array([[row]])}
        reference = evaluate_graph(graph, {**feeds, "past": mirror})
        outputs = module.run({**feeds, "past": past})
        np.testing.assert_array_equal(outputs["y"], reference["y"])
        mirror = reference["present"]
        assert outputs["present"] is past
        np.testing.assert_array_equal(past, mirror)


def test_states_may_trade_places(compiled: Run) -> None:
    b = GraphBuilder("g")
    form = tensor(F32, 3)
    one, two = b.input("one", form), b.input("two", form)
    (sum_,) = b.add(OPS["add"], [one, two], names=["sum"])
    swap = bind_states(b.finish([two, one, sum_]), [("one", "two"), ("two", "one")])
    module = compiled(swap)
    a, c = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)
    outputs = module.run({"one": a, "two": c})
    np.testing.assert_array_equal(a, [4, 5, 6])
    np.testing.assert_array_equal(c, [1, 2, 3])
    np.testing.assert_array_equal(outputs["sum"], [5, 7, 9])


@pytest.mark.parametrize("reader_behind", [False, True])
def test_only_the_last_reader_may_scatter_in_place(reader_behind: bool) -> None:
    graph = cache(reader_behind)
    ((present, past),) = graph.aliases
    assert updates_in_place(place_graph(graph), present, past) == (not reader_behind)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("pas", "present")], "no input 'pas'"),
        ([("past", "now")], "no output 'now'"),
        ([("past", "present"), ("past", "y")], "given twice"),
        ([("x", "present")], "must keep its size"),
        ([("at", "present")], "changes its type"),
    ],
)
def test_bad_states_are_refused(pairs: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        bind_states(replace(cache(False), aliases=()), pairs)


# ---- rows appended to a cache --------------------------------------------------------------------


def growing(rows: IndexLike, new: IndexLike, *, late: bool = False, parts: int = 1) -> Graph:
    """Returns present = concat(past, x, ...) along axis 1, and y = the sum of present minus twice
    the sum of past. With `late`, past is read after the update."""
    b = GraphBuilder("g")
    past, x = b.input("past", tensor(F32, 2, rows, 3)), b.input("x", tensor(F32, 2, new, 3))
    sums = OPS["reduce_sum"].attrs((1,), False)
    concat = [past, *[x] * parts], OPS["concat"].attrs(1)
    if not late:
        (old,) = b.add(OPS["reduce_sum"], [past], sums)
    (present,) = b.add(OPS["concat"], *concat, names=["present"])
    (all_,) = b.add(OPS["reduce_sum"], [present], sums)
    if late:
        (twice,) = b.add(OPS["add"], [past, past])
        (old,) = b.add(OPS["reduce_sum"], [twice], sums)
    (y,) = b.add(OPS["sub"], [all_, old], names=["y"])
    return b.finish([y, present])


def normal(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("rows", "new", "parts"), [(4, 1, 1), (4, 2, 3), (P, 1, 1), (P, S, 1), (P, S, 2)]
)
def test_a_growing_cache_gets_room_for_its_new_rows(
    compiled: Run, rows: IndexLike, new: IndexLike, parts: int, late: bool
) -> None:
    model = growing(rows, new, late=late, parts=parts)
    graph = bind_states(model, [("past", "present")])
    verify_graph(graph)
    ((present, room),) = graph.aliases
    size = const(1) * new * parts
    entry = {"input": "past", "axis": 1, "rows": size.key if as_int(size) is None else as_int(size)}
    assert appends_entry(graph) == {"appends": [entry]}
    assert updates_in_place(place_graph(graph), present, room)
    module = compiled(graph)
    old = 4
    memory = np.full((2, 64, 3), np.nan, np.float32)
    memory[:, :old] = normal(2, old, 3)
    for n in (2, 1) if new is S else (new, new) if rows is P else (new,):
        x = normal(2, n, 3) * n
        reference = evaluate_graph(model, {"past": memory[:, :old], "x": x})
        caller_view = np.ascontiguousarray(memory[:, : old + n * parts])
        evaluated = evaluate_graph(graph, {"past": caller_view, "x": x})
        outputs = module.run({"past": caller_view, "x": x})
        assert outputs["present"] is caller_view
        for name, array in reference.items():
            np.testing.assert_array_equal(evaluated[name], array, err_msg=name)
            np.testing.assert_allclose(outputs[name], array, rtol=1e-6, atol=1e-6, err_msg=name)
        old += n * parts
        memory[:, :old] = caller_view


def test_a_cache_may_be_appended_to_itself(compiled: Run) -> None:
    b = GraphBuilder("g")
    past = b.input("past", tensor(F32, P, 3))
    twice = b.add(OPS["concat"], [past, past], OPS["concat"].attrs(0), names=["present"])
    module = compiled(bind_states(b.finish(twice), [("past", "present")]))
    room = normal(6, 3)
    reference = np.concatenate([room[:3], room[:3]])
    module.run({"past": room})
    np.testing.assert_array_equal(room, reference)
    with pytest.raises(RuntimeError, match=r"dimension 0: 2\*p is due"):
        module.run({"past": normal(5, 3)})


def test_an_array_without_room_is_refused(compiled: Run) -> None:
    module = compiled(bind_states(growing(P, 2), [("past", "present")]))
    with pytest.raises(RuntimeError, match="at least 2 is due"):
        module.run({"past": normal(2, 1, 3), "x": normal(2, 2, 3)})
    module.run({"past": normal(2, 2, 3), "x": normal(2, 2, 3)})


def test_a_reader_of_the_new_rows_memory_forces_a_copy() -> None:
    graph = bind_states(growing(4, 1), [("past", "present")])
    ((present, room),) = graph.aliases
    (reader,) = (n for n in graph.nodes if n.op.name == "slice")
    wide = replace(reader.attrs, starts=(const(0), const(1), const(0)))
    nodes = tuple(replace(n, attrs=wide) if n is reader else n for n in graph.nodes)
    order = sorted(nodes, key=lambda n: n.op.name != "update_slice")  # the update runs first
    assert not updates_in_place(place_graph(replace(graph, nodes=tuple(order))), present, room)


def concat_of(order: tuple[str, ...], *, between: bool = False) -> Graph:
    b = GraphBuilder("g")
    past, x = b.input("past", tensor(F32, 2, P)), b.input("x", tensor(F32, 2, 1))
    values = {"past": past, "x": x}
    if between:
        (values["past"],) = b.add(OPS["neg"], [past])
    grown = [values[name] for name in order]
    return b.finish(b.add(OPS["concat"], grown, OPS["concat"].attrs(1), names=["present"]))


@pytest.mark.parametrize(
    "model",
    [concat_of(("x", "past")), concat_of(("past", "x"), between=True)],
    ids=["behind", "between"],
)
def test_other_growth_is_refused(model: Graph) -> None:
    with pytest.raises(UserError, match="cannot grow, unless present is a Concat of past"):
        bind_states(model, [("past", "present")])


def test_sizes_that_nothing_tells_are_refused(compiled: Run) -> None:
    b = GraphBuilder("g")
    one, two = b.input("one", tensor(F32, P)), b.input("two", tensor(F32, S))
    concat = OPS["concat"]
    (first,) = b.add(concat, [one, two], concat.attrs(0), names=["first"])
    (second,) = b.add(concat, [two, one], concat.attrs(0), names=["second"])
    graph = bind_states(b.finish([first, second]), [("one", "first"), ("two", "second")])
    with pytest.raises(UserError, match=r"(?s)cannot be derived.*input one, dimension 0"):
        compiled(graph)
