"""Artifacts have narrow element types, packed in inputs and outputs, for all sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import tcc
from onnx import TensorProto, helper, numpy_helper
from tcc import cli
from tcc.errors import UserError

from tests.draws import RNG

INT4, FLOAT = TensorProto.INT4, TensorProto.FLOAT


def _model(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any] | None = None
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "narrow",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        constants or [],
    )
    opsets = [helper.make_opsetid("", 25)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=13)


@pytest.fixture(scope="module")
def moved() -> tcc.Module:
    """Compiles y: x transposed, with its rows repeated; z: x itself; w: x as floats."""
    return tcc.compile(
        _model(
            [
                helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
                helper.make_node("Concat", ["t", "t"], ["y"], axis=0),
                helper.make_node("Identity", ["x"], ["z"]),
                helper.make_node("Cast", ["x"], ["w"], to=FLOAT),
            ],
            [("x", INT4, ["n", 3])],
            [("y", INT4, [6, "n"]), ("z", INT4, ["n", 3]), ("w", FLOAT, ["n", 3])],
        ),
        jobs=1,
    )


@pytest.mark.parametrize("rows", [1, 2, 5, 40])
def test_packed_arrays_of_any_size(moved: tcc.Module, rows: int) -> None:
    x = RNG.integers(-8, 8, (rows, 3)).astype(np.int8)
    y, z, w = moved(x.astype(ml_dtypes.int4))
    assert (y.dtype, z.dtype) == (ml_dtypes.int4, ml_dtypes.int4)
    np.testing.assert_array_equal(y.astype(np.int8), np.concatenate([x.T, x.T]))
    np.testing.assert_array_equal(z.astype(np.int8), x)
    np.testing.assert_array_equal(w, x.astype(np.float32))


def test_bytes_are_taken_within_the_range(moved: tcc.Module) -> None:
    x = RNG.integers(-8, 8, (3, 3)).astype(np.int8)
    np.testing.assert_array_equal(moved(x)[2], x.astype(np.float32))
    with pytest.raises(UserError, match="cannot be used as an array of i4"):
        moved(x + np.int8(16))


def test_packed_arrays_with_two_equal_open_sizes() -> None:
    model = _model(
        [helper.make_node("Concat", ["x", "x"], ["y"], axis=2)],
        [("x", INT4, ["n", "n", 9])],
        [("y", INT4, ["n", "n", 18])],
    )
    module = tcc.compile(model, jobs=1)
    for size in (1, 3):
        x = RNG.integers(-8, 8, (size, size, 9)).astype(np.int8)
        np.testing.assert_array_equal(module(x).astype(np.int8), np.concatenate([x, x], 2))
    told = "input x, dimension 1: n is due, the size of input x, dimension 0"
    with pytest.raises(UserError, match=told):
        module(np.zeros((2, 3, 9), np.int8))


def test_ports_show_the_types_that_callers_see(moved: tcc.Module) -> None:
    assert [(p.dtype, p.text) for p in moved.inputs] == [("i4", "[n,3]")]
    assert [p.dtype for p in moved.outputs] == ["i4", "i4", "f32"]


def test_constants_stay_packed() -> None:
    weights = RNG.integers(-8, 8, (64, 96)).astype(ml_dtypes.int4)
    scales = RNG.uniform(0.1, 1, (64, 3)).astype(np.float32)
    model = _model(
        [
            helper.make_node("DequantizeLinear", ["w", "s"], ["f"], axis=1, block_size=32),
            helper.make_node("MatMul", ["x", "f"], ["y"]),
        ],
        [("x", FLOAT, [2, 64])],
        [("y", FLOAT, [2, 96])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(scales, "s")],
    )
    module = tcc.compile(model, jobs=1)
    x = RNG.standard_normal((2, 64)).astype(np.float32)
    reference = x.astype(np.float64) @ (weights.astype(np.float64) * np.repeat(scales, 32, 1))
    np.testing.assert_allclose(module(x), reference, rtol=1e-4, atol=1e-4)


def test_float8_in_and_out() -> None:
    to = TensorProto.FLOAT8E4M3FN
    model = _model(
        [
            helper.make_node("Cast", ["x"], ["f"], to=FLOAT),
            helper.make_node("Mul", ["f", "f"], ["g"]),
            helper.make_node("Cast", ["g"], ["y"], to=to),
        ],
        [("x", to, ["n"])],
        [("y", to, ["n"])],
    )
    module = tcc.compile(model, jobs=1)
    x = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    wide = x.astype(np.float32)
    reference = np.clip(wide * wide, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(module(x).view(np.uint8) & 0x7F, reference.view(np.uint8) & 0x7F)


@pytest.mark.parametrize("name", ["BFLOAT16", "FLOAT8E4M3FN"])
def test_commands_make_arrays_of_types_that_numpy_lacks(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dtype = TensorProto.DataType.Value(name)
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=FLOAT)]
    nodes.append(helper.make_node("Identity", ["x"], ["z"]))
    outputs = [("y", FLOAT, [2, 3]), ("z", dtype, [2, 3])]
    model, artifact = str(tmp_path / "m.onnx"), str(tmp_path / "m.so")
    onnx.save(_model(nodes, [("x", dtype, [2, 3])], outputs), model)
    tcc.compile(model, jobs=1).save(artifact)
    assert cli.execute(["run", artifact, "-i", "x=2x3=1.5"]) == 0
    assert "least 1.5, largest 1.5" in capsys.readouterr().out
    assert cli.execute(["verify", model, artifact]) == 0
    assert cli.execute(["bench", artifact, "--rounds", "1", "--seconds", "0.01"]) == 0
    assert cli.execute(["inspect", artifact, "--measure", "--runs", "1"]) == 0
