"""Gemm with transposes, factors and biases agrees with NumPy in float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx.parser
import pytest
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.draws import RNG


def evaluated(inputs: dict[str, Any], attributes: str, kind: str = "float") -> Any:
    """Returns the result of a Gemm of `inputs`."""
    declared = ", ".join(f"{kind}{list(x.shape)} {name}" for name, x in inputs.items())
    call = f"y = Gemm <{attributes}> ({', '.join(inputs)})"
    text = f"g ({declared}) => ({kind}[m, n] y) {{ {call} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    return evaluate_graph(load_model(model), inputs)["y"]


@pytest.mark.parametrize(
    ("alpha", "beta", "bias", "flip"),
    list(product((1.0, 0.5), (1.0, 2.0), (None, (5,), (3, 1), (1, 1), (1,)), (0, 1, 2, 3))),
)
def test_the_formula_of_onnx(
    alpha: float, beta: float, bias: tuple[int, ...] | None, flip: int
) -> None:
    flip_a, flip_b = flip & 1, flip >> 1
    inputs = {
        "a": RNG.standard_normal((4, 3) if flip_a else (3, 4)).astype(np.float32),
        "b": RNG.standard_normal((5, 4) if flip_b else (4, 5)).astype(np.float32),
    }
    if bias is not None:
        inputs["c"] = np.asarray(RNG.standard_normal(bias), np.float32)
    a, b, *c = (x.astype(np.float64) for x in inputs.values())
    due = alpha * (a.T if flip_a else a) @ (b.T if flip_b else b)
    due = due + beta * c[0] if c else due
    attributes = f"alpha = {alpha}, beta = {beta}, transA = {flip_a}, transB = {flip_b}"
    y = evaluated(inputs, attributes)
    assert y.shape == (3, 5)
    np.testing.assert_allclose(y, due, rtol=1e-5, atol=1e-5)


def test_whole_factors_of_integers() -> None:
    a, b, c = (RNG.integers(-9, 9, shape) for shape in ((3, 4), (4, 5), (5,)))
    y = evaluated({"a": a, "b": b, "c": c}, "alpha = 3.0, beta = -2.0", "int64")
    np.testing.assert_array_equal(y, 3 * (a @ b) - 2 * c)


@pytest.mark.parametrize("attributes", ["alpha = 0.5", "beta = 0.5"])
def test_fractions_of_integers_are_refused(attributes: str) -> None:
    a = np.ones((2, 2), np.int64)
    with pytest.raises(UserError, match=r"0\.5, which is not whole"):
        evaluated({"a": a, "b": a, "c": a}, attributes, "int64")


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("bias", [(2, 5), (3, 5, 1), (2, 3, 5)])
def test_a_bias_enlarges_nothing(alpha: float, bias: tuple[int, ...]) -> None:
    a, b, c = (np.ones(shape, np.float32) for shape in ((1, 4), (4, 5), bias))
    with pytest.raises(UserError):
        evaluated({"a": a, "b": b, "c": c}, f"alpha = {alpha}")
