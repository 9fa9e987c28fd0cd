"""com.microsoft's packed weights against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.evaluate import evaluate_graph


def matmul_n_bits(
    depth: int, rows: int, block: int, bits: int = 4, points: bool = True, missing: int = 0
) -> onnx.ModelProto:
    """Random weights; `missing` bytes of them are left out."""
    rng = np.random.default_rng(depth + rows)
    blocks = -(-depth // block)
    data = rng.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, rows * blocks).astype(np.float32)
    zeros = rng.integers(0, 256, rows * -(-blocks * bits // 8)).astype(np.uint8)
    constants = [("b", data.reshape(-1)[: data.size - missing]), ("s", scales), ("z", zeros)]
    if not missing:
        constants[0] = ("b", data)
    names = [name for name, _ in constants][: 2 + points]
    node = helper.make_node(
        "MatMulNBits", ["x", *names], ["y"], domain="com.microsoft",
        K=depth, N=rows, bits=bits, block_size=block,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "packed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, rows])],
        [numpy_helper.from_array(a, n) for n, a in constants if n in names],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ("depth", "rows", "block", "bits", "points"),
    [(96, 40, 32, 4, True), (100, 7, 32, 4, True), (64, 5, 16, 4, False), (64, 9, 32, 8, True)],
)
def test_packed_weights(depth: int, rows: int, block: int, bits: int, points: bool) -> None:
    model = matmul_n_bits(depth, rows, block, bits, points)
    x = np.random.default_rng(1).standard_normal((3, depth)).astype(np.float32)
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = evaluate_graph(load_model(model), {"x": x})["y"]
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_too_few_bytes_are_refused() -> None:
    with pytest.raises(UserError, match=r"B has 76\d bytes"):
        load_model(matmul_n_bits(96, 16, 32, missing=1))
