"""Results by ONNX's backend interface agree with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.backend.base import Backend
from tcc import onnx_backend
from tcc.errors import UserError


def model(op: str = "Mul") -> helper.ModelProto:
    info = helper.make_tensor_value_info
    x, y = info("x", TensorProto.FLOAT, [3]), info("y", TensorProto.FLOAT, [3])
    node = helper.make_node(op, ["x", "w"], ["y"])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])
    graph = helper.make_graph([node], "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_prepare_and_run_by_order_and_by_name() -> None:
    assert issubclass(onnx_backend.TccBackend, Backend)
    prepared = onnx_backend.prepare(model(), "CPU", level=1)
    x = np.float32([4, 5, 6])
    for inputs in ([x], x, {"x": x}):
        (y,) = prepared.run(inputs)
        np.testing.assert_array_equal(y, np.float32([4, 10, 18]))
    with pytest.raises(UserError, match="missing"):
        prepared.run([])
    with pytest.raises(UserError, match="takes 1 inputs, got 2"):
        prepared.run([x, x])


def test_run_node_takes_types_from_the_arrays() -> None:
    node = helper.make_node("Concat", ["a", "b"], ["c"], axis=1)
    a, b = np.ones((2, 1), np.int64), np.zeros((2, 2), np.int64)
    (c,) = onnx_backend.run_node(node, [a, b], opset_version=13)
    np.testing.assert_array_equal(c, [[1, 0, 0], [1, 0, 0]])


def test_run_node_by_name_with_repeated_inputs_and_aliased_domain() -> None:
    x = np.float32([4, 5, 6])
    node = helper.make_node("Mul", ["a", "a"], ["c"])
    for inputs in ([x], [x, x], {"a": x}):
        np.testing.assert_array_equal(onnx_backend.run_node(node, inputs)[0], x * x)
    node = helper.make_node("HardSwish", ["a"], ["c"], domain="ai.onnx")
    np.testing.assert_array_equal(onnx_backend.run_node(node, [x])[0], x)
    with pytest.raises(UserError, match="takes 1 inputs"):
        onnx_backend.run_node(node, [x, x])


def test_unknown_devices_and_bad_models_are_refused() -> None:
    assert onnx_backend.supports_device("CPU")
    assert onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA")
    with pytest.raises(UserError, match="no device"):
        onnx_backend.prepare(model(), "CUDA")
    assert onnx_backend.is_compatible(model())
    assert not onnx_backend.is_compatible(model("Sparkle"))
