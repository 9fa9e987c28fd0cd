"""One artifact broadcasts symbolic sizes that are 1 at run time, as ONNX Runtime does."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import parser
from tcc.errors import UserError

from tests.draws import RNG
from tests.lib.agreement import Array, assert_agree, expected, session

Shapes = dict[str, tuple[int, ...]]


def model_of(text: str, functions: str = "") -> onnx.ModelProto:
    header = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>'
    return parser.parse_model(f"{header}\n{text}\n{functions}")


def drawn(model: onnx.ModelProto, shapes: Shapes) -> dict[str, Array]:
    kinds = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
    normal = {name: RNG.standard_normal(shape) for name, shape in shapes.items()}
    bools = onnx.TensorProto.BOOL
    return {n: a > 0 if kinds[n] == bools else a.astype(np.float32) for n, a in normal.items()}


# (the inputs, the node, the shapes of the inputs in each run, shapes that ONNX Runtime refuses too)
KINDS: dict[str, tuple[str, str, list[Any], Any]] = {
    "add": (
        "float[n] a, float[m] b",
        "Add (a, b)",
        [((p,), (q,)) for p, q in ((1, 1), (1, 37), (37, 1), (37, 37), (0, 1), (1, 0), (0, 0))],
        ((3,), (2,)),
    ),
    "number": ("float[n] a, float[4] b", "Sub (b, a)", [((1,), (4,)), ((4,), (4,))], ((3,), (4,))),
    "axes": (
        "float[n, m] a, float[p, q] b",
        "Mul (a, b)",
        [((n, m), (p, q)) for n, m, p, q in product((1, 3), (1, 33), (1, 3), (1, 33))],
        ((3, 2), (3, 4)),
    ),
    "where": (
        "bool[n, 1] a, float[m, p] b, float[q] c",
        "Where (a, b, c)",
        [((n, 1), (m, p), (q,)) for n, m, p, q in product((1, 5), (1, 5), (1, 9), (1, 9))],
        ((2, 1), (3, 4), (4,)),
    ),
    "many": (
        "float[n, 7] a, float[m, 7] b, float[p, 7] c",
        "Max (a, b, c)",
        [((n, 7), (m, 7), (p, 7)) for n, m, p in product((1, 5), repeat=3)],
        ((1, 7), (2, 7), (3, 7)),
    ),
    "matmul": (
        "float[n, m, 3, 4] a, float[p, 4, 5] b",
        "MatMul (a, b)",
        [((n, m, 3, 4), (p, 4, 5)) for n, m, p in product((1, 2), (1, 3), (1, 3))],
        ((2, 2, 3, 4), (3, 4, 5)),
    ),
    "gemm": (
        "float[n, 4] a, float[4, m] b, float[p, q] c",
        "Gemm (a, b, c)",
        [((3, 4), (4, 5), (p, q)) for p, q in product((1, 3), (1, 5))],
        ((3, 4), (4, 5), (2, 5)),
    ),
    "prelu": (
        "float[n, 4, m] a, float[4, p] b",
        "PRelu (a, b)",
        [((n, 4, 9), (4, p)) for n, p in product((1, 3), (1, 9))],
        ((1, 4, 3), (4, 2)),
    ),
    "norm": (
        "float[n, m] a, float[p] b, float[q] c",
        "LayerNormalization <axis = -1> (a, b, c)",
        [((n, 9), (p,), (q,)) for n, p, q in product((1, 3), (1, 9), (1, 9))],
        ((3, 9), (8,), (9,)),
    ),
    "mask": (
        "float[n, 2, m, p] a, float[q, 1, 1, r] b",
        "Softmax (masked)",
        [((n, 2, 3, p), (q, 1, 1, r)) for n, p, q, r in product((1, 2), (1, 8), (1, 2), (1, 8))],
        ((1, 2, 3, 8), (1, 1, 1, 7)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_sizes_that_are_one_at_run_time_broadcast(name: str) -> None:
    inputs, result, accepted, refused = KINDS[name]
    before = "masked = Add (a, b)" if "masked" in result else ""
    model = model_of(f"g ({inputs}) => (float y) {{ {before} y = {result} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    module, runner = tcc.compile(model, jobs=1), session(model)
    for shapes in accepted:
        feeds = drawn(model, dict(zip("abc", shapes, strict=False)))
        assert_agree(module.run(feeds), expected(runner, feeds), 1e-5)
    wrong = drawn(model, dict(zip("abc", refused, strict=False)))
    with pytest.raises(Exception, match=r"roadcast|dimension|Invalid|shape"):
        expected(runner, wrong)
    with pytest.raises(UserError, match=r"\(\w+\): \w+ must be 1 or "):
        module.run(wrong)


# ---- where the sizes come from, and where they meet --------------------------------------------

IN_BRANCHES = """
g (float[n] a, float[m] b, bool c) => (float[k] y) {
  y = If (c) <
    then_branch = t () => (float[k] p) { p = Add (a, b) },
    else_branch = e () => (float[k] q) { d = Sub (b, a)  q = Mul (d, a) }
  >
}"""

IN_A_LOOP = """
g (float[n] a, float[m] b) => (float[k] y) {
  trips = Constant <value = int64 {2}> ()  go = Constant <value = bool {1}> ()
  y = Loop (trips, go, a) <
    body = l (int64 i, bool c, float[r] v) => (bool d, float[s] w) {
      d = Identity (c)  w = Add (v, b)
    }
  >
}"""

IN_A_SCAN = """
g (float[n] a, float[m] b, float[3] x, bool c) => (float[k] y, float[3, k] rows) {
  y, rows = Scan <num_scan_inputs = 1, body = l (float[r] s, float p) => (float[r] t, float[k] v) {
    u = Mul (s, p)  t = Add (s, u)  BODY  v = Mul (w, p)
  }> (a, x)
}"""
A_SUM = "w = Add (a, b)"
A_CALL = "w = local.f (a, b)"
A_BRANCH = """w = If (c) <
  then_branch = q () => (float[k] d) { d = Sub (a, b) },
  else_branch = e () => (float[k] o) { o = Add (b, a) }
>"""


def scan(body: str, functions: str = "") -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    x = np.array([2, -3, 4], np.float32)
    model = model_of(IN_A_SCAN.replace("BODY", body), functions)
    return model, [{"c": np.array(c), "x": x} for c in (True, False)]


OF_DATA = """
g (float[n] a, float[m] b) => (float[k] y) {
  i = NonZero (a)  axis = Constant <value = int64[1] {0}> ()
  j = Squeeze (i, axis)  v = Gather (a, j)  y = Add (v, b)
}"""

IN_A_FUNCTION = (
    "g (float[n] a, float[m] b) => (float[k] y) { c = local.f (a, b)  y = local.f (c, a) }"
)
FUNCTION = (
    '<domain: "local", opset_import: ["" : 17]> f (p, q) => (r) { s = Add (p, q)  r = Mul (s, p) }'
)

EXPANDED = """
g (float[n, m] a, float[p, q] b) => (float[k, l] y) { s = Shape (b)  y = Expand (a, s) }"""

PLACES = {
    "branches": (model_of(IN_BRANCHES), [{"c": np.array(c)} for c in (True, False)]),
    "loop": (model_of(IN_A_LOOP), [{}]),
    "function": (model_of(IN_A_FUNCTION, FUNCTION), [{}]),
    "scan": scan(A_SUM),
    "branches in a scan": scan(A_BRANCH),
    "function in a scan": scan(A_CALL, FUNCTION),
    "data": (model_of(OF_DATA), [{"a": np.array(a, np.float32)} for a in ([0, 4, 0], [1, 0, 2])]),
}


@pytest.mark.parametrize("name", PLACES)
def test_sizes_of_data_and_in_bodies_broadcast(name: str) -> None:
    model, variants = PLACES[name]
    module, runner = tcc.compile(model, jobs=1), session(model)
    for fixed, n, m in product(variants, (1, 2), (1, 2)):
        feeds = {k: RNG.standard_normal(s).astype(np.float32) for k, s in (("a", n), ("b", m))}
        feeds |= fixed
        assert_agree(module.run(feeds), expected(runner, feeds), 1e-5)


def test_a_state_keeps_its_sizes_and_rows_have_sizes_known_around_them() -> None:
    model = model_of("""
    g (float[n] a, float[m] b, float[t, 4] x) => (float[k] y, float[t, k] rows) {
      y, rows = Scan <num_scan_inputs = 1, body = l (float[r] s, float[4] p)
        => (float[r] o, float[k] v) { o = Add (s, b)  v = Mul (o, b) }> (a, x)
    }""")
    module, runner, x = tcc.compile(model, jobs=1), session(model), np.zeros((3, 4), np.float32)
    for n, m in ((4, 1), (4, 4), (1, 1)):
        feeds = drawn(model, {"a": (n,), "b": (m,)}) | {"x": x}
        assert_agree(module.run(feeds), expected(runner, feeds), 1e-5)
    wider = drawn(model, {"a": (1,), "b": (4,)}) | {"x": x}
    with pytest.raises(Exception, match="shape"):
        expected(runner, wider)
    with pytest.raises(UserError, match="an iteration keeps the sizes of a state"):
        module.run(wider)
    some = model.graph.node[0].attribute[1].g.node[1]
    some.CopyFrom(onnx.helper.make_node("NonZero", ["p"], ["v"]))
    with pytest.raises(UserError, match=r"of .rows. is of type .* only an iteration knows"):
        tcc.compile(model, jobs=1)


@pytest.mark.parametrize("options", [{"level": 0}, {"buckets": {"n": (1, 4), "m": (4,)}}])
def test_unoptimised_code_and_code_for_fixed_sizes_broadcast_too(options: dict[str, Any]) -> None:
    model = model_of(EXPANDED)
    module, runner = tcc.compile(model, jobs=1, **options), session(model)
    for n, m, p, q in product((1, 4), repeat=4):
        feeds = drawn(model, {"a": (n, m), "b": (p, q)})
        assert_agree(module.run(feeds), expected(runner, feeds), 1e-5)


# ---- one step of a decoder ----------------------------------------------------------------------

DECODER = """
g (float[n, s, 8] x, float[n, 2, p, 4] past, float[b, t] mask)
  => (float[o, s, 8] y, float[n, 2, q, 4] present) {
  split = Constant <value = int64[4] {0, -1, 2, 4}> ()
  joined = Constant <value = int64[3] {0, 0, -1}> ()
  axes = Constant <value = int64[2] {1, 2}> ()
  heads = Reshape (x, split)
  q = Transpose <perm = [0, 2, 1, 3]> (heads)
  present = Concat <axis = 2> (past, q)
  k = Transpose <perm = [0, 1, 3, 2]> (present)
  scores = MatMul (q, k)
  wide = Unsqueeze (mask, axes)
  masked = Add (scores, wide)
  shares = Softmax (masked)
  o = MatMul (shares, present)
  turned = Transpose <perm = [0, 2, 1, 3]> (o)
  flat = Reshape (turned, joined)
  y = Add (flat, x)
}"""


def test_a_mask_of_symbolic_sizes_broadcasts_to_the_scores() -> None:
    model = model_of(DECODER)
    module, runner = tcc.compile(model, jobs=1), session(model)
    for n, s, p in product((1, 2), (1, 3), (0, 2)):
        for b, t in product((1, n), (1, p + s)):
            feeds = drawn(model, {"x": (n, s, 8), "past": (n, 2, p, 4), "mask": (b, t)})
            assert_agree(module.run(feeds), expected(runner, feeds), 1e-5)


# ---- names --------------------------------------------------------------------------------------


def added(first: str, second: str) -> onnx.ModelProto:
    model = model_of("g (float[n] a, float[n] b) => (float[k] y) { y = Add (a, b) }")
    for port, name in zip(model.graph.input, (first, second), strict=True):
        port.type.tensor_type.shape.dim[0].dim_param = name
    return model


@pytest.mark.parametrize("name", ["?", "-1", "*"])
def test_a_name_without_letters_is_none(name: str) -> None:
    model = added(name, name)
    feeds = drawn(model, {"a": (3,), "b": (1,)})
    assert_agree(tcc.compile(model, jobs=1).run(feeds), expected(session(model), feeds), 1e-6)


def test_two_sizes_of_one_name_are_equal_unless_the_user_names_them_apart() -> None:
    model = added("batch", "batch")
    feeds = drawn(model, {"a": (3,), "b": (1,)})
    with pytest.raises(UserError) as refused:
        tcc.compile(model, jobs=1).run(feeds)
    assert str(refused.value).startswith(
        "input b, dimension 0: batch is due, the size of input a, dimension 0; "
        "compile with another name for one of them (--input NAME=SHAPE) if they may differ (1, 3)"
    )
    module = tcc.compile(model, jobs=1, inputs=("b=one",))
    assert_agree(module.run(feeds), expected(session(model), feeds), 1e-6)


# ---- ranks --------------------------------------------------------------------------------------


def test_a_squeeze_without_axes_refuses_the_size_that_it_would_drop() -> None:
    model = model_of("g (float[n, 1, m] a) => (float[n, m] y) { y = Squeeze (a) }")
    module, runner = tcc.compile(model, jobs=1), session(model)
    for n, m in ((2, 3), (0, 3), (2, 0)):
        feeds = drawn(model, {"a": (n, 1, m)})
        assert_agree(module.run(feeds), expected(runner, feeds))
    for n, m in ((1, 3), (2, 1)):
        feeds = drawn(model, {"a": (n, 1, m)})
        assert expected(runner, feeds)["y"].ndim == 1
        with pytest.raises(UserError, match=r"\(Squeeze\): .* names no axes would drop this one"):
            module.run(feeds)
    fixed = tcc.compile(model, jobs=1, inputs={"a": (1, 1, 3)})
    feeds = drawn(model, {"a": (1, 1, 3)})
    assert_agree(fixed.run(feeds), expected(runner, feeds))


def test_branches_of_unequal_rank_are_two_programs_in_one() -> None:
    model = model_of("""
    g (float[n, m, 6] a) => (float[p, 4] y) {
      axis = Constant <value = int64[1] {1}> ()  one = Constant <value = int64[1] {1}> ()
      rows = Constant <value = int64[2] {-1, 4}> ()  big = Constant <value = int64[1] {24}> ()
      w = ConstantOfShape <value = float[1] {0.5}> (big)
      shape = Constant <value = int64[2] {6, 4}> ()
      k = Reshape (w, shape)  size = Shape <start = 1, end = 2> (a)  c = Equal (size, one)
      q = If (c) <
        then_branch = t () => (float[n, 6] s) { s = Squeeze (a, axis) },
        else_branch = e () => (float[n, m, 6] r) { r = Neg (a) }
      >
      o = MatMul (q, k)  h = Relu (o)  y = Reshape (h, rows)
    }""")
    module, runner = tcc.compile(model, jobs=1), session(model)
    for n, m in ((1, 1), (3, 1), (3, 5), (1, 2)):
        feeds = drawn(model, {"a": (n, m, 6)})
        assert_agree(module.run(feeds), expected(runner, feeds), 1e-5)
