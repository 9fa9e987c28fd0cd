"""A layer that sends each token to the best two of eight experts, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper

from .agreement import FLOAT, Array, assert_agree, expected, model_of, session, value

EXPERTS, TOP, DEPTH, WIDTH = 8, 2, 64, 96


def _weights(seed: int, *shape: int) -> Array:
    drawn = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[-2])
    return drawn.astype(np.float32)


def experts(tokens: int) -> onnx.ModelProto:
    """Gates, their best, and of these the weights, gathered."""
    node = helper.make_node
    return model_of(
        [
            node("MatMul", ["x", "gate"], ["scores"]),
            node("TopK", ["scores", "top"], ["best", "index"], axis=-1),
            node("Softmax", ["best"], ["share"], axis=-1),
            node("Gather", ["up", "index"], ["ups"], axis=0),
            node("Gather", ["down", "index"], ["downs"], axis=0),
            node("Reshape", ["x", "rows"], ["x4"]),
            node("MatMul", ["x4", "ups"], ["h"]),
            node("Relu", ["h"], ["r"]),
            node("MatMul", ["r", "downs"], ["d"]),
            node("Reshape", ["d", "parts"], ["p"]),
            node("Unsqueeze", ["share", "last"], ["s"]),
            node("Mul", ["p", "s"], ["m"]),
            node("ReduceSum", ["m", "middle"], ["y"], keepdims=0),
        ],
        [value("x", FLOAT, [tokens, DEPTH])],
        [value("y", FLOAT, [tokens, DEPTH])],
        {
            "gate": _weights(0, DEPTH, EXPERTS),
            "up": _weights(1, EXPERTS, DEPTH, WIDTH),
            "down": _weights(2, EXPERTS, WIDTH, DEPTH),
            "top": np.array([TOP]),
            "rows": np.array([tokens, 1, 1, DEPTH]),
            "parts": np.array([tokens, TOP, DEPTH]),
            "last": np.array([2]),
            "middle": np.array([1]),
        },
    )


@pytest.mark.parametrize("tokens", [1, 5])
def test_experts_agree(tokens: int) -> None:
    model = experts(tokens)
    x = np.random.default_rng(tokens).standard_normal((tokens, DEPTH)).astype(np.float32)
    got = tcc.compile(model, target="cpu").run({"x": x})
    assert_agree(got, expected(session(model), {"x": x}))
