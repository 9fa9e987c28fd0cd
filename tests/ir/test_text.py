"""Texts equal golden texts, and text(parse(text(x))) == text(x) for generated graphs and
expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcc.errors import UserError
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import apply, argument, cast, index_value, literal
from tcc.ir.graph import ConstantStore, Graph, GraphBuilder
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.text import expr_text, graph_text, scalar_text
from tcc.ir.index import const, iterator, symbol
from tcc.ir.op import OpSpec
from tcc.ir.types import BOOL, F16, F32, F64, I64, TensorType, tensor

from tests.lib.oracle.expr.parse import parse_expr
from tests.lib.oracle.graph.parse import parse_graph
from tests.lib.oracle.index.parse import parse_index

from .generate import graphs, indices

Ops = Mapping[str, OpSpec]
B, N = symbol("b", 1, 64, 4), symbol("past/len", 0)

GOLDEN = """\
size b in [1,64] divisor 4
size past/len in [0,]
graph main(%x : f32[b,4], %"a b" : i64[]) {
  %w = const @DIGEST : f32[4,4]
  %y = add(%x, %x) : f32[b,4]    ; layer.0/attn
  %p, %p.1 = pair(%y) {axis=-1, alpha=inf, keep=true, mode="a\\"b", pads=((0, 1), (2, 3)), \
scales=(0.5, nan), size="past/len"+b, to=f16, like=bool[2]} : f32[b,4], f32[b,4]
  %z = if(%c) {then=graph t() {
    %inner = mul(%y, %x) : f32[b,4]
    return %inner
  }, otherwise=graph e() {
    return %w
  }} : f32[b,4]
  alias %z = %x
  return %z, %p
}
"""


def golden(ops: Ops) -> Graph:
    b = GraphBuilder("main")
    x, c = b.input("x", tensor(F32, B, 4)), b.input("a b", tensor(I64))
    w = b.constant(np.ones((4, 4), np.float32), "w")
    (y,) = b.add(ops["add"], [x, x], names=["y"], loc="layer.0/attn")
    every = ops["pair"].attrs(
        -1, float("inf"), True, 'a"b', ((0, 1), (2, 3)), (0.5, float("nan")), B + N, F16,
        tensor(BOOL, 2),
    )  # fmt: skip
    p, _ = b.add(ops["pair"], [y], every, names=["p", "p"])
    then, otherwise = GraphBuilder("t", parent=b), GraphBuilder("e", parent=b)
    inner = then.add(ops["mul"], [y, x], names=["inner"])
    branches = ops["if"].attrs(then.finish(inner), otherwise.finish([w]))
    (z,) = b.add(ops["if"], [c], branches, names=["z"])
    return b.finish([z, p], ((z, x),))


def round_trip(text: str, ops: Ops, store: ConstantStore) -> Graph:
    again = parse_graph(text, ops, store)
    assert graph_text(again) == text
    return again


def test_golden_graph(ops: Ops) -> None:
    graph = golden(ops)
    (handle,) = graph.constants.values()
    expected = GOLDEN.replace("DIGEST", handle.digest[:16]).replace(
        " past/len in", ' "past/len" in'
    )
    expected = expected.replace("if(%c)", 'if(%"a b")')
    assert graph_text(graph) == expected
    round_trip(expected, ops, graph.store)


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("add(%x", "plus(%x", "line 5, column 8", "no op"),
        ("add(%x", "add(%q", "line 5, column 12", "no value"),
        ("mul(%y", "mul(%inner", "line 8, column 18", "no value"),
        ("%y = add", "%x = add", "line 5, column 3", "defined once"),
        ("f32[4,4]", "f31[4,4]", "line 4, column 34", "element type"),
        ("@", "@0", "line 4, column 14", "digest"),
        ("axis=-1", "axis=-1.5", "line 6, column 29", "int is due"),
        ("axis=-1", "axes=-1", "line 6, column 24", "no such field"),
        ("in [1,64]", "in [1,1]", "line 1, column 8", "more than one value"),
        ("[b,4], %", "[c,4], %", "line 3, column 21", "no size"),
        ("return %z, %p\n}", "return %z, %p", "line 15, column 1", "'}' is due|',' is due"),
        ("size b", "size $ b", "line 1, column 6", "no token"),
    ],
)
def test_errors_say_where(ops: Ops, old: str, new: str, where: str, what: str) -> None:
    graph = golden(ops)
    with pytest.raises(UserError, match=what) as caught:
        parse_graph(graph_text(graph).replace(old, new), ops, graph.store)
    assert caught.value.where.startswith(where)


def test_two_values_of_one_name_stay_apart(ops: Ops) -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, 2))
    (y,) = b.add(ops["neg"], [x])
    (z,) = b.add(ops["add"], [y, y])
    graph = b.finish([y, z])
    copied = replace(graph, nodes=(graph.nodes[0], replace(graph.nodes[1], outputs=(y,))))
    assert "%neg = add(%neg, %neg)" in graph_text(copied)
    other = replace(graph, inputs=(type(x)("neg", x.type),))
    assert "%neg#2 = neg(%x)" in graph_text(other)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_graphs_round_trip(ops: Ops, data: st.DataObject) -> None:
    graph = data.draw(graphs(ops))
    round_trip(graph_text(graph), ops, graph.store)


def test_a_parsed_graph_computes_the_same(ops: Ops) -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, B, 4))
    (y,) = b.add(ops["add"], [x, x])
    (z,) = b.add(ops["reshape"], [y], ops["reshape"].attrs((2 * B, const(2))), names=["z"])
    graph = b.finish([z])
    again = round_trip(graph_text(graph), ops, graph.store)
    data = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(evaluate_graph(again, {"x": data})["z"], 2 * data.reshape(8, 2))


# ---- index expressions -----------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_indices_parse_to_the_same_object(data: st.DataObject) -> None:
    variables = {"n": symbol("n", 1), "i": iterator("i", 12), "past/len": N, "min": symbol("min")}
    index = data.draw(indices(list(variables.values())))
    assert parse_index(index.key, variables) is index


def test_index_text_has_python_precedence() -> None:
    n, i = symbol("n", 1), iterator("i", 100)
    variables = {"n": n, "i": i}
    assert parse_index("2*n - i//8*8 + i % 4 - 3", variables) is 2 * n - 8 * (i // 8) + i % 4 - 3
    assert (8 * (i // 8)).key == "8*(i//8)"
    with pytest.raises(UserError, match="positive"):
        parse_index("n//0", variables)


# ---- expressions -------------------------------------------------------------------------------


def softmax() -> Expr:
    b = ExprBuilder(tensor(F32, B, 64))
    i, j = b.iters(B, 64)
    (k,) = b.iters(64)
    top = b.stage((i,), b.read(0, i, k), over=(k,), monoid="max")
    shifted = apply("exp", apply("sub", b.read(0, i, k), b.read(top, i)))
    total = b.stage((i,), shifted, over=(k,), monoid="sum")
    value = apply("exp", apply("sub", b.read(0, i, j), b.read(top, i)))
    b.stage((i, j), apply("div", value, b.read(total, i)))
    return b.done()


def test_golden_expression() -> None:
    assert expr_text(softmax()) == (
        "size b in [1,64] divisor 4\n"
        "expr(p0: f32[b,64]) {\n"
        "  s0[i0: 0..b] = max(i2: 0..64) p0[i0,i2]\n"
        "  s1[i0: 0..b] = sum(i2: 0..64) exp(p0[i0,i2] - s0[i0])\n"
        "  s2[i0: 0..b, i1: 0..64] = exp(p0[i0,i1] - s0[i0]) / s1[i0]\n"
        "  return s2\n"
        "}\n"
    )
    again = parse_expr(expr_text(softmax()))
    assert again == softmax()


def odd() -> Expr:
    """Returns an expression with indirect reads, fills of all kinds, shared scalars, several
    components and casts."""
    b = ExprBuilder(tensor(F32, N, 8), tensor(I64, 5), TensorType(F64, ()), None)
    i, j = b.iters(5, 8)
    (k,) = b.iters(8)
    at = b.position(b.read(1, i), N)
    row = b.read(0, at, j - 1, fill=float("-inf"))
    shared = apply("mul", row, row)
    condition = apply("lt", index_value(i + 2 * j, I64), b.read(1, i))
    first = b.stage((i, j), apply("select", condition, apply("add", shared, shared), row))
    best = b.stage((i,), b.read(first, i, k), index_value(k, I64), over=(k,), monoid="argmax")
    part = type(best)(best.stage, 1)
    last = apply("max", cast(b.read(part, i), F64), b.read(2))
    b.stage((i,), apply("add", last, literal(-0.0, F64)))
    b.stage((), literal(True, BOOL), over=(k,), monoid="min")
    b.stage((i,), literal(float("nan"), F16))
    return b.done(part, type(best)(2), type(best)(3), type(best)(4))


def test_odd_expression_round_trips_and_evaluates() -> None:
    text = expr_text(odd())
    again = parse_expr(text)
    assert again == odd()
    assert expr_text(again) == text
    assert "p2: f64[], p3: none)" in text
    assert "let v0 = p0[t3,i1-1 | fill -inf | t3: 0.." in text
    arrays = [
        np.arange(24, dtype=np.float32).reshape(3, 8),
        np.array([2, 0, 1, 1, 2]),
        np.array(4.5),
        None,
    ]
    results = evaluate_expr(again, arrays, {"past/len": 3})
    for a, b in zip(results, evaluate_expr(odd(), arrays, {"past/len": 3}), strict=True):
        np.testing.assert_array_equal(a, b)
    # max(4.5, argmax): the last column is best unless the condition changes the choice
    assert results[1][0] == max(4.5, results[0][0])


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("p0[i0,i2]\n", "p1[i0,i2]\n", "line 3, column 33", "operand"),
        ("p0[i0,i2]\n", "p0[i0,i1]\n", "line 3, column 39", "iterator"),
        ("exp(p0[i0,i1]", "exq(p0[i0,i1]", "line 5, column 29", "function"),
        ("s2[", "s3[", "line 5, column 3", "'s2' is due"),
        ("return s2", "return p0", "line 6, column 10", "outputs are stages"),
    ],
)
def test_expression_errors_say_where(old: str, new: str, where: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as caught:
        parse_expr(expr_text(softmax()).replace(old, new))
    assert caught.value.where == where


def test_scalar_text_of_an_argument() -> None:
    assert scalar_text(apply("add", argument(0, F32), argument(1, F32))) == (
        "(arg(0):f32 + arg(1):f32)"
    )


def test_a_let_ends_before_the_next_statement() -> None:
    """A body may begin with a parenthesis or a sign, which a parser could attach to the let before
    it."""
    b = ExprBuilder(tensor(F32, 4))
    (i,) = b.iters(4)
    x = apply("exp", b.read(0, i))
    for first in (apply("add", b.read(0, i), x), literal(-1.0, F32)):
        b.stage((i,), apply("mul", first, apply("sub", x, b.read(0, i))))
    b.stage((i,), apply("add", literal(-1.0, F32), apply("mul", x, x)))
    assert parse_expr(expr_text(b.done())) == b.done()


def test_deep_sharing_stays_small() -> None:
    b = ExprBuilder(tensor(F32, 4))
    (i,) = b.iters(4)
    value: Any = b.read(0, i)
    for _ in range(60):
        value = apply("mul", value, value)
    b.stage((i,), value)
    text = expr_text(b.done())
    assert len(text) < 4000
    assert parse_expr(text) == b.done()


def test_graphs_of_any_name_read_back(ops: Mapping[str, OpSpec]) -> None:
    for name in ("main", "/", "a/b", "0", "two words", ""):
        b = GraphBuilder(name)
        graph = b.finish([b.input("x", tensor(F32, 4))])
        text = graph_text(graph)
        assert parse_graph(text, ops, graph.store).name == name
