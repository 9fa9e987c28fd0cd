"""Packed weights of com.microsoft agree with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph


def matmul_n_bits(
    depth: int,
    rows: int,
    block: int,
    bits: int = 4,
    points: str = "levels",
    groups: str = "",
    missing: int = 0,
) -> onnx.ModelProto:
    """Returns a MatMulNBits model with random weights, of which the last `missing` bytes are
    absent."""
    rng = np.random.default_rng(depth + rows)
    blocks = -(-depth // block)
    data = rng.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, rows * blocks).astype(np.float32)
    zeros = rng.integers(0, 256, rows * -(-blocks * bits // 8)).astype(np.uint8)
    constants = {"b": data.reshape(-1)[: data.size - missing] if missing else data, "s": scales}
    if points == "levels":
        constants["z"] = zeros
    elif points:
        drawn = rng.uniform(0, 1 << bits, rows * blocks).astype(np.float32)
        constants["z"] = np.floor(drawn) if points == "whole" else drawn
    if groups:
        at = np.arange(depth) // block
        constants["g"] = (rng.permutation(at) if groups == "even" else at // 2).astype(np.int32)
    names = [n if n in constants else "" for n in ("b", "s", "z", "g")]
    node = helper.make_node(
        "MatMulNBits", ["x", *names], ["y"], domain="com.microsoft",
        K=depth, N=rows, bits=bits, block_size=block,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "packed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, rows])],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ("depth", "rows", "block", "bits", "points", "groups"),
    [
        (96, 40, 32, 4, "levels", ""),
        (100, 7, 32, 4, "levels", ""),
        (64, 5, 16, 4, "", ""),
        (64, 9, 32, 8, "levels", ""),
        (100, 7, 32, 4, "real", ""),
        (75, 6, 16, 2, "real", ""),
        (64, 5, 16, 4, "real", "even"),
        (70, 5, 16, 4, "whole", "even"),
        (64, 5, 16, 4, "whole", "uneven"),
        (64, 5, 16, 4, "real", "uneven"),
    ],
)
def test_packed_weights(
    depth: int, rows: int, block: int, bits: int, points: str, groups: str
) -> None:
    model = matmul_n_bits(depth, rows, block, bits, points, groups)
    x = np.random.default_rng(1).standard_normal((3, depth)).astype(np.float32)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    (reference,) = session.run(None, {"x": x})
    output = evaluate_graph(load_model(model), {"x": x})["y"]
    np.testing.assert_allclose(output, reference, rtol=1e-4, atol=1e-4 * np.abs(reference).max())


def test_too_few_bytes_are_refused() -> None:
    with pytest.raises(UserError, match=r"B has 76\d bytes"):
        load_model(matmul_n_bits(96, 16, 32, missing=1))


@pytest.mark.parametrize(
    "groups", [np.full(64, 4, np.int32), np.zeros(64, np.float32)], ids=["none", "real"]
)
def test_groups_that_have_no_scales_are_refused(groups: np.ndarray) -> None:
    model = matmul_n_bits(64, 5, 16, groups="even")
    model.graph.initializer[3].CopyFrom(numpy_helper.from_array(groups, "g"))
    with pytest.raises(UserError, match=r"g_idx does not name one of 4 blocks"):
        load_model(model)
