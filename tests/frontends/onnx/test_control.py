"""If, Loop and Scan: bodies, captures, constant conditions, and sizes that iterations change."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph import walk_nodes
from tcc.ir.graph.evaluate import evaluate_graph

from tests.lib.import_oracle import check, model_of, op_names

_IF = """
g (float[n] x, bool c) => (float[m] y) {
  y = If (c) <
    then_branch = a () => (float[n] p) { p = Neg (x) },
    else_branch = b () => (float[k] q) { q = Concat <axis = 0> (x, x) }
  >
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_if_runs_the_branch_that_is_chosen(condition: bool) -> None:
    x = np.array([1.0, -2.0, 3.0], np.float32)
    graph = check(model_of(_IF), {"x": x, "c": np.array(condition)})
    assert op_names(graph) == ["if"]
    (size,) = graph.outputs[0].type.shape
    assert size is not graph.inputs[0].type.shape[0]


def test_if_on_a_constant_leaves_one_branch() -> None:
    text = _IF.replace("{\n  y = If", "<bool c = {1}> {\n  y = If").replace(", bool c)", ")")
    graph = check(model_of(text), {"x": np.ones(3, np.float32)})
    assert op_names(graph) == ["neg"]


def test_if_on_a_size_leaves_one_branch() -> None:
    model = model_of("""
    g (float[n, 4] x) => (float[n, k] y) {
      s = Shape <start = 1, end = 2> (x)
      four = Constant <value = int64[1] {4}> ()
      c = Equal (s, four)
      y = If (c) <
        then_branch = a () => (float[n, 4] p) { p = Neg (x) },
        else_branch = b () => (float[n, 4] q) { q = Abs (x) }
      >
    }""")
    graph = check(model, {"x": np.ones((2, 4), np.float32)})
    assert op_names(graph) == ["neg"]


def test_a_rank_that_depends_on_a_size_demands_the_size() -> None:
    model = model_of("""
    g (float[n, m] x) => (float[k] y) {
      axis = Constant <value = int64[1] {1}> ()
      index = Constant <value = int64 {1}> ()
      s = Shape (x)
      width = Gather (s, index)
      one = Constant <value = int64 {1}> ()
      c = Equal (width, one)
      squeezed = If (c) <
        then_branch = a () => (float[n] p) { p = Squeeze (x, axis) },
        else_branch = b () => (float[n, m] q) { q = Identity (x) }
      >
      y = Neg (squeezed)
    }""")
    graph = check(model, {"x": np.ones((3, 1), np.float32)})
    with pytest.raises(UserError, match="a size is 2 where the model needs 1"):
        evaluate_graph(graph, {"x": np.ones((3, 2), np.float32)})


def _squeezed(result: str, outputs: str, given: str = "") -> onnx.ModelProto:
    """Returns a model that squeezes the second axis of x[n, m] if its size is 1, or, with `given`,
    if c is true."""
    return model_of(f"""
    g (float[n, m] x{given and ", bool c"}) => ({outputs}) {{
      axis = Constant <value = int64[1] {{1}}> ()
      index = Constant <value = int64 {{1}}> ()
      one = Constant <value = int64 {{1}}> ()
      s = Shape (x)  width = Gather (s, index)
      {given or "c = Equal (width, one)"}
      q = If (c) <
        then_branch = a () => (float[n] p) {{ p = Squeeze (x, axis) }},
        else_branch = b () => (float[n, m] r) {{ r = Neg (x) }}
      >
      {result}
    }}""")


_WAYS = {
    "a sum": ("e = Exp (q)  y = ReduceSum <keepdims = 0> (e)", "float y"),
    "two results": ("y = ReduceMax <keepdims = 0> (q)  z = Shape (x)", "float y, int64[2] z"),
    "no result after it": ("t = Abs (q)  y = Abs (x)", "float[n, m] y"),
}


@pytest.mark.parametrize("name", _WAYS)
def test_nodes_behind_branches_of_unequal_rank_are_computed_for_both_ranks(name: str) -> None:
    model = _squeezed(*_WAYS[name])
    graph = load_model(model)
    for shape in ((3, 1), (3, 4), (1, 1)):
        check(model, {"x": np.ones(shape, np.float32)}, graph=graph)
    data = _squeezed(*_WAYS[name], given=" ")
    graph = load_model(data)
    for condition in (True, False):
        feeds = {"x": np.ones((3, 1), np.float32), "c": np.array(condition)}
        check(data, feeds, graph=graph)


def test_equal_conditions_are_decided_once() -> None:
    """Twenty squeezes of one axis have one condition, hence two paths through the model and not a
    million."""
    step = """
      d{n} = Equal (width, one)
      q{n} = If (d{n}) <
        then_branch = t{n} () => (float[n] p{n}) {{ p{n} = Squeeze (x, axis) }},
        else_branch = e{n} () => (float[n, m] r{n}) {{ r{n} = Neg (x) }}
      >
      w{n} = ReduceSum <keepdims = 0> (q{n})"""
    steps = "".join(step.format(n=n) for n in range(20))
    ends = ", ".join(f"w{n}" for n in range(20))
    model = _squeezed(f"f = ReduceSum <keepdims = 0> (q)  {steps}  y = Sum (f, {ends})", "float y")
    graph = load_model(model)
    assert [node.op.name for node in walk_nodes(graph)].count("if") == 1
    for shape in ((3, 1), (3, 4)):
        check(model, {"x": np.ones(shape, np.float32)}, graph=graph)


@pytest.mark.parametrize(
    ("result", "shape", "other"),
    [
        ("y = Transpose <perm = [1, 0]> (q)", (3, 4), (3, 1)),
        ("u = Unsqueeze (q, axis)  y = Transpose <perm = [1, 0]> (u)", (3, 1), (3, 4)),
    ],
)
def test_a_branch_after_which_nothing_works_is_not_taken(
    result: str, shape: tuple[int, ...], other: tuple[int, ...]
) -> None:
    graph = check(_squeezed(result, "float[k, l] y"), {"x": np.ones(shape, np.float32)})
    assert "if" not in op_names(graph)
    with pytest.raises(UserError, match="the other branch gives a result of another rank"):
        evaluate_graph(graph, {"x": np.ones(other, np.float32)})


def test_a_result_whose_rank_depends_on_a_size_is_refused_and_a_fixed_size_taken() -> None:
    model = _squeezed("y = Neg (q)", "float y")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UserError) as refused:
        load_model(model)
    assert "'y' has type f32[n] one way and f32[n,m] the other" in str(refused.value)
    assert "--input" in str(refused.value)
    for shape in ((3, 1), (3, 4)):
        check(model, {"x": np.ones(shape, np.float32)}, shapes={"x": shape})


@pytest.mark.parametrize("condition", [True, False])
def test_sizes_that_data_decide_are_bound_in_each_branch(condition: bool) -> None:
    model = model_of("""
    g (int64[2] s, bool c) => (float[a, b] y) {
      y = If (c) <
        then_branch = t () => (float[k, l] p) { p = ConstantOfShape (s) },
        else_branch = e () => (float[m, n] q) { r = ConstantOfShape (s)  q = Cos (r) }
      >
    }""")
    check(model, {"s": np.array([3, 4]), "c": np.array(condition)})


_LOOP = """
g (int64 trips, float[2] start) => (float[2] last, float[r, 2] rows) {
  keep = Constant <value = bool {1}> ()
  last, rows = Loop (trips, keep, start) <
    body = b (int64 i, bool c, float[2] v) => (bool go, float[2] next, float[2] row) {
      five = Constant <value = float {5.0}> ()
      f = Cast <to = 1> (i)
      next = Add (v, f)
      low = ReduceMax <keepdims = 0> (next)
      go = Less (low, five)
      row = Mul (next, start)
    }
  >
}"""


@pytest.mark.parametrize("trips", [0, 1, 3, 9])
def test_loop_stops_at_the_count_or_the_condition(trips: int) -> None:
    start = np.array([1.0, 0.5], np.float32)
    check(model_of(_LOOP), {"trips": np.array(trips), "start": start})


def test_a_carried_value_may_grow() -> None:
    model = model_of("""
    g (int64 trips, float[1] x) => (float[k] y) {
      keep = Constant <value = bool {1}> ()
      y = Loop (trips, keep, x) <
        body = b (int64 i, bool c, float[m] v) => (bool go, float[p] next) {
          go = Identity (c)
          next = Concat <axis = 0> (v, x)
        }
      >
    }""")
    graph = check(model, {"trips": np.array(4), "x": np.array([2.5], np.float32)})
    assert graph.outputs[0].type.static_shape is None


def test_nested_bodies_read_every_scope_around_them() -> None:
    model = model_of("""
    g (float[3] x, bool c) => (float[3] y) {
      two = Constant <value = int64 {2}> ()
      keep = Constant <value = bool {1}> ()
      y = Loop (two, keep, x) <
        body = b (int64 i, bool go, float[3] v) => (bool again, float[3] next) {
          again = Identity (go)
          next = If (c) <
            then_branch = t () => (float[3] p) { p = Add (v, x) },
            else_branch = e () => (float[3] q) { q = Mul (v, x) }
          >
        }
      >
    }""")
    x = np.array([1.5, -1.0, 0.25], np.float32)
    for c in (True, False):
        check(model, {"x": x, "c": np.array(c)})


@pytest.mark.parametrize(("direction", "axis"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_scan_cuts_and_stacks_along_axes(direction: int, axis: int) -> None:
    model = model_of(f"""
    g (float[3] s, float[5, 5] xs) => (float[3] last, float[a, b] rows) {{
      zero = Constant <value = int64[1] {{0}}> ()
      three = Constant <value = int64[1] {{3}}> ()
      last, rows = Scan (s, xs) <
        num_scan_inputs = 1, scan_input_axes = [{axis}], scan_output_axes = [{axis}],
        scan_input_directions = [{direction}], scan_output_directions = [{direction}],
        body = b (float[3] h, float[5] x) => (float[3] next, float[3] row) {{
          part = Slice (x, zero, three)
          next = Add (h, part)
          row = Neg (next)
        }}
      >
    }}""")
    rng = np.random.default_rng(7)
    xs = rng.standard_normal((5, 5)).astype(np.float32)
    check(model, {"s": np.zeros(3, np.float32), "xs": xs})


def test_branches_of_unlike_type_are_refused() -> None:
    text = _IF.replace("Concat <axis = 0> (x, x)", "Cast <to = 11> (x)").replace(
        "float[k] q", "double[k] q"
    )
    with pytest.raises(UserError, match="If cannot be imported"):
        load_model(model_of(text))
