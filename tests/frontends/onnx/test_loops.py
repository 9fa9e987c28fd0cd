"""Loops whose conditions have axes, or whose carried values change rank, agree with ONNX Runtime.

A value has one rank in a tcc graph. A carried value of one element takes the rank that a trip gives
it, even if no trip runs. For other values, the graph requires that no other rank occurs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph import Graph, GraphBuilder, walk_nodes
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.types import BOOL, I64, tensor
from tcc.ops import OPS

from tests.lib.import_oracle import Arrays, check, expected, model_of, op_names

X = np.array([0.5, -2.0, 3.0], np.float32)


def looped(
    body: str,
    results: str = "y",
    *,
    start: str = "x",
    inputs: str = "int64 m, float[n] x",
    outputs: str = "float[] y",
    trips: str = "m",
    condition: str = '""',
    heads: str = "int64 i, bool k",
    carried: str = "float[] a",
    ends: str = "float[] b",
    before: str = "",
    after: str = "",
) -> onnx.ModelProto:
    """Returns a model with `results` = Loop(trips, condition, start) of `body`; a body without `go`
    passes its condition on."""
    handed = "" if "go =" in body else "go = Identity (k)"
    return model_of(f"""
    g ({inputs}) => ({outputs}) <int64[1] first = {{0}}, int64[2] row = {{1, -1}},
        int64[1] flat = {{-1}}, int64[2] ones = {{1, 1}}, float[1] d = {{1.5}}> {{
      {before}
      {results} = Loop ({trips}, {condition}, {start}) <
        body = body ({heads}, {carried}) => (bool[] go, {ends}) {{ {body} {handed} }}
      >
      {after}
    }}""")


def run(graph: Graph, feeds: Mapping[str, Any]) -> list[Any]:
    return list(evaluate_graph(graph, feeds).values())


def check_elements(graph: Graph, model: onnx.ModelProto, feeds: Arrays) -> None:
    """Compares the elements of results whose rank differs in ONNX Runtime."""
    for output, due in zip(run(graph, feeds), expected(model, feeds).values(), strict=True):
        assert output.size == due.size
        np.testing.assert_allclose(output.ravel(), due.ravel(), rtol=1e-6, atol=1e-6)


# ---- conditions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [1, 3, 9])
@pytest.mark.parametrize("limit", ["", "int64[1] {2}"])
def test_a_condition_of_one_element_may_have_an_axis(start: int, limit: str) -> None:
    """PaddlePaddle writes such a condition for `while j < 4`."""
    count = f"count = Constant <value = {limit}> ()" if limit else ""
    model = looped(
        "b = Add (a, one)  go = Less (b, end)",
        start="j",
        inputs="int64[1] j",
        outputs="int64[] y",
        trips="count" if limit else '""',
        condition="begins",
        heads="int64 i, bool[1] k",
        carried="int64[1] a",
        ends="int64[1] b",
        before=f"""{count} one = Constant <value = int64[1] {{1}}> ()
            end = Constant <value = int64[1] {{4}}> ()  begins = Less (j, end)""",
    )
    check(model, {"j": np.array([start])})


@pytest.mark.parametrize("shape", ["float[1]", "float[1, 1]"])
def test_a_body_may_give_a_condition_more_axes_than_it_takes(shape: str) -> None:
    model = looped(
        "b = Add (a, x)  t = ReduceSum (b)  go = Less (t, end)",
        before=f"end = Constant <value = {shape} {{3.0}}> ()",
    )
    for trips in (0, 1, 9):
        check(model, {"m": np.array(trips), "x": np.full(2, 0.5, np.float32)})


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()])
def test_the_first_condition_and_the_trip_count_may_have_axes(shape: tuple[int, ...]) -> None:
    axes = str(list(shape)) if shape else ""
    model = looped(
        "b = Add (a, x)",
        inputs=f"int64{axes} m, bool{axes} c, float[n] x",
        condition="c",
        heads=f"int64 i, bool{axes} k",
    )
    for begins in (True, False):
        check(model, {"m": np.full(shape, 3), "c": np.full(shape, begins), "x": X})


def test_the_iteration_number_and_the_condition_have_the_axes_that_the_body_declares() -> None:
    model = looped(
        "two = Concat <axis = 0> (i, i)  f = Cast <to = 1> (two)  b = Add (a, f)  s = Shape (k)",
        "y, s",
        inputs="int64 m, bool[1] c, float[2] x",
        outputs="float[] y, int64[] s",
        condition="c",
        heads="int64[1] i, bool[1] k",
        ends="float[] b, int64[] s",
    )
    for trips in (1, 4):
        check(model, {"m": np.array(trips), "c": np.array([True]), "x": X[:2]})


@pytest.mark.parametrize("shape", ["[1]", "[1, 1]", "[n]"])
@pytest.mark.parametrize("value", [True, False])
def test_a_condition_of_if_may_have_axes(shape: str, value: bool) -> None:
    model = model_of(f"""
    g (bool{shape} c, float[3] x) => (float[3] y) {{
      y = If (c) <
        then_branch = t () => (float[3] p) {{ p = Neg (x) }},
        else_branch = e () => (float[3] q) {{ q = Exp (x) }}
      >
    }}""")
    graph = load_model(model)
    axes = (1, 1) if "," in shape else (1,)
    check(model, {"c": np.full(axes, value), "x": X}, graph=graph)
    if shape == "[n]":
        with pytest.raises(UserError, match="a size is 2 where the model needs 1"):
            run(graph, {"c": np.full(2, value), "x": X})


@pytest.mark.parametrize("place", ["before", "inside"])
def test_a_condition_of_two_elements_is_refused(place: str) -> None:
    two = "t = Constant <value = bool[2] {1, 1}> ()"
    if place == "before":
        model = looped("b = Identity (a)", condition="t", before=two)
    else:
        model = looped(f"b = Identity (a) {two} go = Not (t)")
    with pytest.raises(UserError, match=r"a condition has type bool\[2\]"):
        load_model(model)


# ---- ranks ---------------------------------------------------------------------------------------

SCALAR = {"inputs": "int64 m, float x"}


@pytest.mark.parametrize(
    ("inputs", "shape", "body"),
    [
        ("float x", (), "b = Add (a, d)"),
        ("float[1] x", (1,), "c = Squeeze (a)  b = Add (c, c)"),
        ("float[1, 1] x", (1, 1), "b = Reshape (a, flat)"),
        ("float x", (), "c = Add (a, d)  b = Reshape (c, ones)"),
    ],
)
def test_one_element_has_the_rank_that_a_trip_gives_it(
    inputs: str, shape: tuple[int, ...], body: str
) -> None:
    x = np.full(shape, 0.75, np.float32)
    model = looped(body, inputs=f"int64 m, {inputs}")
    graph = load_model(model)
    assert op_names(graph)[-1] == "loop"
    for trips in (1, 2, 3):
        check(model, {"m": np.array(trips), "x": x}, graph=graph)
    check_elements(graph, model, {"m": np.array(0), "x": x})
    stops = looped(f"{body}  t = ReduceSum (b)  go = Less (t, t)", inputs=f"int64 m, {inputs}")
    check(stops, {"m": np.array(3), "x": x})


def test_rows_have_the_shape_of_the_first() -> None:
    for row in ("a", "b"):
        model = looped(
            f"b = Add (a, d)  r = Identity ({row})",
            "y, rows",
            ends="float[] b, float[] r",
            outputs="float[] y, float[] rows",
            **SCALAR,
        )
        graph = load_model(model)
        for trips in (1, 2, 5):
            check(model, {"m": np.array(trips), "x": np.array(0.5, np.float32)}, graph=graph)


def test_a_row_may_differ_in_size_from_the_carried_value() -> None:
    model = looped(
        "b = Identity (d)  r = Identity (a)",
        "y, rows",
        ends="float[] b, float[] r",
        outputs="float[] y, float[] rows",
    )
    graph = load_model(model)
    check(model, {"m": np.array(1), "x": X}, graph=graph)
    check(model, {"m": np.array(3), "x": X[:1]}, graph=graph)


def test_rows_that_change_their_size_are_refused() -> None:
    model = looped(
        "c = Unsqueeze (a, first)  b = Concat <axis = 0> (c, c)  r = Identity (b)",
        "y, rows",
        inputs="float[3] x",
        ends="float[] b, float[] r",
        outputs="float[] y, float[] rows",
        trips="two",
        before="two = Constant <value = int64 {2}> ()",
    )
    with pytest.raises(UserError, match=r"its rows change from f32\[2,3\] to f32\[2,2,3\]"):
        load_model(model)


def test_one_element_that_is_handed_on_has_the_rank_that_trips_settle_on() -> None:
    model = looped(
        "p = Identity (d)  q = Identity (a)",
        "y, z",
        start="x, w",
        inputs="int64 m, float x, float[1, 1] w",
        carried="float[] a, float[] c",
        ends="float[] p, float[] q",
        outputs="float[] y, float[] z",
    )
    graph = load_model(model)
    feeds = {"x": np.array(0.5, np.float32), "w": np.ones((1, 1), np.float32)}
    for trips in (2, 3):
        check(model, {"m": np.array(trips), **feeds}, graph=graph)
    for trips in (0, 1):
        check_elements(graph, model, {"m": np.array(trips), **feeds})


def test_values_that_change_places_keep_the_rank_after_a_trip() -> None:
    model = looped(
        "p = Identity (c)  q = Identity (a)",
        "y, z",
        start="x, d",
        carried="float[] a, float[] c",
        ends="float[] p, float[] q",
        outputs="float[] y, float[] z",
        **SCALAR,
    )
    graph = load_model(model)
    for trips in range(4):
        check_elements(graph, model, {"m": np.array(trips), "x": np.array(0.5, np.float32)})


RANKS = {
    "an axis more": "c = Neg (a)  b = Reshape (c, row)",
    "sizes that grow": "c = Reshape (a, row)  b = Concat <axis = 1> (c, c)",
    "a condition": "b = Reshape (a, row)  t = ReduceSum <keepdims = 0> (b)  go = Less (t, end)",
}


@pytest.mark.parametrize("name", RANKS)
def test_a_first_trip_may_change_the_rank(name: str) -> None:
    model = looped(RANKS[name], before="end = Constant <value = float {1.0}> ()")
    graph = load_model(model)
    for trips in (1, 2, 3):
        check(model, {"m": np.array(trips), "x": X}, graph=graph)
    with pytest.raises(UserError, match="a loop that ends before trip 1 leaves"):
        run(graph, {"m": np.array(0), "x": X})


@pytest.mark.parametrize("name", RANKS)
def test_nodes_that_accept_both_ranks_may_follow_a_loop_without_a_trip(name: str) -> None:
    model = looped(
        RANKS[name],
        "r",
        outputs="float y",
        before="end = Constant <value = float {1.0}> ()",
        after="e = Exp (r)  y = ReduceSum <keepdims = 0> (e)",
    )
    graph = load_model(model)
    for trips in range(4):
        check(model, {"m": np.array(trips), "x": X}, graph=graph)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 8])
def test_a_constant_number_of_trips_may_change_the_rank_in_each(count: int) -> None:
    model = looped(
        "b = Unsqueeze (a, first)  r = Neg (x)  f = Cast <to = 1> (i)  s = Add (r, f)",
        "y, rows",
        ends="float[] b, float[] s",
        outputs="float[] y, float[] rows",
        inputs="float[n] x",
        trips="m",
        before=f"m = Constant <value = int64 {{{count}}}> ()",
    )
    graph = check(model, {"x": X}) if count else load_model(model)
    assert "if" not in op_names(graph)
    assert graph.outputs[0].type.rank == count + 1
    assert all(node.op.name != "loop" for node in walk_nodes(graph))


def test_rows_of_written_trips_and_of_the_loop_are_stacked() -> None:
    model = looped(
        "c = Add (a, a)  b = Reshape (c, row)  f = Cast <to = 1> (i)  r = Add (c, f)",
        "y, rows",
        ends="float[] b, float[] r",
        outputs="float[] y, float[] rows",
    )
    graph = load_model(model)
    for trips in (1, 2, 5):
        check(model, {"m": np.array(trips), "x": X}, graph=graph)


def test_a_rank_that_depends_on_the_rank_of_one_element_is_kept() -> None:
    """Gather removes an axis for a scalar index, but not for an index with an axis."""
    model = looped(
        "p = Add (a, one)  w = Gather (t, a)",
        "y, z",
        start="j, x",
        inputs="int64 m, int64 j, float[3] x, float[2, 3] t",
        carried="int64[] a, float[] v",
        ends="int64[] p, float[] w",
        outputs="int64[] y, float[] z",
        before="one = Constant <value = int64[1] {1}> ()",
    )
    t = np.arange(6, dtype=np.float32).reshape(2, 3)
    feeds = {"j": np.array(0), "x": X, "t": t}
    graph = load_model(model)
    check(model, {"m": np.array(2), **feeds}, graph=graph)
    with pytest.raises(UserError, match="a loop that ends before trip"):
        run(graph, {"m": np.array(1), **feeds})


def test_a_rank_may_need_two_trips() -> None:
    model = looped(
        "p = Identity (c)  q = Reshape (c, row)",
        "u, v",
        start="x, x",
        carried="float[] a, float[] c",
        ends="float[] p, float[] q",
        outputs="float y",
        after="""e = Exp (u)  f = ReduceSum <keepdims = 0> (e)
            s = ReduceSum <keepdims = 0> (v)  y = Add (f, s)""",
    )
    graph = load_model(model)
    for trips in range(5):
        check(model, {"m": np.array(trips), "x": X}, graph=graph)


def test_a_rank_that_never_settles_is_refused() -> None:
    model = looped("b = Unsqueeze (a, first)")
    with pytest.raises(UserError) as refused:
        load_model(model)
    message = str(refused.value)
    assert "trip 5 still changes the rank of 'a' from f32[1,1,1,1,n] to f32[1,1,1,1,1,n]" in message


@pytest.mark.parametrize("inputs", [0, 1, 2, 4])
def test_a_body_with_another_number_of_inputs_is_refused(inputs: int) -> None:
    model = looped("b = Abs (x)")
    body = model.graph.node[0].attribute[0].g
    while len(body.input) > inputs:
        body.input.pop()
    while len(body.input) < inputs:
        body.input.add(name=f"more{len(body.input)}")
    with pytest.raises(UserError, match=f"the body has {inputs} inputs; 3 are due"):
        load_model(model)


def test_an_element_type_that_changes_is_refused() -> None:
    model = looped("b = Cast <to = 11> (a)", ends="double[] b", outputs="double[] y")
    with pytest.raises(UserError, match=r"'a' changes from f32\[n\] to f64\[n\]"):
        load_model(model)


def test_a_loop_of_as_many_trips_as_a_size_says() -> None:
    model = looped(
        "b = Reshape (a, row)",
        inputs="float[n] x, float[k] z",
        before="s = Shape (z)  m = Squeeze (s)",
        after="",
    )
    graph = load_model(model)
    check(model, {"x": X, "z": np.zeros(2, np.float32)}, graph=graph)
    with pytest.raises(UserError, match="a loop that ends before trip"):
        run(graph, {"x": X, "z": np.zeros(0, np.float32)})


INNER = """q = Loop (two, "", a) <
    body = inner (int64 j, bool l, float[] v) => (bool m2, float[] w) {
      m2 = Identity (l)  w = Reshape (v, row)
    }>"""


def test_loops_inside_loops_and_branches() -> None:
    two = "two = Constant <value = int64 {2}> ()"
    model = looped(f"{INNER}  b = Add (q, x)", before=two)
    check(model, {"m": np.array(3), "x": X})
    model = model_of(f"""
    g (int64 two, bool c, float[n] a) => (float[1, n] y) <int64[2] row = {{1, -1}}> {{
      y = If (c) <
        then_branch = t () => (float[] p) {{ {INNER} p = Neg (q) }},
        else_branch = e () => (float[] r) {{ r = Reshape (a, row) }}
      >
    }}""")
    graph = load_model(model)
    for c in (True, False):
        check(model, {"two": np.array(2), "c": np.array(c), "a": X}, graph=graph)


def test_a_condition_of_data_that_only_one_branch_fits_is_demanded() -> None:
    model = model_of("""
    g (bool c, float[n, 1] x) => (float[1, n] y) <int64[1] last = {1}> {
      q = If (c) <
        then_branch = t () => (float[] p) { p = Squeeze (x, last) },
        else_branch = e () => (float[] r) { r = Neg (x) }
      >
      y = Transpose <perm = [1, 0]> (q)
    }""")
    graph = check(model, {"c": np.array(False), "x": X[:, None]})
    with pytest.raises(UserError, match="the other branch gives a result of another rank"):
        run(graph, {"c": np.array(True), "x": X[:, None]})


def test_a_loop_of_the_graph_takes_and_gives_a_condition_of_one_type() -> None:
    outer = GraphBuilder("outer")
    x = outer.input("x", tensor(BOOL, 1))
    body = GraphBuilder("body", parent=outer)
    for name, type in (("i", tensor(I64)), ("k", tensor(BOOL)), ("a", tensor(BOOL, 1))):
        last = body.input(name, type)
    attrs = OPS["loop"].attrs(body.finish([last, last]), (x.type,))
    with pytest.raises(UserError, match=r"the condition has type bool\[1\], bool\[\] is due"):
        outer.add(OPS["loop"], [None, None, x], attrs)
