"""Small models with the results of unoptimised ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from tcc.frontends import load_model
from tcc.ir.graph import Graph

Array = np.ndarray[Any, np.dtype[Any]]
_HEAD = '<ir_version: 8, opset_import: ["": 17]>'
_TEXTS = {
    "mlp": """m (float[2, 8] x) => (float[2, 3] y)
      { a = Gemm (x, w1, b1)  r = Relu (a)  l = Gemm (r, w2, b2)  y = Softmax (l) }""",
    "conv": """m (float[1, 3, 9, 9] x) => (float[1, 5] y) {
      c = Conv <pads = [1, 1, 1, 1]> (x, k1, kb)  r = Relu (c)
      p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
      d = Conv <group = 4> (p, k2)  s = Sigmoid (d)  g = GlobalAveragePool (s)
      f = Flatten (g)  y = MatMul (f, w3) }""",
    "window": """m (float[1, 8, 30, 30] x) => (float[1, 16, 30, 30] y) {
      c = Conv (x, k3)  r = Relu (c)  y = Conv <group = 16, pads = [1, 1, 1, 1]> (r, k4) }""",
    "attention": """m (float[2, 6, 8] q, float[2, 6, 8] k, float[2, 6, 8] v, bool[6, 6] keep)
      => (float[2, 6, 8] y, int64[2, 6] best) {
      t = Transpose <perm = [0, 2, 1]> (k)  s = MatMul (q, t)  m = Where (keep, s, low)
      p = Softmax (m)  o = MatMul (p, v)  e = Erf (o)  y = Mul (o, e)
      best = ArgMax <axis = 2, keepdims = 0> (p) }""",
    "lstm": """m (float[5, 2, 3] x) => (float[5, 1, 2, 4] y, float[1, 2, 4] last)
      { y, last = LSTM <hidden_size = 4> (x, lw, lr) }""",
    "quantised": """m (float[2, 8] x) => (float[2, 4] y) {
      q = QuantizeLinear (x, scale, zero)  d = DequantizeLinear (q, scale, zero)
      e = DequantizeLinear (w8, scale)  m = MatMul (d, e)  y = Tanh (m) }""",
    "top": """m (float[3, 7] x) => (float[3, 2] y, int64[3, 2] at) { y, at = TopK (x, two) }""",
}


def _weights() -> dict[str, Array]:
    rng = np.random.default_rng(7)

    def draw(*shape: int) -> Array:
        return (rng.standard_normal(shape) / 2).astype(np.float32)

    return {
        "w1": draw(8, 6), "b1": draw(6), "w2": draw(6, 3), "b2": draw(3), "k1": draw(4, 3, 3, 3),
        "kb": draw(4), "k2": draw(8, 1, 2, 2), "w3": draw(8, 5), "low": np.float32(-1e9),
        "lw": draw(1, 16, 3), "lr": draw(1, 16, 4), "scale": np.float32(0.03),
        "zero": np.uint8(117), "w8": rng.integers(-99, 99, (8, 4)).astype(np.int8),
        "two": np.array([2], np.int64), "k3": draw(16, 8, 1, 1), "k4": draw(16, 1, 3, 3),
    }  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A model with its inputs and ONNX Runtime's outputs."""

    proto: onnx.ModelProto
    graph: Graph
    feeds: Mapping[str, Array]
    expected: Mapping[str, Array]


NAMES = tuple(_TEXTS)


def model(name: str) -> Model:
    proto = onnx.parser.parse_model(_HEAD + _TEXTS[name])
    operands = {operand for node in proto.graph.node for operand in node.input}
    weights = {n: a for n, a in _weights().items() if n in operands}
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    rng = np.random.default_rng(3)
    graph = load_model(proto)
    feeds = {}
    for value in graph.inputs:
        shape = value.type.static_shape or ()
        drawn = rng.standard_normal(shape).astype(np.float32)
        feeds[value.name] = drawn > -0.5 if value.type.dtype.name == "bool" else drawn
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    names = [value.name for value in graph.outputs]
    return Model(proto, graph, feeds, dict(zip(names, session.run(names, feeds), strict=True)))


def check(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Fails unless floats lie within 1e-5 of the largest output and all else is equal."""
    assert found.keys() == expected.keys()
    for name, reference in expected.items():
        assert found[name].shape == reference.shape
        if reference.dtype.kind == "f":
            most = max(1.0, float(np.abs(reference).max()))
            np.testing.assert_allclose(found[name], reference, rtol=0, atol=1e-5 * most)
        else:
            np.testing.assert_array_equal(found[name], reference)
