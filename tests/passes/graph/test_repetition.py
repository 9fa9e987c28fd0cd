"""Work on repeated values moves in front of the expand, and keeps every bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tcc.ir.graph import Graph, Value
from tcc.ir.graph.text import graph_text
from tcc.passes.graph.canonicalize import canonicalize, canonicalize_last

Read = Callable[..., Graph]
Agree = Callable[..., None]

_HEADS = """\
size n in [1,]
graph g(%k : f32[2,n,4]) {{
  %c = const @c : f32[]
  %a = reshape(%k) {{shape=(2, 1, n, 4)}} : f32[2,1,n,4]
  %e = expand(%a) {{shape=(2, 3, n, 4)}} : f32[2,3,n,4]
  %r = reshape(%e) {{shape=(6, n, 4)}} : f32[6,n,4]
{}
}}
"""


def repeats_last(graph: Graph, *ops: str) -> bool:
    """True if no node of `ops` reads a value that an expand has repeated."""
    repeated = set[Value | None]()
    for node in graph.nodes:
        if node.op.name == "expand" or (node.op.name == "reshape" and repeated & {*node.inputs}):
            repeated.update(node.outputs)
        elif node.op.name in ops and repeated & {*node.inputs}:
            return False
    return {*ops} <= {node.op.name for node in graph.nodes}


@pytest.mark.parametrize("n", [1, 5])
def test_a_scaled_transpose_of_shared_heads_repeats_last(read: Read, agree: Agree, n: int) -> None:
    lines = """\
  %t = transpose(%r) {perm=(0, 2, 1)} : f32[6,4,n]
  %s = mul(%t, %c) : f32[6,4,n]
  return %s"""
    before = read(_HEADS.format(lines), c=np.float32(0.3))
    after = canonicalize_last(before)
    assert repeats_last(after, "transpose", "mul")
    assert not repeats_last(before, "transpose", "mul")
    agree(before, after, n=n)
    assert canonicalize_last(after) is after


@pytest.mark.parametrize(
    ("op", "lines"),
    [
        ("mul", "  %y = mul(%c, %r) : f32[6,n,4]\n  return %y"),
        ("exp", "  %y = exp(%r) : f32[6,n,4]\n  return %y"),
        ("cast", "  %y = cast(%r) {to=i32} : i32[6,n,4]\n  return %y"),
        ("exp", "  %y = exp(%r) : f32[6,n,4]\n  %z = add(%y, %r) : f32[6,n,4]\n  return %z"),
    ],
)
def test_elementwise_work_comes_first(read: Read, agree: Agree, op: str, lines: str) -> None:
    before = read(_HEADS.format(lines), c=np.float32(-1.7))
    after = canonicalize_last(before)
    assert repeats_last(after, op)
    agree(before, after, n=3)


def test_the_first_pass_leaves_factors_next_to_their_sums(read: Read) -> None:
    graph = read(_HEADS.format("  %y = mul(%r, %c) : f32[6,n,4]\n  return %y"), c=np.float32(2))
    assert canonicalize(graph) is graph


@pytest.mark.parametrize(
    "lines",
    [
        "  %y = add(%r, %r) : f32[6,n,4]\n  return %y",  # two operands with elements
        "  %y = reshape(%e) {shape=(3, 2, n, 4)} : f32[3,2,n,4]\n"
        "  %z = transpose(%y) {perm=(1, 0, 2, 3)} : f32[2,3,n,4]\n  return %z",  # axes are cut anew
    ],
)
def test_other_movements_of_repeated_heads_stay(read: Read, lines: str) -> None:
    graph = read(_HEADS.format(lines), c=np.float32(1.5))
    assert graph_text(canonicalize_last(graph)) == graph_text(canonicalize(graph))


def test_an_expand_may_add_axes(read: Read, agree: Agree) -> None:
    before = read("""\
graph g(%x : f32[2,1]) {
  %e = expand(%x) {shape=(3, 2, 4)} : f32[3,2,4]
  %t = transpose(%e) {perm=(2, 0, 1)} : f32[4,3,2]
  %y = neg(%t) : f32[4,3,2]
  return %y
}
""")
    after = canonicalize_last(before)
    assert repeats_last(after, "neg")
    agree(before, after)


def test_a_constant_of_more_axes_keeps_its_place(read: Read, agree: Agree) -> None:
    before = read(
        """\
graph g(%x : f32[2,1]) {
  %c = const @c : f32[1,1,1]
  %e = expand(%x) {shape=(3, 2, 4)} : f32[3,2,4]
  %y = mul(%e, %c) : f32[3,2,4]
  return %y
}
""",
        c=np.full((1, 1, 1), 0.7, np.float32),
    )
    agree(before, canonicalize_last(before))
