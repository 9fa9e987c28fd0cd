"""A layer that sends each token to the best two of eight experts agrees with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc.backends.cpu.backend import CpuBackend
from tcc.debug import Trace
from tcc.frontends import load_model
from tcc.options import read_options
from tcc.passes.pipeline import run_pipeline
from tcc.variants import resolve_targets

from tests.lib.agreement import FLOAT, Array, assert_agree, expected, model_of, session, value

EXPERTS, TOP, DEPTH, WIDTH = 8, 2, 64, 96


def _weights(seed: int, *shape: int) -> Array:
    drawn = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[-2])
    return drawn.astype(np.float32)


def experts(tokens: int) -> onnx.ModelProto:
    """Returns a layer that selects the best gates and gathers the weights of their experts."""
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
    outputs = tcc.compile(model, target="cpu").run({"x": x})
    assert_agree(outputs, expected(session(model), {"x": x}))


def layer(tokens: int | str, depth: int, width: int, wide: int = 1, **how: Any) -> onnx.ModelProto:
    """Returns ONNX Runtime's MoE operator with biases; the first matmul gives `wide` parts of
    `width`."""
    weights = {
        "up": _weights(1, EXPERTS, depth, wide * width).swapaxes(1, 2).copy(),
        "up_bias": _weights(2, EXPERTS, wide * width),
        "down": _weights(3, EXPERTS, width, depth).swapaxes(1, 2).copy(),
        "down_bias": _weights(4, EXPERTS, depth),
    }
    node = helper.make_node(
        "MoE", ["x", "scores", *weights], ["y"], domain="com.microsoft", k=TOP, **how
    )
    inputs = [value("x", FLOAT, [tokens, depth]), value("scores", FLOAT, [tokens, EXPERTS])]
    outputs = [value("y", FLOAT, [tokens, depth])]
    return model_of([node], inputs, outputs, weights, opset=18, domains=["com.microsoft"])


def drawn(tokens: int, depth: int) -> dict[str, Array]:
    rng = np.random.default_rng(tokens)
    shapes = {"x": (tokens, depth), "scores": (tokens, EXPERTS)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize("how", [
    {"activation_type": "gelu"},
    {"activation_type": "silu", "normalize_routing_weights": 1},
    {"activation_type": "swiglu", "swiglu_fusion": 1, "swiglu_limit": 0.5, "wide": 2,
     "activation_alpha": 1.702, "activation_beta": 1.0},
])  # fmt: skip
def test_the_operator_of_experts_agrees(how: dict[str, Any]) -> None:
    model, feeds = layer(5, DEPTH, WIDTH, **how), drawn(5, DEPTH)
    outputs = tcc.compile(model, target="cpu").run(feeds)
    assert_agree(outputs, expected(session(model), feeds))


def test_many_tokens_read_each_expert_once_a_tile(tmp_path: Path) -> None:
    """One artifact for any number of tokens computes by tiles, gives equal bits with one thread and
    two, and moves few bytes besides weights and rows."""
    model = layer("n", 256, 320, activation_type="relu")
    module = tcc.compile(model, target="cpu")
    module.save(tmp_path / "m.so")
    single_threaded = tcc.load(tmp_path / "m.so", threads=1)
    for tokens in (1, 3, 150, 1100):
        feeds = drawn(tokens, 256)
        outputs = module.run(feeds)
        assert_agree(outputs, expected(session(model), feeds))
        np.testing.assert_array_equal(single_threaded.run(feeds)["y"], outputs["y"])


def test_experts_of_one_token_are_read_where_they_lie() -> None:
    """For one token nothing is ordered; for many, expressions order the rows and a host function
    finds the best experts."""
    options = read_options({"target": "cpu", "cpu": "x86-64-v4", "derive": False})
    code = CpuBackend(resolve_targets(options)[0], options, 1 << 22)

    def orders(tokens: int) -> int:
        graph = load_model(layer(tokens, 256, 320), {})
        graph_after = run_pipeline(graph, 2, Trace(None, None), settings=code.settings)
        return sum(n.op.name == "expression" for n in graph_after.nodes)

    assert orders(1) == 0
    assert orders(256) == 4


def test_experts_of_narrow_floats_are_refused_by_name() -> None:
    model = layer(5, DEPTH, WIDTH)
    model.graph.node[0].op_type = "QMoE"
    model.graph.node[0].attribute.append(helper.make_attribute("quant_type", "nvfp4"))
    with pytest.raises(tcc.UserError, match="weights of type nvfp4 are not supported"):
        tcc.compile(model, target="cpu")
