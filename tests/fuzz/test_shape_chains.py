"""Models of chained shape operators agree with ONNX Runtime.

`scripts/fuzz --kind chains` runs more models, with a limit on compile time.
"""

from __future__ import annotations

import pytest
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.lib.fuzz.chain_check import chain_failures, differences
from tests.lib.fuzz.shape_chains import generate
from tests.part import part


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_chains_mean_the_same_as_in_onnx_runtime(first: int) -> None:
    for seed in range(first, first + 5):
        case = generate(seed)
        graph = load_model(case.model)
        faults = differences(case, lambda feeds, graph=graph: evaluate_graph(graph, feeds))
        assert not list(faults), seed


@pytest.mark.parametrize("seed", part("chains", [0, 3, 7, 12, 16, 17], 2))
def test_compiled_chains_do_too(seed: int) -> None:
    assert not list(chain_failures(generate(seed, 100)))
