"""A few seeds of models with symbolic sizes are accepted and refused as in ONNX Runtime, with equal
results."""

from __future__ import annotations

import numpy as np
import pytest
import tcc
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.passes.graph.settle_sizes import settle_sizes

from tests.lib.fuzz import open_layers
from tests.lib.fuzz.open_compiled import check
from tests.lib.fuzz.open_judge import differences
from tests.lib.fuzz.open_sizes import Arrays, generate
from tests.part import part


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


@pytest.mark.parametrize("first", part("models of layers", range(0, 20, 5), 2))
def test_layers_with_open_sizes_are_as_in_onnx_runtime(first: int) -> None:
    """Most of the models are derived and fused, and a few are not."""
    assert check([first], ["O0"]) == []
    assert check(range(first + 1, first + 5), ["O3"]) == []


def test_a_run_with_other_results_is_detected() -> None:
    case = open_layers.generate(2)
    right = tcc.compile(case.model, jobs=1).run

    def wrong(feeds: Arrays) -> Arrays:
        outputs = dict(right(feeds))
        name = next(reversed(outputs))
        return {**outputs, name: outputs[name] * np.float32(1.01)}

    def lenient(feeds: Arrays) -> Arrays:
        try:
            return right(feeds)
        except UserError:
            return right(case.feeds(case.runs[0]))

    assert not differences(case, right, 1e-4)
    assert len(differences(case, wrong, 1e-4)) >= 2
    assert any("taken" in what for what in differences(case, lenient, 1e-4))
