"""The manifest describes the rounding of weights, and of operands that are multiplied by levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tcc.frontends.onnx.rounded import write_rounded
from tcc.frontends.rounding import Rounding, artifact_rounding, changed_rounding

from tests.passes.quantize.test_level_bytes import close, drawn, rounded_bytes


def manifest(*weights: str, kind: str = "i8") -> dict[str, Any]:
    entry = {"weights": list(weights), "type": kind, "operands": "bf16", "moved": True}
    return {"variants": [{"rounded": [entry]}]}


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_levels_of_the_model_round_the_other_factor_alone(seed: int | None) -> None:
    facts = manifest("B"), 0
    rounding = artifact_rounding(*facts) if seed is None else changed_rounding(*facts, seed)
    assert rounding is not None
    assert (rounding.operand(["B"]), rounding.operand(["C"])) == ("bf16", "")
    array = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_allclose(rounding.weight(["B"], array, 0), array, atol=1e-5)


def test_levels_without_a_name_round_every_factor() -> None:
    rounding = artifact_rounding(manifest(), 0)
    assert rounding is not None
    assert rounding.operand(["C"]) == "bf16"


def test_levels_that_tcc_makes_round_weights_too() -> None:
    rounding = artifact_rounding(manifest("w", kind="int4"), 0)
    assert rounding is not None
    array = np.linspace(-1, 1, 64, dtype=np.float32).reshape(32, 2)
    assert np.abs(rounding.weight(["w"], array, 0) - array).max() > 1e-3
    assert rounding.operand(["w"]) == "bf16"


def test_weights_that_were_scaled_first_are_rounded_at_other_places() -> None:
    """Noise of seeds stands for the roundings: each is as large as the artifact's, and differs."""
    entry = {"weights": ["w"], "type": "bf16", "operands": "bf16", "moved": False}
    facts = {"variants": [{"rounded": [entry]}]}, 0
    array = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    exact = artifact_rounding(*facts)
    assert exact is not None
    rounded = [exact.weight(["w"], array, 0)]
    rounded += [changed_rounding(*facts, seed).weight(["w"], array, 0) for seed in range(2)]
    np.testing.assert_array_equal(rounded[0], array.astype(ml_dtypes.bfloat16).astype(np.float32))
    errors = [values / array - 1 for values in rounded]
    assert all(1e-3 < np.sqrt(np.mean(e**2)) < 2.0**-9 for e in errors)
    assert np.abs(np.corrcoef([e.ravel() for e in errors]) - np.eye(3)).max() < 0.3
    entry["moved"] = True
    moved = changed_rounding(*facts, 0).weight(["w"], array, 0)
    np.testing.assert_allclose(moved, rounded[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["B", "y"])
def test_factors_of_packed_levels_are_rounded(tmp_path: Path, name: str) -> None:
    """The manifest names the levels, or the node from which the importer made the levels."""
    packed, scales = np.zeros((16, 1, 16), np.uint8), np.ones(16, np.float32)
    constants = [numpy_helper.from_array(a, n) for a, n in ((packed, "B"), (scales, "S"))]
    sizes = {"K": 32, "N": 16, "bits": 4, "block_size": 32}
    product = helper.make_node(
        "MatMulNBits", ["x", "B", "S"], ["y"], domain="com.microsoft", **sizes
    )
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, size])
        for n, size in (("x", 32), ("y", 16))
    ]
    graph = helper.make_graph([product], "levels", ports[:1], ports[1:], constants)
    opsets = [helper.make_opsetid(domain, n) for domain, n in (("", 17), ("com.microsoft", 1))]
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "m.onnx")
    write_rounded(tmp_path / "m.onnx", tmp_path / "r.onnx", Rounding(operands={name: "bf16"}))
    rounded = onnx.load(tmp_path / "r.onnx")
    (node,) = (n for n in rounded.graph.node if n.op_type == "MatMulNBits")
    assert [*node.input] == ["x/bf16", "B", "S"]
    assert [n.op_type for n in rounded.graph.node if n is not node].count("Cast") >= 2


@pytest.mark.parametrize("opset", [17, 18])
def test_bytes_are_rounded_for_their_contractions_alone(tmp_path: Path, opset: int) -> None:
    rng = np.random.default_rng(opset)
    w = rng.standard_normal((64, 8)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("Neg", ["x"], ["z"]),
        ],
        "bytes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "z")],
        [numpy_helper.from_array(w, "w")],
    )
    model, target = tmp_path / "model.onnx", tmp_path / "rounded.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), model)
    write_rounded(model, target, Rounding({}, {"w": "int8"}, spread=True))
    x = drawn(3, 64)
    y, z = ReferenceEvaluator(onnx.load(target)).run(None, {"x": x})
    bytes_, scales = rounded_bytes(x)
    rounded = (bytes_ * scales[..., None].astype(np.float64)).reshape(x.shape)
    close(y, rounded @ w)
    np.testing.assert_array_equal(z, -x)


def test_masks_and_indices_behind_a_rounded_constant_keep_their_types(tmp_path: Path) -> None:
    """An artifact's constant may be computed from weights, a mask and indices: all are listed."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        m (float[2, 3] x) => (float[2, 4] y) <float[1] zero = {0}>
        {
            product = MatMul(x, w)
            masked = Where(mask, b, zero)
            sorted = Gather(masked, order)
            y = Add(product, sorted)
        }""")
    rng = np.random.default_rng(3)
    w, b, x = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (4,), (2, 3)))
    mask, order = np.array([1, 0, 1, 1], bool), np.array([3, 1, 2, 0])
    arrays = {"w": w, "b": b, "mask": mask, "order": order}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    source, target = tmp_path / "model.onnx", tmp_path / "rounded.onnx"
    onnx.save(model, source)
    write_rounded(source, target, Rounding(dict.fromkeys(arrays, "bf16")))
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    w, b = (a.astype(ml_dtypes.bfloat16).astype(np.float32) for a in (w, b))
    expected = x @ w + np.where(mask, b, 0)[order]
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)
