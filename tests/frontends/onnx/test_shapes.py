"""Arithmetic on shapes stays symbolic where it can, and agrees with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.frontends.scope import ImportSession
from tcc.ir.graph.evaluate import evaluate_graph

from tests.lib.import_oracle import check, model_of, op_names


def _vector(values: list[int]) -> str:
    return f"Constant <value = int64[{len(values)}] {{{', '.join(map(str, values))}}}> ()"


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("{ s = Constant <value = int64[2] {0, -1}> ()  y = Reshape (x, s) }", "n,4*m"),
        ("{ s = Constant <value = int64[2] {-1, 2}> ()  y = Reshape (x, s) }", "2*m*n,2"),
        ("{ y = Flatten <axis = 2> (x) }", "m*n,4"),
        (
            "{ d = Shape (x)  i = Constant <value = int64 {1}> ()  k = Gather (d, i)"
            "  two = Constant <value = int64 {2}> ()  k2 = Mul (k, two)"
            "  zero = Constant <value = int64[1] {0}> ()  v = Unsqueeze (k2, zero)"
            "  rest = Constant <value = int64[1] {-1}> ()  s = Concat <axis = 0> (v, rest)"
            "  y = Reshape (x, s) }",
            "2*m,2*n",
        ),
        ("{ d = Shape <start = 0, end = 2> (x)  y = ConstantOfShape (d) }", "n,m"),
        ("{ d = Shape (x)  p = ReduceProd <keepdims = 1> (d)  y = Reshape (x, p) }", "4*m*n"),
        (
            "{ d = Shape (x)  f = Cast <to = 1> (d)  h = Constant <value = float {2.0}> ()"
            "  g = Mul (f, h)  r = Floor (g)  s = Cast <to = 7> (r)  y = Expand (z, s) }",
            "2*n,2*m,8",
        ),
    ],
)
def test_computed_shapes_leave_no_nodes(body: str, shape: str) -> None:
    graph = load_model(model_of(f"g (float[n, m, 4] x, float z) => (float[a, b] y) {body}"))
    (output,) = graph.outputs
    assert ",".join(dim.key for dim in output.type.shape) == shape
    assert set(op_names(graph)) <= {"reshape", "expand", "identity"}


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_slices_of_symbolic_axes_are_numpys(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 9))
    distant = st.sampled_from([-(1 << 63), -(1 << 31), (1 << 31) - 1, 10**9, (1 << 63) - 1])
    bound = st.integers(-12, 12)
    start, end = data.draw(bound), data.draw(bound | distant)
    step = data.draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
    if step < 0:
        start = max(start, -size)  # ONNX moves an earlier start to the first element
    model = model_of(f"""
    g (int64[n] x) => (int64[m] y) {{
      s = {_vector([start])}  e = {_vector([end])}  a = {_vector([0])}  t = {_vector([step])}
      y = Slice (x, s, e, a, t)
    }}""")
    x = np.arange(size)
    to_front = step < 0 and end <= -(1 << 31)
    reference = x[start : None if to_front else end : step]
    output = evaluate_graph(load_model(model), {"x": x})["y"]
    np.testing.assert_array_equal(output, reference)


def test_a_slice_from_the_end_has_the_size_it_asks_for() -> None:
    model = model_of(f"""
    g (float[n] x) => (float[m] y) {{
      s = {_vector([-64])}  e = {_vector([1 << 40])}  y = Slice (x, s, e)
    }}""")
    (dim,) = load_model(model).outputs[0].type.shape
    assert dim.key == "min(64,n)"


_RUN_TIME = {
    "reshape": ("int64[2] s", "y = Reshape (x, s)", [[3, 4], [0, -1], [-1, 3], [2, 0]]),
    "expand": ("int64[3] s", "y = Expand (x, s)", [[1, 1, 1], [5, 1, 6], [1, 2, 6]]),
    "expand to less": ("int64[1] s", "y = Expand (x, s)", [[1], [6]]),
    "slice": (
        "int64[2] s",
        "e = Constant <value = int64[2] {5, 9}> ()  y = Slice (x, s, e)",
        [[0, 0], [-1, 2], [1, -4], [7, 0]],
    ),
    "slice back": (
        "int64[2] s",
        "b = Constant <value = int64[2] {0, -1}> ()  a = Constant <value = int64[2] {0, 1}> ()"
        "  t = Constant <value = int64[2] {1, -1}> ()  y = Slice (x, b, s, a, t)",
        [[2, -7], [1, -(1 << 63)], [2, 0], [2, 3], [-1, -6], [0, 9]],
    ),
    "range": (
        "int64[3] s",
        "i = Split (s)  a, b, c = Split <axis = 0> (s)  r = Squeeze (a)  t = Squeeze (b)"
        "  u = Squeeze (c)  y = Range (r, t, u)",
        [[0, 5, 2], [5, -1, -2], [3, 3, 1]],
    ),
    "tile": ("int64[2] s", "y = Tile (x, s)", [[1, 2], [0, 3]]),
    "one_hot": (
        "int64[1] s",
        "i = Cast <to = 7> (x)  v = Constant <value = float[2] {0.0, 1.0}> ()"
        "  y = OneHot (i, s, v)",
        [[3], [5]],
    ),
    "constant_of_shape": ("int64[2] s", "y = ConstantOfShape (s)", [[2, 3], [0, 4]]),
    "top_k": ("int64[1] s", "y, i = TopK (x, s)", [[1], [3], [6]]),
}


@pytest.mark.parametrize("source", ["c", "x"])
def test_a_detour_by_bf16_rounds(source: str) -> None:
    model = model_of(
        "g (float[2] x) => (float[2] y) { c = Constant <value = float[2] {1.001, -3.02}> ()"
        f"  b = Cast <to = 16> ({source})  f = Cast <to = 1> (b)  y = Identity (f) }}"
    )
    x = np.array([1.001, -3.02], np.float32)
    reference = np.array([1, -3.015625], np.float32)
    np.testing.assert_array_equal(evaluate_graph(load_model(model), {"x": x})["y"], reference)


def test_an_expansion_may_ask_for_no_axes() -> None:
    model = model_of("g (float[2, 6] x, int64[0] s) => (float[2, 6] y) { y = Expand (x, s) }")
    check(model, {"x": np.ones((2, 6), np.float32), "s": np.zeros(0, np.int64)})


@pytest.mark.parametrize(("opset", "kind"), [(7, "float"), (10, "bool"), (12, "bool")])
def test_masks_of_dropouts(opset: int, kind: str) -> None:
    text = f"g (float[2, 6] x) => (float[2, 6] y, {kind}[2, 6] m) {{ y, m = Dropout (x) }}"
    check(model_of(text, opset), {"x": np.ones((2, 6), np.float32)})


def test_a_norm_whose_results_nobody_names() -> None:
    model = model_of(
        "g (float[2, 6] x, float[6] s) => (float[2, 6] y)"
        " { m = LayerNormalization (x, s)  y = Identity (x) }"
    )
    model.graph.node[0].output[0] = ""
    x = np.ones((2, 6), np.float32)
    outputs = evaluate_graph(load_model(model), {"x": x, "s": x[0]})
    np.testing.assert_array_equal(outputs["y"], x)


@pytest.mark.parametrize("name", _RUN_TIME)
def test_sizes_that_only_the_run_knows_become_symbols(name: str) -> None:
    operand, body, values = _RUN_TIME[name]
    body = body.replace("i = Split (s)  ", "")
    model = model_of(f"g (float[2, 6] x, {operand}) => (float[a, b] y) {{ {body} }}")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    if name == "range":
        model.graph.output[0].type.tensor_type.elem_type = 7
    graph = load_model(model)
    assert "bind_size" in op_names(graph)
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    inputs = [v.name for v in graph.inputs]
    for value in values:
        feeds: dict[str, Any] = {"x": x, "s": np.array(value)}
        check(model, {n: feeds[n] for n in inputs}, graph=graph)


@pytest.mark.parametrize("heads", [0, 1, 3, 7])
def test_equal_sizes_divide_each_other(heads: int) -> None:
    """Grouped heads repeat once if there are as many keys as queries, even if there are none."""
    model = model_of("""
    g (float[h, d] q, float[h, d] k) => (float[a, b] y, float[c] z) {
      nq = Shape <start = 0, end = 1> (q)  nk = Shape <start = 0, end = 1> (k)
      often = Div (nq, nk)  rest = Mod (nq, nk)  size = Concat <axis = 0> (often, nk)
      one = Constant <value = float {1.0}> ()
      y = Expand (one, size)  z = Expand (one, rest)
    }""")
    graph = load_model(model)
    assert [dim.key for out in graph.outputs for dim in out.type.shape] == ["1", "h", "0"]
    x = np.zeros((heads, 2), np.float32)
    assert evaluate_graph(graph, {"q": x, "k": x})["y"].shape == (1, heads)


def test_divisors_of_sizes_may_be_zero() -> None:
    """ONNX leaves a division by zero undefined: any size is right, but a signal is not."""
    model = model_of("""
    g (float[h] q, float[k] k) => (float[a] y) {
      nq = Shape (q)  nk = Shape (k)  often = Div (nq, nk)
      one = Constant <value = float {1.0}> ()  y = Expand (one, often)
    }""")
    graph = load_model(model)
    assert set(op_names(graph)) == {"expand"}
    for q, k in ((9, 3), (7, 2), (2, 7), (0, 1), (5, 0)):
        arrays = {"q": np.zeros(q, np.float32), "k": np.zeros(k, np.float32)}
        output = evaluate_graph(graph, arrays)["y"]
        assert not k or output.shape == (q // k,)


def test_sizes_that_data_decide_flow_on() -> None:
    model = model_of(
        """
    g (float[n] x) => (int64[a] y, float[b] z) {
      i = NonZero (x)  y = Squeeze (i)
      axis = Constant <value = int64[1] {0}> ()
      flat = Reshape (i, minus)  z = Gather (x, flat)
    }""".replace("flat = Reshape", "minus = Constant <value = int64[1] {-1}> ()  flat = Reshape")
    )
    for x in ([1.0, 0.0, 2.0, 0.0], [0.0], [3.0]):
        if sum(v != 0 for v in x) != 1:
            check(model, {"x": np.array(x, np.float32)})


def test_symbols_that_must_agree_are_required_to() -> None:
    model = model_of("g (float[2, n] x, float[m, 2] z) => (float[2, 2] y) { y = MatMul (x, z) }")
    ones = np.ones((2, 3), np.float32)
    graph = check(model, {"x": ones, "z": ones.T})
    assert op_names(graph) == ["require", "slice", "matmul"]


@pytest.mark.parametrize(
    ("end", "other", "ops"),
    [
        ("sum", "up", ["slice", "slice", "require", "slice", "add"]),  # equal, written in two ways
        ("whole", "n", ["slice", "require", "expand", "add"]),  # one is 0 where the other is 1
    ],
)
def test_sizes_of_one_symbol_are_repeated_only_where_one_may_be_1_alone(
    end: str, other: str, ops: list[str]
) -> None:
    model = model_of(f"""
    g (float[k] x) => (float[a] y) {{
      two = Constant <value = int64[1] {{2}}> ()  nil = Constant <value = int64[1] {{0}}> ()
      one = Constant <value = int64[1] {{1}}> ()
      n = Shape (x)  half = Div (n, two)  whole = Mul (half, two)
      rest = Mod (n, two)  sum = Add (half, rest)  more = Add (n, one)  up = Div (more, two)
      p = Slice (x, nil, {end})  q = Slice (x, nil, {other})  y = Add (p, q)
    }}""")
    graph = load_model(model)
    for size in (6, 1, 0, 2):
        check(model, {"x": np.arange(size, dtype=np.float32)}, graph=graph)
    assert [op for op in op_names(graph) if op != "identity"] == ops


def test_a_size_joined_once_is_joined_for_good() -> None:
    model = model_of("""
    g (float[n, 3] x, float[m, 3] z) => (float[k, 3] y) {
      a = Add (x, z)  b = Mul (a, x)  c = Sub (z, b)  y = Max (c, x, z, a)
    }""")
    for n, m in ((1, 1), (1, 4), (4, 1), (4, 4)):
        graph = check(model, {"x": np.ones((n, 3), np.float32), "z": np.ones((m, 3), np.float32)})
    assert op_names(graph).count("broadcast_size") == op_names(graph).count("require") == 1
    assert [dim.key for dim in graph.outputs[0].type.shape] == ["n_or_m", "3"]


@pytest.mark.parametrize(
    ("types", "op", "wrong"),
    [
        ("float[n, 3] x, float[2, 4] z) => (float[a, b] y)", "MatMul (z, x)", (5, 3)),
        ("float[1, n, 8] x, float[2, 4, 3] z) => (float[a, b, c] y)", "Conv (x, z)", (1, 3, 8)),
        ("float[n, 4] x, float[2, 4] z) => (float[a, b] y)", "PRelu (x, z)", (3, 4)),
        ("float[n, 4] x, float[4, 2] z) => (float[a, b] y)", "Concat <axis = 1> (x, z)", (3, 4)),
    ],
)
def test_open_sizes_that_must_be_numbers_are_required_to(
    types: str, op: str, wrong: tuple[int, ...]
) -> None:
    graph = load_model(model_of(f"g ({types} {{ y = {op} }}"))
    assert op_names(graph)[:2] == ["require", "slice"]
    _, z = graph.inputs
    feeds = {"x": np.ones(wrong, np.float32), "z": np.ones(z.type.static_shape or (), np.float32)}
    with pytest.raises(UserError, match="where the model needs"):
        evaluate_graph(graph, feeds)


def test_symbols_of_long_names_differ() -> None:
    session = ImportSession()
    symbols = [session.fresh_symbol(hint) for hint in ("n", "n.1", "n", *("long" * 30,) * 3)]
    assert len({index.key for index in symbols}) == len(symbols)
