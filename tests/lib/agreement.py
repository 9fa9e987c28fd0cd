"""Compares compiled models with unoptimised ONNX Runtime, the oracle of the e2e tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper
from tcc.runtime.compare import compare

Array = np.ndarray[Any, np.dtype[Any]]

FLOAT, INT64, INT32, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.BOOL,
)


def session(model: str | Path | onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def assert_agree(
    got: Mapping[str, Array], want: Mapping[str, Array], tolerance: float = 1e-4
) -> None:
    """Fails unless integers are equal and floats lie within `tolerance` of the largest expected
    value."""
    assert list(got) == list(want)
    wrong = [d for name in want if not (d := compare(name, got[name], want[name], tolerance)).ok]
    assert not wrong


def expected(runner: ort.InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    names = [output.name for output in runner.get_outputs()]
    return dict(zip(names, runner.run(names, dict(feeds)), strict=True))


def value(name: str, element: int = FLOAT, shape: Sequence[int | str | None] | None = ()) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: Mapping[str, Array] | None = None,
    *,
    opset: int = 21,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Returns a checked model. `constants` become initialisers; `domains` are additional
    domains."""
    initial = [onnx.numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "test", list(inputs), list(outputs), initial)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    onnx.checker.check_model(model)
    return model
