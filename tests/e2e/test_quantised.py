"""Compiled 8-bit matmuls and convolutions with constant weights equal ONNX Runtime exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import tcc
from onnx import helper, numpy_helper

from tests.draws import RNG


class Layers:
    """A model of layers that read separate inputs and have random weights."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: dict[str, np.ndarray] = {}
        self.outputs: list[str] = []

    def input(self, array: np.ndarray) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = array
        return name

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def output(self, op: str, *operands: str, **attrs: Any) -> None:
        name = f"y{len(self.outputs)}"
        self.nodes.append(helper.make_node(op, list(operands), [name], **attrs))
        self.outputs.append(name)

    def model(self) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for k, a in self.inputs.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(n) for n in self.outputs]
        graph = helper.make_graph(self.nodes, "layers", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 21)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def drawn(dtype: Any, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def layers() -> Layers:
    """Returns layers with odd lengths, padding, strides and groups, for each 8-bit type."""
    m = Layers()
    for kind, (rows, depth, columns) in zip(
        (np.uint8, np.int8), ((13, 30, 37), (1, 67, 70)), strict=True
    ):
        x, w = (
            m.input(drawn(kind, rows, depth)),
            m.constant(drawn(np.int8, depth, columns), np.int8),
        )
        zero = m.constant(np.array(7), kind)
        m.output("MatMulInteger", x, w, zero)
    for channels, filters, group, strides in (
        (3, 20, 1, [2, 2]),
        (10, 33, 1, [1, 1]),
        (8, 16, 2, [1, 2]),
    ):
        x = m.input(drawn(np.uint8, 1, channels, 9, 11))
        w = m.constant(drawn(np.int8, filters, channels // group, 3, 3), np.int8)
        shape = {"pads": [1, 1, 1, 1], "strides": strides, "group": group}
        if channels == 3:
            m.output("ConvInteger", x, w, m.constant(np.array(130), np.uint8), **shape)
            continue
        steps = m.constant(RNG.uniform(0.001, 0.01, filters))
        m.output(
            "QLinearConv", x, m.constant(0.02), m.constant(130, np.uint8), w, steps,
            m.constant(np.zeros(filters), np.int8), m.constant(0.3), m.constant(100, np.uint8),
            m.constant(RNG.integers(-2000, 2000, filters), np.int32), **shape,
        )  # fmt: skip
    return m


def test_sums_of_bytes_are_exact() -> None:
    m = layers()
    model = m.model()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    # without VNNI, ONNX Runtime's pair sums saturate unless this option asks for exact sums
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.add_session_config_entry("session.x64quantprecision", "1")
    references = ort.InferenceSession(model.SerializeToString(), options).run(m.outputs, m.inputs)
    outputs = tcc.compile(model).run(m.inputs)
    for name, reference in zip(m.outputs, references, strict=True):
        np.testing.assert_array_equal(outputs[name], reference, err_msg=name)


def test_quantised_network() -> None:
    """Weights and activations are quantised and dequantised; a result may differ by one level."""
    m = Layers()

    def through(x: str, step: float) -> str:
        scale, zero = m.constant(step), m.constant(3, np.int8)
        small, back = f"{x}.q", f"{x}.dq"
        m.nodes.append(helper.make_node("QuantizeLinear", [x, scale, zero], [small]))
        m.nodes.append(helper.make_node("DequantizeLinear", [small, scale, zero], [back]))
        return back

    def weights(*shape: int) -> str:
        name = f"w{len(m.constants)}"
        steps = m.constant(RNG.uniform(0.001, 0.004, shape[0]))
        zeros = m.constant(np.zeros(shape[0]), np.int8)
        operands = [m.constant(drawn(np.int8, *shape), np.int8), steps, zeros]
        m.nodes.append(helper.make_node("DequantizeLinear", operands, [name], axis=0))
        return name

    def layer(op: str, *operands: str, **attrs: Any) -> str:
        name = f"{op}{len(m.nodes)}"
        m.nodes.append(helper.make_node(op, list(operands), [name], **attrs))
        return name

    x = through(m.input(RNG.standard_normal((1, 3, 12, 10)).astype(np.float32)), 0.03)
    bias = m.constant(RNG.standard_normal(16))
    first = layer("Conv", x, weights(16, 3, 3, 3), bias, pads=[1, 1, 1, 1])
    first = through(layer("Relu", first), 0.05)
    deep = layer("Conv", first, weights(16, 1, 3, 3), pads=[1, 1, 1, 1], group=16)
    second = layer("Conv", through(deep, 0.05), weights(16, 16, 1, 1))
    total = through(layer("Add", first, through(second, 0.05)), 0.06)
    pooled = layer("Flatten", layer("GlobalAveragePool", total))
    last = layer("Gemm", through(pooled, 0.02), weights(9, 16), m.constant(np.ones(9)), transB=1)
    m.output("Identity", last)
    model = m.model()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (reference,) = ort.InferenceSession(model.SerializeToString(), options).run(None, m.inputs)
    output = tcc.compile(model).run(m.inputs)["y0"]
    np.testing.assert_allclose(output, reference, atol=0.02 * np.abs(reference).max())
