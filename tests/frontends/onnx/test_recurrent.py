"""LSTM, GRU and RNN agree with ONNX Runtime for all their attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tcc.errors import UserError
from tcc.frontends import load_model

from tests.lib.import_oracle import check

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_TIME, _BATCH, _INPUT, _HIDDEN = 5, 3, 4, 2


def model_of_layer(op: str, attributes: dict[str, Any], optional: set[str], symbolic: bool) -> Any:
    """Returns a one-node model with constant weights; `optional` names the optional inputs."""
    rng = np.random.default_rng(11)
    gates = _GATES[op]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1

    def weight(*shape: int) -> Any:
        return (0.5 * rng.standard_normal(shape)).astype(np.float32)

    arrays = {
        "W": weight(directions, gates * _HIDDEN, _INPUT),
        "R": weight(directions, gates * _HIDDEN, _HIDDEN),
        "B": weight(directions, 2 * gates * _HIDDEN),
        "P": weight(directions, 3 * _HIDDEN),
    }
    batch_first = attributes.get("layout", 0)
    states = (_BATCH, directions, _HIDDEN) if batch_first else (directions, _BATCH, _HIDDEN)
    feeds = {
        "X": weight(*((_BATCH, _TIME) if batch_first else (_TIME, _BATCH)), _INPUT),
        "lengths": np.array([5, 1, 3], np.int32),
        "h": weight(*states),
        "c": weight(*states),
    }
    order = ["X", "W", "R", "B", "lengths", "h", *(["c", "P"] if op == "LSTM" else [])]
    inputs = [n if n in {"X", "W", "R"} | optional else "" for n in order]
    outputs = ["Y", "Y_h", *(["Y_c"] if op == "LSTM" else [])]
    node = helper.make_node(op, inputs, outputs, hidden_size=_HIDDEN, **attributes)
    names = [n for n in inputs if n in feeds]
    types = {"lengths": TensorProto.INT32}
    infos = [
        helper.make_tensor_value_info(
            n,
            types.get(n, TensorProto.FLOAT),
            [f"{n}{axis}" for axis in range(feeds[n].ndim)]
            if symbolic and n == "X"
            else feeds[n].shape,
        )
        for n in names
    ]
    if symbolic:
        infos[0].type.tensor_type.shape.dim[2].dim_value = _INPUT
    graph = helper.make_graph(
        [node],
        "g",
        infos,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in arrays.items() if n in inputs],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8), {
        n: feeds[n] for n in names
    }


_CASES = {
    "plain": ({}, set()),
    "bias": ({}, {"B"}),
    "states": ({}, {"B", "h", "c"}),
    "reverse": ({"direction": "reverse"}, {"B", "h"}),
    "bidirectional": ({"direction": "bidirectional"}, {"B", "h", "c"}),
    "lengths": ({}, {"B", "lengths", "h"}),
    "reverse_lengths": ({"direction": "reverse"}, {"lengths"}),
    "clip": ({"clip": 0.3}, {"B"}),
}


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("case", _CASES)
def test_recurrent_layers(op: str, case: str) -> None:
    attributes, optional = _CASES[case]
    model, feeds = model_of_layer(op, dict(attributes), optional, symbolic=False)
    check(model, feeds)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_time_and_batch_may_be_symbols(op: str) -> None:
    model, feeds = model_of_layer(op, {"direction": "bidirectional"}, {"B"}, symbolic=True)
    graph = check(model, feeds)
    assert graph.outputs[0].type.static_shape is None


@pytest.mark.parametrize(
    ("op", "attributes", "optional"),
    [
        ("LSTM", {}, {"B", "P"}),
        ("LSTM", {"input_forget": 1}, {"B"}),
        ("LSTM", {"activations": ["HardSigmoid", "Relu", "Softsign"]}, {"B"}),
        ("GRU", {"linear_before_reset": 1}, {"B"}),
        ("GRU", {"linear_before_reset": 1, "direction": "reverse"}, set()),
        ("GRU", {"activations": ["Sigmoid", "Softplus"]}, {"B"}),
        ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.2]}, {"B"}),
        (
            "RNN",
            {"activations": ["Affine"], "activation_alpha": [0.7], "activation_beta": [0.1]},
            {"B"},
        ),
    ],
)
def test_variants(op: str, attributes: dict[str, Any], optional: set[str]) -> None:
    model, feeds = model_of_layer(op, attributes, optional, symbolic=False)
    check(model, feeds)


@pytest.mark.parametrize(("name", "cut"), [("B", np.s_[:, :8]), ("P", np.s_[0]), ("W", np.s_[:0])])
def test_operands_that_are_too_small(name: str, cut: Any) -> None:
    model, _ = model_of_layer("LSTM", {}, {"B", "P"}, False)
    (weight,) = (t for t in model.graph.initializer if t.name == name)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight)[cut], name))
    with pytest.raises(UserError):
        load_model(model)
