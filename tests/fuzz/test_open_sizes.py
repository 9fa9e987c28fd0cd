"""A few seeds of models with symbolic sizes: taken and refused as ONNX Runtime does, and equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import tcc
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.passes.graph.settle_sizes import settle_sizes

from .open_sizes import Arrays, OpenModel, generate

Run = Callable[[Mapping[str, Any]], Arrays]


def _session(case: OpenModel) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(case.model.SerializeToString(), options)


def differences(case: OpenModel, run: Run) -> list[str]:
    """The runs in which `run` does otherwise than ONNX Runtime."""
    session, wrong = _session(case), []
    for sizes in case.runs:
        feeds = case.feeds(sizes)
        try:
            wanted = session.run(None, feeds)
        except Exception:  # of several classes, which say nothing
            wanted = None
        try:
            found = list(run(feeds).values())
        except UserError:
            found = None
        if (found is None) != (wanted is None):
            wrong.append(f"{sizes}: {'taken' if wanted is None else 'refused'}")
        elif found and wanted:
            pairs = zip(found, wanted, strict=True)
            wrong += [f"{sizes}: {a.shape}" for a, b in pairs if not np.array_equal(a, b)]
    return wrong


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_open_sizes_broadcast_as_in_onnx_runtime(first: int) -> None:
    for seed in range(first, first + 10):
        case = generate(seed)
        graph = settle_sizes(load_model(case.model))
        assert not differences(case, lambda f, graph=graph: evaluate_graph(graph, f)), seed


@pytest.mark.parametrize("seed", [7, 81, 185])
def test_compiled_code_does_too(seed: int) -> None:
    case = generate(seed)
    assert not differences(case, tcc.compile(case.model, jobs=1).run)
