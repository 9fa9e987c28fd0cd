"""DynamicQuantizeLSTM agrees with ONNX Runtime, also in layers that its quantiser wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.frontends.onnx.test_recurrent import model_of_layer
from tests.lib.import_oracle import expected

_TIME, _BATCH, _INPUT, _HIDDEN = 5, 3, 4, 2


def _layer(
    attributes: dict[str, Any],
    optional_inputs: str,
    *,
    kind: Any = np.uint8,
    channels: bool = False,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Returns a one-node model with constant weights, and its feeds.

    `optional_inputs` has a letter for each optional operand that the node has.
    """
    rng = np.random.default_rng(3)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    columns = 4 * _HIDDEN
    least = np.iinfo(kind).min

    def real(*shape: int) -> np.ndarray:
        return (0.5 * rng.standard_normal(shape)).astype(np.float32)

    def levels(rows: int) -> np.ndarray:
        # Without VNNI, ONNX Runtime's pair sums of signed bytes saturate beyond 7 bits.
        first, last = (-64, 64) if kind is np.int8 else (0, 256)
        return rng.integers(first, last, (directions, rows, columns)).astype(kind)

    scale = (directions, columns) if channels else (directions,)

    def zeros() -> np.ndarray:
        zero_points = rng.integers(least + 100, least + 156, scale).astype(kind)
        return (
            np.zeros_like(zero_points) if channels else zero_points
        )  # ONNX Runtime accepts only zeros here

    arrays = {
        "W": levels(_INPUT), "R": levels(_HIDDEN), "B": real(directions, 2 * columns),
        "P": real(directions, 3 * _HIDDEN),
        "Ws": rng.uniform(0.002, 0.006, scale).astype(np.float32), "Wz": zeros(),
        "Rs": rng.uniform(0.002, 0.006, scale).astype(np.float32), "Rz": zeros(),
    }  # fmt: skip
    feeds = {
        "X": real(_TIME, _BATCH, _INPUT),
        "L": np.array([5, 1, 3], np.int32),
        "h": real(directions, _BATCH, _HIDDEN),
        "c": real(directions, _BATCH, _HIDDEN),
    }
    order = ["X", "W", "R", "B", "L", "h", "c", "P", "Ws", "Wz", "Rs", "Rz"]
    names = [n if n not in "BLhcP" or n in optional_inputs else "" for n in order]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["Y", "Yh", "Yc"],
        domain="com.microsoft", hidden_size=_HIDDEN, **attributes,
    )  # fmt: skip
    feeds = {name: array for name, array in feeds.items() if name in names}
    graph = helper.make_graph(
        [node],
        "layer",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feeds.items()
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("Y", "Yh", "Yc")],
        [numpy_helper.from_array(a, n) for n, a in arrays.items() if n in names],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, ""),
    "bias": ({}, "B"),
    "states": ({}, "Bhc"),
    "reverse": ({"direction": "reverse"}, "Bh"),
    "both": ({"direction": "bidirectional"}, "Bhc"),
    "lengths": ({}, "BLh"),
    "lengths_back": ({"direction": "reverse"}, "L"),
    "lengths_both": ({"direction": "bidirectional"}, "BLhc"),
    "peepholes": ({}, "BP"),
    "clip": ({"clip": 0.3}, "B"),
    "coupled": ({"input_forget": 1}, "B"),
    "activations": ({"activations": ["HardSigmoid", "Relu", "Softsign"]}, "B"),
}


@pytest.mark.parametrize("channels", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("case", _CASES)
def test_quantised_layers(case: str, channels: bool) -> None:
    kind = np.int8 if channels else np.uint8
    model, feeds = _layer(*_CASES[case], kind=kind, channels=channels)
    reference = expected(model, feeds)
    outputs = evaluate_graph(load_model(model), feeds)
    # In backward direction, ONNX Runtime starts all sequences at once, but tcc starts each at its
    # own end. Therefore states of other rows share a range and a scale.
    atol = 1e-3 if case in ("lengths_back", "lengths_both") else 2e-6
    for name, array in reference.items():
        np.testing.assert_allclose(outputs[name], array, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("channels", [False, True], ids=["tensor", "channel"])
def test_layers_of_the_quantiser(tmp_path: Path, direction: str, channels: bool) -> None:
    """The test quantises a float layer by `quantize_dynamic` and compiles it."""
    source, feeds = model_of_layer("LSTM", {"direction": direction}, {"B", "h", "c"}, True)
    onnx.save(source, tmp_path / "float.onnx")
    quantize_dynamic(
        tmp_path / "float.onnx", tmp_path / "bytes.onnx",
        per_channel=channels, reduce_range=True, weight_type=QuantType.QInt8,
    )  # fmt: skip
    model = onnx.load(tmp_path / "bytes.onnx")
    assert "DynamicQuantizeLSTM" in [node.op_type for node in model.graph.node]
    reference = expected(model, feeds)
    outputs = tcc.compile(tmp_path / "bytes.onnx").run(feeds)
    for name, array in reference.items():
        np.testing.assert_allclose(outputs[name], array, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["W", "Ws", "Rz"])
def test_operands_that_do_not_fit(name: str) -> None:
    model, _ = _layer({}, "B")
    (initializer,) = (t for t in model.graph.initializer if t.name == name)
    initializer.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(initializer)[:0], name))
    with pytest.raises(UserError):
        load_model(model)
