"""Models with fixed sizes run with other batches; ONNX Runtime runs the original model on each
part."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from tcc.errors import UserError

HEAD = '<ir_version: 9, opset_import: ["": 17]>'
# Models with independent samples. A fixed target shape hides the batch of the first model.
INDEPENDENT = {
    "fixed reshape": """m (float[1, 4, 6] x) => (float[1, 24] y)
        <int64[2] s = {1, 24}> { a = Relu(x)  y = Reshape(a, s) }""",
    "samples move to another axis": """m (float[1, 4, 6] x) => (float[4, 1, 6] y)
        { a = Transpose <perm = [1, 0, 2]> (x)  y = Softmax <axis = 2> (a) }""",
    "a batch within an axis": """m (float[1, 4, 6] x) => (float[1, 2, 12] y)
        <int64[2] s = {4, 6}, int64[3] t = {1, 2, 12}, float[6] w = {1, 2, 3, 4, 5, 6}>
        { a = Reshape(x, s)  b = Mul(a, w)  y = Reshape(b, t) }""",
    "two samples": """m (float[2, 3] x, float[3] w) => (float[2, 3] y, float[3] z)
        { y = Mul(x, w)  z = Neg(w) }""",
    "the number of samples": """m (float[1, 3] x) => (float[1, 3] y)
        { s = Shape(x)  f = Cast <to = 1> (s)  g = ReduceSum(f)  y = Mul(x, g) }""",
}
MIXING = {
    "a mean": "m (float[1, 3] x) => (float[1, 3] y) { y = ReduceMean <axes = [0]> (x) }",
    "a softmax": "m (float[1, 3] x) => (float[1, 3] y) { y = Softmax <axis = 0> (x) }",
    "a flip": """m (float[2, 3] x) => (float[2, 3] y)
        <int64[1] a = {1}, int64[1] b = {-9}, int64[1] c = {0}, int64[1] d = {-1}>
        { y = Slice(x, a, b, c, d) }""",
    "features": """m (float[1, 3] x) => (float[3] y) <int64[1] s = {3}>
        { a = Reshape(x, s)  y = Softmax <axis = 0> (a) }""",
    "a matmul": """m (float[1, 3] x) => (float[3, 3] y)
        { a = Transpose(x)  y = MatMul(a, x) }""",
}


def inputs_of(model: onnx.ModelProto, times: int) -> dict[str, Any]:
    """Returns random inputs, with `times` as many elements along the first axis if it is the batch
    axis."""
    rng = np.random.default_rng(0)
    arrays = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        shape[0] *= times if shape[0] == samples_of(model) else 1
        arrays[value.name] = rng.standard_normal(shape).astype(np.float32)
    return arrays


def samples_of(model: onnx.ModelProto) -> int:
    """Returns the batch of a model: the first size of its first input."""
    return model.graph.input[0].type.tensor_type.shape.dim[0].dim_value


@pytest.mark.parametrize("name", INDEPENDENT)
def test_each_block_of_a_batch_equals_the_result_of_the_model(name: str) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = onnx.parser.parse_model(f"{HEAD} {INDEPENDENT[name]}")
    session = runtime.InferenceSession(model.SerializeToString())
    samples = samples_of(model)
    arrays = inputs_of(model, 3)
    results = tcc.compile(model, batch=3 * samples).run(arrays)
    for part in range(3):
        rows = slice(part * samples, (part + 1) * samples)
        inputs = {
            n: a[rows] if len(a) == 3 * samples and a.ndim > 1 else a for n, a in arrays.items()
        }
        for output, exact in zip(model.graph.output, session.run(None, inputs), strict=True):
            value = results[output.name]
            axes = [n for n in range(exact.ndim) if value.shape[n] != exact.shape[n]]
            for axis in axes:  # at most one
                value = np.split(value, 3, axis)[part]
            np.testing.assert_allclose(value, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MIXING)
def test_a_node_that_mixes_samples_is_named(name: str) -> None:
    model = onnx.parser.parse_model(f"{HEAD} {MIXING[name]}")
    model.graph.node[-1].name = "the last"
    with pytest.raises(UserError, match="batch of the model cannot be changed") as caught:
        tcc.compile(model, batch=4)
    assert "the last" in caught.value.where


def test_batches_that_do_not_fit_are_refused() -> None:
    symbolic = onnx.parser.parse_model(
        f"{HEAD} m (float[n, 3] x) => (float[n, 3] y) {{ y = Neg(x) }}"
    )
    with pytest.raises(UserError, match="no fixed batch"):
        tcc.compile(symbolic, batch=4)
    two = onnx.parser.parse_model(f"{HEAD} {INDEPENDENT['two samples']}")
    with pytest.raises(UserError, match="no multiple"):
        tcc.compile(two, batch=3)
    assert tcc.compile(two, batch=2).inputs[0].shape == (2, 3)
    with pytest.raises(UserError, match="bad option"):
        tcc.compile(two, batch=0)
