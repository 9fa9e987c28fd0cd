"""Every rule applies to its example, and does not apply where it would be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tcc.ir.graph import Graph, GraphBuilder, walk_nodes
from tcc.ir.graph.rewrite import Rule, apply_rules
from tcc.ir.graph.text import graph_text
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.passes.graph.canonicalize import RULES, canonicalize

from .rule_examples import EXAMPLES

Read = Callable[..., Graph]
Agree = Callable[..., None]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_fires_on_its_example_and_keeps_the_meaning(rule: Rule, agree: Agree) -> None:
    before = EXAMPLES[rule.name]()
    after = apply_rules(before, [rule])
    assert graph_text(after) != graph_text(before)
    rounded = rule.name in ("small power", "one plus erf")
    agree(before, after, tolerance=1e-6 if rounded else 0.0)
    assert canonicalize(after) is after or rule.name != "moves nothing"


def one_node(read: Read, node: str, result: str = "f32[2,3]", **constants: Any) -> Graph:
    """Returns `y = relu(NODE)` of inputs x, z : f32[2,3]; each constant is @NAME."""
    lines = "".join(
        f"  %{name} = const @{name} : {_form(array)}\n" for name, array in constants.items()
    )
    text = (
        f"graph g(%x : f32[2,3], %z : f32[2,3]) {{\n{lines}  %a = {node} : {result}\n"
        f"  %y = relu(%a) : {result}\n  return %y\n}}\n"
    )
    return read(text, **constants)


def _form(array: Any) -> str:
    data = np.asarray(array)
    name = {"float32": "f32", "int64": "i64", "bool": "bool"}[data.dtype.name]
    return f"{name}[{','.join(map(str, data.shape))}]"


F = np.float32


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        ("add(%x, %c)", {"c": F([0.0])}),  # -0.0 + 0.0 is 0.0
        ("sub(%x, %c)", {"c": F([-0.0])}),
        ("mul(%x, %c)", {"c": F([1, 1, 2])}),
        ("mul(%x, %c)", {"c": F([0])}),  # NaN * 0
        ("sub(%c, %x)", {"c": F([0])}),
        ("div(%c, %x)", {"c": F([1])}),
        ("div(%x, %c)", {"c": F([2, 3, 4])}),
        ("div(%x, %c)", {"c": F([2.0**-127])}),  # the divisor is subnormal
        ("div(%x, %c)", {"c": F([np.inf])}),
        ("pow(%x, %c)", {"c": F([0.5])}),
        ("pow(%x, %c)", {"c": F([2, 3, 2])}),
        ("pow(%x, %c)", {"c": F([-1])}),
        ("max(%x, %z)", {}),
        ("transpose(%x) {perm=(1, 0)}", {}),
        ("concat(%x, %z) {axis=0}", {}),
        ("where(%c, %x, %z)", {"c": np.array([True, False, True])}),
        ("slice(%x) {starts=(0, 1), steps=(1, -1), sizes=(2, 2)}", {}),
    ],
)
def test_inexact_rewrites_are_not_made(read: Read, node: str, constants: dict[str, Any]) -> None:
    results = {"transpose": "f32[3,2]", "concat": "f32[4,3]", "slice": "f32[2,2]"}
    result = results.get(node.partition("(")[0], "f32[2,3]")
    graph = one_node(read, node, result, **constants)
    assert canonicalize(graph) is graph


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        ("add(%x, %c)", {"c": F([[[0.0]]]) * F(-1)}),  # the broadcast adds an axis
        ("mul(%x, %c)", {"c": np.ones((4, 1, 1), F)}),
        ("where(%c, %x, %z)", {"c": np.ones((4, 1, 1), np.bool_)}),
    ],
)
def test_a_broadcast_is_not_lost(read: Read, node: str, constants: dict[str, Any]) -> None:
    first = np.asarray(constants["c"]).shape[0]
    graph = one_node(read, node, f"f32[{first},2,3]", **constants)
    assert canonicalize(graph) is graph


def test_chains_end_in_one_node(read: Read, agree: Agree) -> None:
    before = read("""\
size n in [1,]
graph g(%x : f32[n,2,3]) {
  %a = transpose(%x) {perm=(0, 2, 1)} : f32[n,3,2]
  %b = transpose(%a) {perm=(0, 2, 1)} : f32[n,2,3]
  %c = reshape(%b) {shape=(n, 6)} : f32[n,6]
  %d = identity(%c) : f32[n,6]
  %e = reshape(%d) {shape=(n, 3, 2)} : f32[n,3,2]
  %f = expand(%e) {shape=(n, 3, 2)} : f32[n,3,2]
  return %f
}
""")
    after = canonicalize(before)
    assert (
        graph_text(after)
        == """\
size n in [1,]
graph g(%x : f32[n,2,3]) {
  %f = reshape(%x) {shape=(n, 3, 2)} : f32[n,3,2]
  return %f
}
"""
    )
    agree(before, after, n=3)


def test_an_output_that_is_an_input_stays_a_node(read: Read, agree: Agree) -> None:
    graph = read("""\
graph g(%x : f32[2]) {
  %y = identity(%x) : f32[2]
  %z = identity(%y) : f32[2]
  return %y, %z
}
""")
    after = canonicalize(graph)
    assert len(after.nodes) == 2
    agree(graph, after)


@pytest.mark.parametrize("taken", [True, False])
def test_a_known_if_gives_way_with_its_captures(read: Read, agree: Agree, taken: bool) -> None:
    before = read(
        """\
graph g(%x : f32[2]) {
  %c = const @c : bool[]
  %k = const @k : f32[2]
  %y, %z, %w = if(%c) {then=graph t() {
    %i = const @k : f32[2]
    %a = add(%x, %i) : f32[2]
    return %a, %a, %x
  }, otherwise=graph o() {
    %b = if(%c) {then=graph p() {
      return %x
    }, otherwise=graph q() {
      %d = neg(%x) : f32[2]
      return %d
    }, types=(f32[2])} : f32[2]
    return %k, %b, %b
  }, types=(f32[2], f32[2], f32[2])} : f32[2], f32[2], f32[2]
  %u = add(%y, %k) : f32[2]
  return %y, %z, %w, %u
}
""",
        c=np.asarray(taken),
        k=F([3, 4]),
    )
    after = canonicalize(before)
    assert all(n.op.name != "if" for n in walk_nodes(after))
    agree(before, after)


@pytest.mark.parametrize(
    ("size", "before", "after", "dilation", "kernel", "taps"),
    [
        (1, 1, 1, 1, 3, 1),
        (14, 18, 18, 18, 3, 1),
        (14, 12, 12, 12, 3, 3),
        (4, 0, 9, 1, 10, 4),  # the last four windows begin outside, the first four see 4
        (4, 9, 0, 1, 10, 4),
        (2, 3, 3, 2, 4, 2),
        (2, 2, 0, 3, 2, 2),  # without its last tap it would have to crop
        (3, 5, 5, 1, 3, 3),  # some windows lie outside, but every tap meets an element somewhere
    ],
)
def test_taps_that_meet_zeros_alone_go(
    size: int, before: int, after: int, dilation: int, kernel: int, taps: int, agree: Agree
) -> None:
    b = GraphBuilder("taps")
    x = b.input("x", tensor(F32, 1, 1, size))
    w = b.constant(np.arange(1, 1 + kernel, dtype=np.float32).reshape(1, 1, -1), "w")
    attrs = OPS["conv"].attrs((1,), (before,), (after,), (dilation,), 1)
    graph = b.finish(b.add(OPS["conv"], [x, w], attrs, names=["y"]))
    canonical = canonicalize(graph)
    (node,) = canonical.nodes
    assert node.inputs[1] is not None
    assert node.inputs[1].type.static_shape == (1, 1, taps)
    agree(graph, canonical, tolerance=1e-6)


def test_taps_of_infinite_weights_stay() -> None:
    b = GraphBuilder("taps")
    x = b.input("x", tensor(F32, 1, 1, 1))
    w = b.constant(np.array([[[1, 2, np.inf]]], np.float32), "w")
    attrs = OPS["conv"].attrs((1,), (1,), (1,), (1,), 1)
    graph = b.finish(b.add(OPS["conv"], [x, w], attrs))
    assert canonicalize(graph) is graph
