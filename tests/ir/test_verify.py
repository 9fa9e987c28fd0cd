"""The verifiers find and name every kind of defect that is planted in a valid graph or
expression."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from tcc.errors import InternalError
from tcc.ir.expr import MONOIDS, Expr, ExprBuilder, Stage
from tcc.ir.expr.scalar import Const, Scalar, apply, argument, cast, index_value, literal, read
from tcc.ir.expr.verify import verify_expr
from tcc.ir.graph import ConstantStore, Graph, GraphBuilder, Handle, Node, Value
from tcc.ir.graph.verify import verify_graph
from tcc.ir.index import Index, const, free_vars, iterator, maximum, minimum, symbol
from tcc.ir.index.prove import at_most, inside
from tcc.ir.op import NoAttrs, OpSpec
from tcc.ir.types import BOOL, DTYPES, F32, F64, I32, I64, TensorType, tensor

Ops = Mapping[str, OpSpec]
N, M = symbol("n", 0), symbol("m", 1, 64, 4)


# ---- graphs ------------------------------------------------------------------------------------


@pytest.fixture
def sound(ops: Ops) -> Graph:
    b = GraphBuilder("main")
    x, c = b.input("x", tensor(F32, N, 4)), b.input("c", tensor(BOOL))
    w = b.constant(np.ones((4,), np.float32), "w")
    (y,) = b.add(ops["add"], [x, x], names=["y"])
    then, otherwise = GraphBuilder("then", parent=b), GraphBuilder("otherwise", parent=b)
    inner = then.add(ops["mul"], [y, x], names=["inner"])
    branches = ops["if"].attrs(then.finish(inner), otherwise.finish([x]))
    (z,) = b.add(ops["if"], [c], branches, names=["z"])
    return b.finish([z, w], ((z, x),))


def branch(graph: Graph) -> Graph:
    body: Graph = graph.nodes[1].attrs.then
    return body


def with_branch(graph: Graph, then: Graph) -> Graph:
    node = graph.nodes[1]
    changed = replace(node, attrs=replace(node.attrs, then=then))
    return replace(graph, nodes=(graph.nodes[0], changed))


def with_node(graph: Graph, **changes: Any) -> Graph:
    return replace(graph, nodes=(replace(graph.nodes[0], **changes), graph.nodes[1]))


def test_a_sound_graph_passes(sound: Graph) -> None:
    verify_graph(sound)


def stranger() -> Value:
    return Value("stranger", tensor(F32, N, 4))


def wrong_constant(graph: Graph) -> Graph:
    store = ConstantStore()
    handle = store.put(np.ones((5,), np.float32))
    return replace(graph, store=store, constants={graph.outputs[1]: handle})


def other_n(graph: Graph) -> Graph:
    odd = Value("odd", tensor(F32, symbol("n", 3)))
    return replace(graph, inputs=(*graph.inputs, odd))


DEFECTS: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "use before definition": (
        lambda g: replace(g, nodes=g.nodes[::-1]),
        r"%inner reads %y|mul at %inner reads %y, not defined here",
    ),
    "undefined input": (
        lambda g: with_node(g, inputs=(stranger(), g.inputs[0])),
        "add at %y reads %stranger",
    ),
    "undefined output": (lambda g: replace(g, outputs=(stranger(),)), "%stranger of main is not"),
    "defined twice": (lambda g: replace(g, nodes=(g.nodes[0], *g.nodes)), "%y is defined again"),
    "two names": (
        lambda g: replace(g, inputs=(*g.inputs, Value("y", tensor(F32)))),
        "two values have the name y",
    ),
    "name taken in a body": (
        lambda g: replace(g, inputs=(*g.inputs, Value("inner", tensor(F32)))),
        "two values have the name inner",
    ),
    "wrong type": (
        lambda g: with_node(g, outputs=(Value("y", tensor(F64, N, 4)),)),
        r"f64\[n,4\].*f32\[n,4\].* is due",
    ),
    "refused operands": (
        lambda g: with_node(g, inputs=(g.inputs[0], g.inputs[1])),
        "does not take its operands: operands differ in type",
    ),
    "too many inputs": (lambda g: with_node(g, inputs=(g.inputs[0],) * 10), "has 10 inputs"),
    "wrong attributes": (
        lambda g: with_node(g, attrs=g.nodes[1].attrs),
        "add at %y has attributes of type If",
    ),
    "lost constant": (
        lambda g: replace(g, constants={g.outputs[1]: Handle("00")}),
        "constant %w is not in the store",
    ),
    "changed constant": (wrong_constant, r"%w is float32\[5\] in the store, f32\[4\]"),
    "two facts": (other_n, "%odd has the size n with other facts"),
    "iterator in a type": (
        lambda g: replace(g, inputs=(*g.inputs, Value("i", tensor(F32, iterator("i", 4))))),
        "has the iterator i in a size",
    ),
    "alias of another type": (
        lambda g: replace(g, aliases=((g.outputs[0], g.inputs[1]),)),
        r"joins f32\[n,4\] and bool\[\]",
    ),
    "alias to no input": (
        lambda g: replace(g, aliases=((g.outputs[0], g.outputs[1]),)),
        "does not join an output and an input",
    ),
    "capture of a sibling": (
        lambda g: with_branch(g, replace(branch(g), outputs=(stranger(),))),
        "output %stranger of then is not defined",
    ),
    "defect in a body": (
        lambda g: with_branch(g, replace(branch(g), nodes=())),
        "output %inner of then is not defined",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_graph_defects(sound: Graph, name: str) -> None:
    plant, why = DEFECTS[name]
    with pytest.raises(InternalError) as caught:
        verify_graph(plant(sound))
    assert caught.match("main is not well formed")
    assert re.search(why, caught.value.why), caught.value.why


def test_all_problems_are_listed(sound: Graph) -> None:
    planted = replace(sound, outputs=(stranger(),), constants={})
    with pytest.raises(InternalError) as caught:
        verify_graph(planted)
    assert len(caught.value.why.splitlines()) == 2


def test_a_node_without_attributes_has_no_attrs(ops: Ops) -> None:
    x = Value("x", tensor(F32))
    node = Node(ops["neg"], NoAttrs(), (x,), (Value("y", x.type),), "")
    verify_graph(Graph("g", (x,), node.outputs, (node,), {}, ConstantStore()))


# ---- expressions -------------------------------------------------------------------------------


X = tensor(F32, N, 4)
TYPES: tuple[TensorType | None, ...] = (X, tensor(I64, N))
P, Q, K = iterator("i", N), iterator("j", 4), iterator("k", 4)


def var(index: Index) -> Any:
    return free_vars(index)[0]


def one(*body: Scalar, over: tuple[Index, ...] = (), monoid: str | None = None) -> Expr:
    b = ExprBuilder(*(t for t in TYPES if t))
    b.stage((P, Q), *body, over=over, monoid=monoid)
    return b.done()


def x_at(*indices: Any, fill: Any = None, dtype: Any = F32, indirect: Any = ()) -> Scalar:
    return read(0, indices, dtype, fill=fill, indirect=indirect)


EXPR_DEFECTS: dict[str, tuple[Callable[[], Expr], str]] = {
    "outside": (lambda: one(x_at(P, Q + 1)), r"j\+1 is not proved inside \[0, 4\)"),
    "below": (lambda: one(x_at(P - 1, Q)), r"i-1 is not proved inside \[0, n\)"),
    "rank": (lambda: one(x_at(P)), "1 indices where the source has rank 2"),
    "unbound iterator": (lambda: one(x_at(P, K)), "k is not an iterator here"),
    "unbound in an index value": (lambda: one(index_value(K, I64)), "k is not an iterator"),
    "dtype of a read": (lambda: one(x_at(P, Q, dtype=F64)), "it is f64, the source f32"),
    "no such operand": (lambda: one(read(7, (P,), F32)), "the source is not defined here"),
    "operand types": (
        lambda: one(apply("add", x_at(P, Q), cast(x_at(P, Q), F64))),
        "the arguments are f32, f64",
    ),
    "condition": (lambda: one(apply("select", *[x_at(P, Q)] * 3)), "the condition is not bool"),
    "float function": (
        lambda: one(apply("exp", index_value(P, I64))),
        "exp does not take i64",
    ),
    "integer function": (lambda: one(apply("bit_not", x_at(P, Q))), "bit_not does not take f32"),
    "bool function": (lambda: one(apply("not", x_at(P, Q))), "not does not take f32"),
    "literal": (lambda: one(Const(1 << 40, I32)), "is no i32"),
    "literal kind": (lambda: one(Const(1, F32)), "1 is no f32"),
    "free operand": (lambda: one(argument(0, F32)), "a stage has no free operands"),
    "components": (
        lambda: one(x_at(P, K), over=(K,), monoid="argmax"),
        "argmax has 2 components, not 1",
    ),
    "no monoid": (lambda: one(x_at(P, K), over=(K,)), "without a monoid"),
    "unknown monoid": (lambda: one(x_at(P, K), over=(K,), monoid="mean"), "no monoid"),
    "iterator twice": (lambda: one(x_at(P, Q), over=(Q,), monoid="sum"), "one name"),
    "float position": (
        lambda: one(x_at(K, Q, indirect=((var(K), x_at(P, Q)),), fill=0)),
        "k is bound to f32",
    ),
    "later stage": (
        lambda: replace(
            one(literal(0, F32)), stages=(Stage((), (), None, (read(_ref(), (), F32),)),)
        ),
        "the source is not defined here",
    ),
    "output": (lambda: replace(one(x_at(P, Q)), outputs=(_ref(3),)), "output s3 is not defined"),
    "parameters": (lambda: replace(one(x_at(P, Q)), params=(X,)), "the parameters are"),
}


def _ref(stage: int = 0) -> Any:
    b = ExprBuilder()
    stage_ref = b.stage((), literal(0, F32))
    return replace(stage_ref, stage=stage)


@pytest.mark.parametrize("name", EXPR_DEFECTS)
def test_expression_defects(name: str) -> None:
    plant, why = EXPR_DEFECTS[name]
    with pytest.raises(InternalError) as caught:
        verify_expr(plant(), TYPES)
    assert re.search(why, caught.value.why), caught.value.why


@pytest.mark.parametrize("name", MONOIDS)
def test_monoids_combine_values_of_any_types(name: str) -> None:
    """Monoids combine values of any types, so the verifier checks only the number of components."""
    monoid = MONOIDS[name]
    for dtypes in product(DTYPES.values(), repeat=monoid.components):
        assert tuple(s.dtype for s in monoid.combine(dtypes)) == dtypes
    assert len(monoid.parts) in (0, monoid.components)


def test_sound_expressions_pass() -> None:
    verify_expr(one(x_at(P, Q)), TYPES)
    verify_expr(one(x_at(P - 1, Q, fill=0)), TYPES)
    verify_expr(one(x_at(P, K), index_value(K, I64), over=(K,), monoid="argmin"), TYPES)
    position = iterator("t", N)
    bound = ((var(position), read(1, (P,), I64)),)
    verify_expr(one(x_at(position, Q, indirect=bound)), TYPES)
    early = apply("lt", index_value(Q, I64), literal(2, I64))
    verify_expr(one(apply("select", early, x_at(P, Q + 2), x_at(P, Q))), TYPES)


def test_a_read_both_under_and_outside_a_select_must_be_inside() -> None:
    lost = x_at(P, Q + 1)
    guarded = apply("select", literal(True, BOOL), lost, x_at(P, Q))
    verify_expr(one(guarded), TYPES)
    with pytest.raises(InternalError):
        verify_expr(one(apply("add", guarded, lost)), TYPES)


# ---- proofs of bounds --------------------------------------------------------------------------


R = iterator("r", 4 * M + 3)
PROVED = [
    (P, N),
    (const(0), const(1)),
    (64 * P + iterator("d", 64), 64 * N),
    (P * M + iterator("q", M), N * M),
    (R // 2, 2 * M + 2),
    (R % M, M),
    (N - 1 - P, N),
    (minimum(P, Q), const(4)),
    (minimum(maximum(P - 3, const(0)), M - 1), M),
    (minimum(Q, 6 - Q), const(4)),
    (maximum(Q - 2, 1 - Q), const(4)),
]
NOT_PROVED = [
    (P + 1, N),
    (P - 1, N),
    (P, N - 1),
    (64 * P + iterator("d", 65), 64 * N),
    (N - P, N),
    (R // 2, 2 * M),
    (minimum(P + 1, N), N),
    (maximum(Q - 2, 1 - Q), const(1)),
]


@pytest.mark.parametrize(("index", "extent"), PROVED)
def test_inside(index: Index, extent: Index) -> None:
    assert inside(index, extent)


@pytest.mark.parametrize(("index", "extent"), NOT_PROVED)
def test_not_inside(index: Index, extent: Index) -> None:
    assert not inside(index, extent)


def test_at_most_is_about_every_point() -> None:
    assert at_most(P, N)
    assert at_most(P * Q, 3 * N)
    assert not at_most(N, P)
