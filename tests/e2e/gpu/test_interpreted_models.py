"""Whole models, each kernel by its Triton text in Triton's interpreter, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from tcc.backends.gpu.backend import GpuBackend
from tcc.debug import Trace
from tcc.driver import resolve_targets
from tcc.frontends import load_model
from tcc.options import read_options
from tcc.passes.pipeline import run_pipeline

from tests.backends.gpu.running import NEEDS_TRITON, Job, interpreter
from tests.e2e.agreement import Array, assert_agree, expected, session
from tests.oracle.program.evaluate import evaluate_program

from .architectures import bert, inputs_of, resnet
from .test_block_models import weights_of

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("interpreter")]
MODELS = {"bert": bert(1, 19, 64, 2), "resnet": resnet(1, 22, 16)}
# Schedules differ between the vendors' devices, texts do not.
TARGETS = {"f32": "cuda:sm_90", "bf16": "rocm:gfx942"}
TOLERANCES = {"f32": 1e-4, "bf16": 2e-2}


@pytest.mark.parametrize("precision", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_model_agrees(name: str, precision: str) -> None:
    options = read_options({"target": TARGETS[precision], "precision": precision})
    graph = run_pipeline(load_model(MODELS[name], {}), options.level, Trace(None, None))
    made = GpuBackend(resolve_targets(options)[0], options).lower(graph, Trace())
    ran: dict[int, None] = {}

    def run(number: int, arrays: Sequence[Array], sizes: Mapping[str, int]) -> None:
        ran[number] = None
        dot = "ieee" if precision == "f32" else precision
        results = interpreter().run(Job(made.kernels[number], arrays, sizes), dot)
        for array, result in zip(arrays, results, strict=True):
            if array.flags.writeable:
                array[...] = result

    feeds = inputs_of(MODELS[name])
    given = [feeds[value.name] for value in graph.inputs]
    results = evaluate_program(made.program, made.kernels, given, weights_of(made), run=run)
    assert len(ran) == len(made.kernels), "every kernel has its turn"
    got = {v.name: np.asarray(a) for v, a in zip(graph.outputs, results, strict=True)}
    assert_agree(got, expected(session(MODELS[name]), feeds), TOLERANCES[precision])
