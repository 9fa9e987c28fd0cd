"""Rebuilding keeps the inputs and outputs of a graph; rules reach a fixed point, or an error names
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcc.errors import InternalError
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, walk_nodes
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.rewrite import RewriteSite, Rule, apply_rules, rebuild, without_dead
from tcc.ir.graph.text import graph_text
from tcc.ir.graph.verify import verify_graph
from tcc.ir.index import symbol
from tcc.ir.op import OpSpec
from tcc.ir.types import BOOL, F32, tensor

from tests.ir.generate import graphs

Ops = Mapping[str, OpSpec]
FORM = tensor(F32, symbol("n", 1), 2)
DATA = np.arange(6, dtype=np.float32).reshape(3, 2)


def keep(builder: GraphBuilder, node: Node, inputs: Any) -> None:
    return None


def used_ops(graph: Graph) -> list[str]:
    return [node.op.name for node in walk_nodes(graph)]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_keeping_every_node_gives_the_same_text(ops: Ops, data: st.DataObject) -> None:
    graph = data.draw(graphs(ops))
    verify_graph(graph)
    again = rebuild(graph, keep)
    assert graph_text(again) == graph_text(graph)
    verify_graph(again)
    verify_graph(without_dead(again))


def double_negation(ops: Ops) -> Rule:
    def rewrite(site: RewriteSite) -> Value | None:
        if site.node.op.name != "neg":
            return None
        before = site.producer(0)
        return before.inputs[0] if before and before.op.name == "neg" else None

    return Rule("double negation", rewrite)


def swap(ops: Ops) -> Rule:
    def rewrite(site: RewriteSite) -> Sequence[Value] | None:
        if site.node.op.name != "add":
            return None
        return site.builder.add(ops["add"], site.inputs[::-1])

    return Rule("swap", rewrite)


def negated_twice(ops: Ops) -> Graph:
    b = GraphBuilder("example")
    (y,) = b.add(ops["neg"], b.add(ops["neg"], [b.input("x", FORM)]))
    return b.finish(b.add(ops["add"], [y, y], names=["z"]))


def chain(ops: Ops, length: int) -> Graph:
    b = GraphBuilder("chain")
    value = b.input("x", FORM)
    for number in range(length):
        (value,) = b.add(ops["neg"], [value], names=[f"neg.{number}"])
    (out,) = b.add(ops["add"], [value, value], names=["out"])
    return b.finish([out], ((out, b._inputs[0]),))


@pytest.mark.parametrize("length", [0, 1, 2, 3, 8])
def test_a_rule_reaches_its_fix_point(ops: Ops, length: int) -> None:
    before = chain(ops, length)
    after = apply_rules(before, [double_negation(ops)])
    verify_graph(after)
    assert used_ops(after) == ["neg"] * (length % 2) + ["add"]
    assert [v.name for v in after.outputs] == ["out"]
    assert after.aliases == ((after.outputs[0], after.inputs[0]),)
    expected = evaluate_graph(before, {"x": DATA})["out"]
    np.testing.assert_array_equal(evaluate_graph(after, {"x": DATA})["out"], expected)


def test_the_rule_that_never_ends_is_named(ops: Ops) -> None:
    rules = [double_negation(ops), swap(ops)]
    with pytest.raises(InternalError, match="rule swap still fires after 64 sweeps over example"):
        apply_rules(negated_twice(ops), rules)


def test_nodes_that_are_added_have_the_location_of_what_they_replace(ops: Ops) -> None:
    b = GraphBuilder("g")
    (y,) = b.add(ops["neg"], [b.input("x", FORM)], loc="old")
    graph = b.finish(b.add(ops["neg"], [y], loc="older"))
    for loc in (None, "new"):
        rebuilt = rebuild(
            graph, lambda b, _, inputs, loc=loc: b.add(ops["add"], inputs * 2, loc=loc)
        )
        assert [n.loc for n in rebuilt.nodes] == (["new"] * 2 if loc else ["old", "older"])


def test_outputs_keep_their_names(ops: Ops) -> None:
    """An output may take the place of another value, but not of an input or another output."""
    b = GraphBuilder("g")
    x = b.input("x", FORM)
    (one,) = b.add(ops["neg"], [x], names=["one"])
    (two,) = b.add(ops["neg"], [one], names=["two"])
    (three,) = b.add(ops["neg"], [two], names=["three"])
    (sum_,) = b.add(ops["add"], [x, x], names=["sum"])
    (minus,) = b.add(ops["neg"], [sum_], names=["minus"])
    (plus,) = b.add(ops["neg"], [minus], names=["plus"])
    before = b.finish([two, one, three, plus])
    after = apply_rules(before, [double_negation(ops)])
    verify_graph(after)
    assert [v.name for v in after.outputs] == ["two", "one", "three", "plus"]
    assert "%plus = add(%x, %x)" in graph_text(after)
    expected = evaluate_graph(before, {"x": DATA})
    outputs = evaluate_graph(after, {"x": DATA})
    for name, array in expected.items():
        np.testing.assert_array_equal(outputs[name], array)


def test_rules_rewrite_bodies_and_see_outer_values(ops: Ops) -> None:
    b = GraphBuilder("g")
    c, x = b.input("c", tensor(BOOL)), b.input("x", FORM)
    (outside,) = b.add(ops["neg"], [x], names=["outside"])
    body = GraphBuilder("then", parent=b)
    (inside,) = body.add(ops["neg"], [outside], names=["inside"])
    other = GraphBuilder("otherwise", parent=b)
    branches = ops["if"].attrs(body.finish([inside]), other.finish([x]))
    (y,) = b.add(ops["if"], [c], branches, names=["y"])
    after = apply_rules(b.finish([y]), [double_negation(ops)])
    verify_graph(after)
    assert used_ops(after) == ["if"]
    outputs = evaluate_graph(after, {"x": DATA, "c": np.array(True)})
    np.testing.assert_array_equal(outputs["y"], DATA)


def test_an_output_folded_to_a_constant_keeps_its_name(ops: Ops) -> None:
    b = GraphBuilder("g")
    w = b.constant(np.ones((2, 2), np.float32), "w")
    (y,) = b.add(ops["add"], [w, w], names=["y"])

    def fold(builder: GraphBuilder, node: Node, inputs: Any) -> Sequence[Value] | None:
        arrays = [builder.array(v) for v in inputs]
        if any(a is None for a in arrays):
            return None
        return [builder.constant(node.op.reference(arrays, node.attrs)[0], "folded")]

    after = rebuild(b.finish([y]), fold)
    verify_graph(after)
    assert not after.nodes
    np.testing.assert_array_equal(evaluate_graph(after, {})["y"], np.full((2, 2), 2))


def test_a_rewrite_may_not_change_types(ops: Ops) -> None:
    def wrong(builder: GraphBuilder, node: Node, inputs: Any) -> Sequence[Value]:
        return [builder.constant(np.float32(1))]

    with pytest.raises(InternalError, match="rewrite of add changes its results"):
        rebuild(chain(ops, 0), wrong)
