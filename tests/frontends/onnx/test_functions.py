"""Local functions: inlining, attributes, optional inputs, cycles and budgets."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.budgets import Budgets
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.lib.import_oracle import check, model_of, op_names

_HEADER = '<domain: "local", opset_import: ["" : 17, "local" : 1]>'
_TWICE = f"""
{_HEADER}
twice (a) => (b) {{ b = Add (a, a) }}
{_HEADER}
scaled <slope: float = 0.25> (a) => (b) {{
  t = local.twice (a)
  b = LeakyRelu <alpha: float = @slope> (t)
}}"""


def test_calls_are_inlined_with_their_attributes() -> None:
    model = model_of(
        "g (float[3] x) => (float[3] y, float[3] z) "
        "{ y = local.scaled <slope = 0.5> (x)  z = local.scaled (x) }",
        functions=_TWICE,
    )
    x = np.array([1.0, -2.0, 3.0], np.float32)
    graph = check(model, {"x": x})
    assert op_names(graph) == ["add", "leaky_relu"] * 2
    assert [n.attrs.alpha for n in graph.nodes if n.op.name == "leaky_relu"] == [0.5, 0.25]


def test_attributes_reach_into_bodies() -> None:
    function = f"""
    {_HEADER}
    f <slope: float = 0.25> (a, c) => (b) {{
      b = If (c) <
        then_branch = t () => (p) {{ p = LeakyRelu <alpha: float = @slope> (a) }},
        else_branch = e () => (q) {{ q = Neg (a) }}
      >
    }}"""
    text = "g (float[2] x, bool c) => (float[2] y) { y = local.f <slope = 0.5> (x, c) }"
    model = model_of(text, functions=function)
    check(model, {"x": np.array([-4.0, 2.0], np.float32), "c": np.array(True)})


@pytest.mark.parametrize(
    "functions",
    [
        f"{_HEADER}\nf (a) => (b) {{ b = local.f (a) }}",
        f"{_HEADER}\nf (a) => (b) {{ b = local.h (a) }}\n{_HEADER}\nh (a) => (b) "
        "{ b = local.f (a) }",
    ],
)
def test_functions_that_call_themselves_are_refused(functions: str) -> None:
    model = model_of("g (float x) => (float y) { y = local.f (x) }", functions=functions)
    with pytest.raises(UserError, match="cannot be imported") as error:
        load_model(model)
    assert "calls itself" in error.value.why


def test_an_expansion_without_end_is_stopped() -> None:
    levels = [f"{_HEADER}\nf0 (a) => (b) {{ b = Neg (a) }}"]
    levels += [
        f"{_HEADER}\nf{n} (a) => (b) {{ t = local.f{n - 1} (a)  b = local.f{n - 1} (t) }}"
        for n in range(1, 40)
    ]
    model = model_of("g (float x) => (float y) { y = local.f39 (x) }", functions="\n".join(levels))
    with pytest.raises(UserError, match="budget of 1000 nodes"):
        load_model(model, budgets=Budgets(nodes=1000))


def test_bodies_that_onnx_gives_stand_in_for_rows() -> None:
    text = "g (float[7] x) => (float[k] y) { n = Size (x)  w = HannWindow (n)  y = Mul (w, x) }"
    graph = check(model_of(text), {"x": np.ones(7, np.float32)})
    assert op_names(graph) == ["mul"], "a window of known size is a constant"


def test_a_body_also_serves_earlier_opsets_of_the_same_definition() -> None:
    text = "g (float[4] x) => (float[4] y) { y = Shrink <lambd = 1.0, bias = 0.5> (x) }"
    check(model_of(text, opset=9), {"x": np.array([-2.0, -0.5, 1.0, 3.0], np.float32)})


def test_a_loss_with_an_unknown_reduction_is_refused() -> None:
    text = (
        "g (float[2, 3] x, int64[2] c) => (float y) "
        '{ y = SoftmaxCrossEntropyLoss <reduction = "product"> (x, c) }'
    )
    with pytest.raises(UserError, match="no reduction 'product'"):
        load_model(model_of(text))


def test_the_grid_of_a_single_image_has_an_axis_of_images() -> None:
    text = (
        "g (float[1, 2, 3] theta) => (float[1, 2, 3, 2] y) "
        "{ n = Constant <value_ints = [1, 1, 2, 3]> ()  y = AffineGrid (theta, n) }"
    )
    theta = np.array([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]], np.float32)
    (grid,) = evaluate_graph(load_model(model_of(text, opset=20)), {"theta": theta}).values()
    due = [[theta[0] @ [x, y, 1] for x in (-2 / 3, 0, 2 / 3)] for y in (-0.5, 0.5)]
    np.testing.assert_allclose(grid, [due], rtol=0, atol=1e-5)
