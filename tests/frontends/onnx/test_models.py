"""The sample models beside the repository, imported with symbolic sizes, agree with ONNX
Runtime."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph

from tests.lib.import_oracle import check, op_names, session_of

# The tests of one process share imported models and sessions.
pytestmark = pytest.mark.xdist_group("sample-imports")
_MODELS = Path(__file__).resolve().parents[4] / "shared" / "models"


def _model(name: str) -> onnx.ModelProto:
    path = _MODELS / name
    if not path.exists():
        pytest.skip(f"{path.name} is not beside the repository")
    return onnx.load(path)


@cache
def _imported(name: str) -> tuple[Graph, onnxruntime.InferenceSession]:
    """Returns the graph with symbolic sizes, and ONNX Runtime's session of the same model."""
    model = _model(name)
    return load_model(model), session_of(model)


@pytest.mark.parametrize(
    ("batch", "length", "rate"), [(1, 512, 16000), (3, 576, 16000), (2, 700, 16000), (1, 300, 8000)]
)
def test_silero_vad(batch: int, length: int, rate: int) -> None:
    graph, session = _imported("silero_vad.onnx")
    rng = np.random.default_rng(3)
    inputs = {
        "input": (0.1 * rng.standard_normal((batch, length))).astype(np.float32),
        "state": (0.1 * rng.standard_normal((2, batch, 128))).astype(np.float32),
        "sr": np.array(rate),
    }
    check(session, inputs, tolerance=2e-5, graph=graph)
    assert op_names(graph) == ["equal", "if"]
    assert [v.type.static_shape for v in graph.inputs[:2]] == [None, None]


def test_silero_vad_refuses_lengths_that_onnx_runtime_refuses() -> None:
    graph, _ = _imported("silero_vad.onnx")
    inputs = {
        "input": np.zeros((1, 1024), np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000),
    }
    with pytest.raises(UserError, match="a size is 2 where the model needs 1"):
        evaluate_graph(graph, inputs)


@pytest.mark.parametrize("batch", [1, 3])
def test_magika(batch: int) -> None:
    data = np.random.default_rng(5).integers(0, 256, (batch, 2048)).astype(np.int32)
    graph, session = _imported("magika_v3_3.onnx")
    check(session, {"bytes": data}, graph=graph)
    assert graph.inputs[0].type.shape[0] is graph.outputs[0].type.shape[0]


def test_yolox_specialises_nothing_it_need_not() -> None:
    graph = load_model(_model("yolox_nano.onnx"))
    assert graph.outputs[0].type.static_shape == (1, 3549, 85)
    assert "cast" not in op_names(graph)
