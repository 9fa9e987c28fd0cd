"""A few seeds of models with symbolic sizes: taken and refused as ONNX Runtime does, and equal."""

from __future__ import annotations

import pytest
import tcc
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.passes.graph.settle_sizes import settle_sizes

from .open_judge import differences
from .open_sizes import generate


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
