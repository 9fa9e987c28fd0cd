"""Ranks divide integer weights by whole groups, and hold the scales of their groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tcc.artifact import load, read_manifest

from tests.commands import command
from tests.draws import RNG, seeded
from tests.ranks import on_ranks

Array = np.ndarray[Any, np.dtype[Any]]
ROWS, IN, HIDDEN, OUT, GROUP = 8, 96, 512, 64, 32
SHAPES = {"w1": (IN, HIDDEN), "w2": (HIDDEN, OUT)}

with seeded("integer plans"):
    X = RNG.standard_normal((ROWS, IN)).astype(np.float32)
    WEIGHTS = {n: (RNG.standard_normal(s) / 16).astype(np.float32) for n, s in SHAPES.items()}
    LEVELS = {n: RNG.integers(-8, 8, s).astype(np.int8) for n, s in SHAPES.items()}
    SCALES = {
        n: RNG.uniform(0.01, 0.03, (rows // GROUP, columns)).astype(np.float32)
        for n, (rows, columns) in SHAPES.items()
    }


def model(weights: list[onnx.NodeProto], constants: list[onnx.TensorProto]) -> onnx.ModelProto:
    """Returns two layers whose matrices are w1 and w2."""
    nodes = [
        *weights,
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, IN])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, OUT])
    graph = helper.make_graph(nodes, "mlp", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def quantised() -> onnx.ModelProto:
    """Returns a model with four-bit weights that have one scale per 32 elements of a column."""
    nodes, constants = [], []
    for name, levels in LEVELS.items():
        flat = levels.reshape(-1)
        constants.append(helper.make_tensor(f"{name}.levels", TensorProto.INT4, levels.shape, flat))
        constants.append(numpy_helper.from_array(SCALES[name], f"{name}.scales"))
        operands = [f"{name}.levels", f"{name}.scales"]
        nodes.append(
            helper.make_node("DequantizeLinear", operands, [name], axis=0, block_size=GROUP)
        )
    return model(nodes, constants)


def tcc(library: Path, folder: Path, *words: str) -> None:
    ended = command(folder, *words, TCC_COMM_LIBRARY=str(library))
    assert ended.returncode == 0, ended.stderr


def assert_ranks_agree(folder: Path, library: Path, ranks: int, expected: Array) -> None:
    outputs = on_ranks(folder, library, {"mlp": [{"x": X}] * ranks})["mlp"]
    for results in outputs:
        np.testing.assert_array_equal(results["y"], outputs[0]["y"], strict=True)
        limit = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(results["y"], expected, rtol=0, atol=limit)


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_weights_that_become_integers_are_those_of_one_rank(
    comm_library: Path, tmp_path: Path, weights: str
) -> None:
    constants = [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()]
    onnx.save(model([], constants), tmp_path / "mlp.onnx")
    tcc(comm_library, tmp_path, "compile", "mlp.onnx", "--ranks", "1,2", "--weights", weights)
    reference = load(tmp_path / "mlp.so").run({"x": X})["y"]
    floats = np.maximum(X @ WEIGHTS["w1"], 0) @ WEIGHTS["w2"]
    assert np.abs(reference - floats).max() > 1e-4 * np.abs(floats).max()  # the levels are rounded
    assert_ranks_agree(tmp_path, comm_library, 2, reference)
    one, two = read_manifest(tmp_path / "mlp.so")["variants"]
    assert two["weights"]["bytes"] <= one["weights"]["bytes"] / 2 + 2 * 4096


def test_groups_of_integer_weights_stay_whole(comm_library: Path, tmp_path: Path) -> None:
    """On 3 ranks, the 16 groups of a column of w2 are divided in blocks of six."""
    onnx.save(quantised(), tmp_path / "mlp.onnx")
    tcc(comm_library, tmp_path, "compile", "mlp.onnx", "--ranks", "1,2,3")
    w1, w2 = (LEVELS[n] * SCALES[n].astype(np.float64).repeat(GROUP, 0) for n in SHAPES)
    expected = np.maximum(X @ w1, 0) @ w2
    for ranks in (2, 3):
        assert_ranks_agree(tmp_path, comm_library, ranks, expected)
    one, *divided = read_manifest(tmp_path / "mlp.so")["variants"]
    for entry in divided:
        share = -(-16 // entry["ranks"]) / 16
        assert entry["weights"]["bytes"] <= share * one["weights"]["bytes"] + 4 * 4096
