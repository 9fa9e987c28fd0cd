"""Half-precision attention is one kernel that streams over the keys, so scores never reach
memory."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from tcc.backends.gpu.backend import GpuBackend
from tcc.debug import Trace
from tcc.frontends import load_model
from tcc.ir.graph import Graph
from tcc.ir.index import as_int
from tcc.options import read_options
from tcc.passes.pipeline import run_pipeline
from tcc.passes.program.lowered import Lowered
from tcc.variants import resolve_targets

from tests.lib.oracle.program.evaluate import evaluate_program

SHAPE = (1, 4, 512, 128)
WHOLE = "y = Attention(q, k, v)"
CAUSAL = "y = Attention<is_causal = 1>(q, k, v)"
WIDENED = """
a = Cast<to = 1>(q) b = Cast<to = 1>(k) c = Cast<to = 1>(v)
o = Attention(a, b, c) y = Cast<to = 16>(o)
"""


def model(dtype: str, body: str) -> onnx.ModelProto:
    x = f"{dtype}[{','.join(map(str, SHAPE))}]"
    text = f"g ({x} q, {x} k, {x} v) => ({x} y) {{ {body} }}"
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]> {text}')


def lowered(dtype: str, body: str, precision: str = "f32") -> tuple[Graph, Lowered]:
    graph = run_pipeline(load_model(model(dtype, body), {}), 2, Trace(None, None))
    options = read_options({"target": "cuda:sm_90", "precision": precision})
    return graph, GpuBackend(resolve_targets(options)[0], options).lower(graph, Trace())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("body", [WHOLE, CAUSAL])
def test_attention_is_one_kernel(dtype: str, body: str) -> None:
    _, lowering = lowered(dtype, body)
    assert len(lowering.kernels) == len(lowering.placed.steps) == 1


def test_attention_of_widened_halves_stores_no_scores() -> None:
    _, lowering = lowered("bfloat16", WIDENED, "bf16")
    made_of = [v for step in lowering.placed.steps if step.kernel for v in step.kernel.results]
    rows = SHAPE[2]
    assert not any(list(map(as_int, v.type.shape[-2:])) == [rows, rows] for v in made_of)


@pytest.mark.parametrize("body", [WHOLE, CAUSAL])
def test_attention_of_halves_agrees(body: str) -> None:
    rng = np.random.default_rng(0)
    q, k, v = arrays = [rng.standard_normal(SHAPE).astype(np.float16) for _ in range(3)]
    _, lowering = lowered("float16", body)
    (output,) = evaluate_program(lowering.program, lowering.kernels, arrays, np.zeros(0, np.uint8))
    scores = np.einsum("bhid,bhjd->bhij", q.astype(float), k.astype(float)) / np.sqrt(SHAPE[-1])
    if body is CAUSAL:
        scores = np.where(np.tri(SHAPE[2], dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bhij,bhje->bhie", powers / powers.sum(-1, keepdims=True), v.astype(float))
    np.testing.assert_allclose(
        output.astype(float), expected, rtol=0, atol=2e-3 * np.abs(expected).max()
    )
