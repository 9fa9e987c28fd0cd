"""Unoptimised ONNX Runtime as the oracle for the importer and the graph evaluator together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import parser
from tcc.frontends import load_model
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph

Arrays = Mapping[str, Any]


def model_of(text: str, opset: int = 17, functions: str = "") -> onnx.ModelProto:
    """Returns a model from ONNX's text."""
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "local" : 1]>'
    return parser.parse_model(f"{header}\n{text}\n{functions}")


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options)


def expected(model: onnx.ModelProto | ort.InferenceSession, inputs: Arrays) -> dict[str, Any]:
    """Returns ONNX Runtime's results for a model or in the model's open session."""
    session = session_of(model) if isinstance(model, onnx.ModelProto) else model
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def check(
    model: onnx.ModelProto | ort.InferenceSession,
    inputs: Arrays,
    *,
    tolerance: float = 1e-5,
    graph: Graph | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> Graph:
    """Fails unless the imported graph gives ONNX Runtime's results; returns the graph.

    With a session, the caller must pass the graph.
    """
    if graph is None:
        assert isinstance(model, onnx.ModelProto)
        graph = load_model(model, shapes)
    reference = expected(model, inputs)
    outputs = evaluate_graph(graph, inputs)
    assert list(outputs) == list(reference)
    for name, array in reference.items():
        assert outputs[name].dtype == array.dtype, name
        assert outputs[name].shape == array.shape, name
        scale = float(np.abs(array).max()) if array.size and array.dtype.kind == "f" else 1.0
        np.testing.assert_allclose(
            outputs[name], array, rtol=0, atol=tolerance * scale, err_msg=name
        )
    return graph


def op_names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]
