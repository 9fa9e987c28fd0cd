"""Matmuls and convolutions of f32 become products of bytes with the right scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from tcc.frontends import load_model
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.passes.quantize.int8_layers import (
    error_probe,
    int8_layers,
    levels_of_range,
    range_probe,
    with_int8_layers,
)

from tests.closeness import assert_within
from tests.draws import RNG

Array = np.ndarray[Any, np.dtype[Any]]
DEPTH, COLUMNS = 96, 176


def model_of(
    nodes: list[onnx.NodeProto], x: tuple[int | str, ...], constants: dict[str, Array]
) -> onnx.ModelProto:
    """Returns a model of opset 17 from x to y."""
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 9
    return proto


def matmul(w: Array, bias: Array | None = None) -> onnx.ModelProto:
    """Returns the model x @ w, plus `bias` if there is one."""
    if bias is None:
        return model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], ("n", len(w)), {"w": w})
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    return model_of([node], ("n", len(w)), {"w": w, "b": bias})


def in_bytes(graph: Graph) -> Graph:
    return with_int8_layers(graph, {node.result.name: None for node in int8_layers(graph)})


def levels_of_rows(x: Array) -> tuple[Array, Array, Array]:
    """Returns the bytes of x as integers, with the scale and the zero point of each row."""
    low = np.minimum(x.min(-1, keepdims=True), 0).astype(np.float32)
    high = np.maximum(x.max(-1, keepdims=True), 0).astype(np.float32)
    width = np.maximum(high - low, np.float32(2.0**-100))
    scale = width / np.float32(255)
    factor = np.float32(1) / scale
    zero = np.rint(-low * factor)
    levels = np.clip(np.rint(x * factor) + zero, 0, 255)
    return levels.astype(np.int64), scale.astype(np.float64), zero


def expected(x: Array, w: Array) -> Array:
    """Returns x @ w of rows and columns rounded to bytes: sums of integers, then f64."""
    scales = np.abs(w).max(0) / np.float32(127)
    columns = np.rint(w / scales).astype(np.int64)
    levels, steps, zeros = levels_of_rows(x)
    return ((levels - zeros.astype(np.int64)) @ columns) * steps * scales.astype(np.float64)


@pytest.mark.parametrize("has_bias", [False, True])
def test_matmuls_of_rows(has_bias: bool) -> None:
    w = RNG.standard_normal((DEPTH, COLUMNS)).astype(np.float32) * np.geomspace(1e-3, 10, COLUMNS)
    w = w.astype(np.float32)
    bias = RNG.standard_normal(COLUMNS).astype(np.float32) if has_bias else None
    x = RNG.standard_normal((7, DEPTH)).astype(np.float32) * np.geomspace(1e-6, 1e6, 7)[:, None]
    x = x.astype(np.float32)
    x[1], x[2], x[3] = np.abs(x[1]), -np.abs(x[2]), 0  # of one sign, and without a range
    graph = in_bytes(load_model(matmul(w, bias)))
    assert "matmul_integer" in {node.op.name for node in graph.nodes}
    y = evaluate_graph(graph, {"x": x})["y"]
    product, added = expected(x, w), np.float32(0) if bias is None else bias
    assert_within(y, product + added, 1e-6 * (np.abs(product) + np.abs(added)) + 1e-30)


def test_a_row_of_one_sign_uses_all_levels() -> None:
    w = RNG.standard_normal((DEPTH, COLUMNS)).astype(np.float32)
    x = np.abs(RNG.standard_normal((32, DEPTH))).astype(np.float32)
    y = evaluate_graph(in_bytes(load_model(matmul(w))), {"x": x})["y"]
    levels, _, zeros = levels_of_rows(x)
    assert (levels.max(-1) == 255).all()
    assert not zeros.any()
    exact = x.astype(np.float64) @ w
    assert np.sqrt(((y - exact) ** 2).sum() / (exact**2).sum()) < 0.011


def test_a_nan_stays_in_its_row() -> None:
    w = RNG.standard_normal((DEPTH, COLUMNS)).astype(np.float32)
    x = RNG.standard_normal((3, DEPTH)).astype(np.float32)
    x[1, 5] = np.nan
    y = evaluate_graph(in_bytes(load_model(matmul(w))), {"x": x})["y"]
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_stay(bad: float) -> None:
    w = RNG.standard_normal((DEPTH, COLUMNS)).astype(np.float32)
    w[0, 0] = bad
    graph = load_model(matmul(w))
    assert in_bytes(graph) is graph
    assert error_probe(graph, {"y": None})[1] == ()


def test_a_zero_column() -> None:
    w = RNG.standard_normal((DEPTH, COLUMNS)).astype(np.float32)
    w[:, 3] = 0
    x = RNG.standard_normal((2, DEPTH)).astype(np.float32)
    y = evaluate_graph(in_bytes(load_model(matmul(w))), {"x": x})["y"]
    assert not y[:, 3].any()
    assert np.abs(y[:, 4]).min() > 0


def test_computed_factors_and_small_matrices_stay() -> None:
    small = load_model(matmul(RNG.standard_normal((64, 16)).astype(np.float32)))
    assert in_bytes(small) is small
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"])]
    square = load_model(model_of(nodes, (256, 256), {}))
    assert not int8_layers(square)


def conv(pads: int = 1, group: int = 1) -> tuple[onnx.ModelProto, Array, Array]:
    w = RNG.standard_normal((12, 8 // group, 3, 3)).astype(np.float32)
    bias = RNG.standard_normal(12).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[pads] * 4, group=group)
    return model_of([node], (1, 8, 9, 9), {"w": w, "b": bias}), w, bias


@pytest.mark.parametrize("pads", [0, 1])
def test_convolutions(pads: int) -> None:
    proto, w, bias = conv(pads)
    x = RNG.standard_normal((1, 8, 9, 9)).astype(np.float32) + np.float32(0.5)
    graph = load_model(proto)
    probe, names = range_probe(graph)
    assert names == ("y",)
    low, high = map(float, evaluate_graph(probe, {"x": x}).values())
    assert (low, high) == (x.min(), x.max())
    scale, zero = levels_of_range(low, high)
    bytes_ = with_int8_layers(graph, {"y": (scale, zero)})
    assert "conv_integer" in {node.op.name for node in bytes_.nodes}
    # The oracle is ONNX Runtime, which rounds to the same levels and convolves in f32.
    scales = np.abs(w).max((1, 2, 3)) / np.float32(127)
    w8 = np.rint(w / scales[:, None, None, None]).astype(np.int8)
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "ws"], ["dw"], axis=0),
        node("Conv", ["d", "dw", "b"], ["y"], pads=[pads] * 4),
    ]
    constants = {
        "s": np.float32(scale), "z": np.uint8(zero), "w": w8, "ws": scales, "b": bias,
    }  # fmt: skip
    model = model_of(nodes, (1, 8, 9, 9), {k: np.asarray(a) for k, a in constants.items()})
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    session = InferenceSession(model.SerializeToString(), options)
    (exact,) = session.run(None, {"x": x})
    y = evaluate_graph(bytes_, {"x": x})["y"]
    assert_within(y, exact, 1e-5 * np.abs(exact).max())


def test_depthwise_convolutions_and_convolutions_without_ranges_stay() -> None:
    depthwise = load_model(conv(group=8 // 2)[0])
    assert with_int8_layers(depthwise, {"y": levels_of_range(-1, 2)}) is depthwise
    dense = load_model(conv()[0])
    assert with_int8_layers(dense, {"y": None}) is dense


def test_probed_errors() -> None:
    w = RNG.standard_normal((DEPTH, COLUMNS)).astype(np.float32)
    x = RNG.standard_normal((9, DEPTH)).astype(np.float32)
    probe, names = error_probe(load_model(matmul(w)), {"y": None})
    error, size = map(float, evaluate_graph(probe, {"x": x}).values())
    exact = x.astype(np.float64) @ w
    true_error = ((expected(x, w) - exact) ** 2).sum()
    assert names == ("y",)
    assert abs(error / true_error - 1) < 1e-3
    assert abs(size / (exact**2).sum() - 1) < 1e-5


def test_levels_of_ranges_hold_zero() -> None:
    assert levels_of_range(1.0, 2.0)[1] == 0
    assert levels_of_range(-2.0, -1.0)[1] == 255
    scale, zero = levels_of_range(-1.0, 3.0)
    assert abs(scale - 4 / 255) < 1e-8
    assert zero == 64
    assert levels_of_range(0.0, 0.0)[0] > 0
