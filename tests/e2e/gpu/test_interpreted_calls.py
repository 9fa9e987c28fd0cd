"""Triton kernels, in Triton's interpreter, compute what host functions compute on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from onnx import parser
from tcc.backends.gpu.backend import GpuBackend
from tcc.debug import Trace
from tcc.frontends import load_model
from tcc.options import read_options
from tcc.passes.pipeline import run_pipeline
from tcc.variants import resolve_targets

from tests.draws import RNG, seeded
from tests.lib.agreement import Array, assert_agree, expected, session
from tests.lib.interpreter.running import NEEDS_TRITON, Job, interpreter
from tests.lib.oracle.program.evaluate import evaluate_program

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("interpreter")]
with seeded("test_interpreted_calls: cases"):
    X = RNG.standard_normal((3, 70)).astype(np.float32)
    AT = RNG.integers(-3, 3, (4, 70))
    CASES: dict[str, tuple[str, dict[str, Array]]] = {
        "best": (
            "(float[3,70] x) => (float[3,20] v, int64[3,20] i) {"
            "k = Constant<value_ints=[20]>() v, i = TopK<axis=-1>(x, k) }",
            {"x": X},
        ),
        "running": (
            "(float[3,70] x) => (float[3,70] y) {"
            "a = Constant<value_ints=[1]>() y = CumSum<exclusive=1, reverse=1>(x, a) }",
            {"x": X},
        ),
        "added": (
            "(float[3,70] x, int64[4,70] i, float[4,70] u) => (float[3,70] y) {"
            'y = ScatterElements<axis=0, reduction="add">(x, i, u) }',
            {"x": X, "i": AT, "u": RNG.standard_normal((4, 70)).astype(np.float32)},
        ),
        "added in order": (
            "(float[40,3] x, int64[90,1] i, float[90,3] u) => (float[40,3] y) {"
            'y = ScatterND<reduction="add">(x, i, u) }',
            {
                "x": X[:2, :60].reshape(40, 3).copy(),
                "i": (RNG.random((90, 1)) ** 4 * 80 - 40).astype(np.int64),
                "u": RNG.standard_normal((90, 3)).astype(np.float32),
            },
        ),
        "put": (
            "(float16[5,7] x, int64[3,1] i, float16[3,7] u) => (float16[5,7] y) {"
            "y = ScatterND(x, i, u) }",
            {
                "x": X[0, :35].reshape(5, 7).astype(np.float16),
                "i": np.array([[4], [-4], [4]]),
                "u": X[1, :21].reshape(3, 7).astype(np.float16),
            },
        ),
        "found": ("(float[3,70] x) => (int64[2,n] y) { y = NonZero(x) }", {"x": np.maximum(X, 0)}),
        "kept": (
            "(float[3,70] x, bool[70] c) => (float[3,n] y) { y = Compress<axis=1>(x, c) }",
            {"x": X, "c": X[1] > 0.5},
        ),
    }


@pytest.mark.parametrize("name", CASES)
def test_agrees(name: str) -> None:
    body, feeds = CASES[name]
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> g {body}')
    options = read_options({"target": "cuda:sm_90"})
    code = GpuBackend(resolve_targets(options)[0], options)
    graph = run_pipeline(load_model(model, {}), options.level, Trace(), settings=code.settings)
    code.check(graph)
    lowering = code.lower(graph, Trace())

    def run(number: int, arrays: Sequence[Array], sizes: Mapping[str, int]) -> None:
        results = interpreter().run(Job(lowering.kernels[number], arrays, sizes), "ieee")
        for array, result in zip(arrays, results, strict=True):
            if array.flags.writeable:
                array[...] = result

    values = [feeds[value.name] for value in graph.inputs]
    section = np.zeros(0, np.uint8)
    results = evaluate_program(lowering.program, lowering.kernels, values, section, run=run)
    outputs = {v.name: np.asarray(a) for v, a in zip(graph.outputs, results, strict=True)}
    assert_agree(outputs, expected(session(model), feeds), 1e-5)
