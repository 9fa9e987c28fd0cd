"""Runs give an input for which the model has an initialiser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from tcc import cli
from tcc.driver import optional_inputs

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {3, 4}> { y = Mul (x, w) }"""


@pytest.mark.parametrize("peer", [True, False], ids=["onnxruntime", "evaluator"])
def test_verify_gives_both_the_same_array(
    peer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, artifact = tmp_path / "m.onnx", tmp_path / "m.so"
    onnx.save(parser.parse_model(MODEL), model)
    assert cli.execute(["compile", str(model), "-o", str(artifact), "--input", "w=2"]) == 0
    if not peer:
        monkeypatch.setattr("tcc.cli.reference.find_spec", lambda name: None)
    assert cli.execute(["verify", str(model), str(artifact)]) == 0
    assert "1 of 1 outputs agree" in "".join(capsys.readouterr())


# The second input has its own symbolic sizes; the third keeps its default.
SYMBOLIC = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x, float[n, 2] w, float[1] b) => (float[n, 2] y)
<float[1, 2] w = {3, 4}, float[1] b = {100}> { s = Mul (x, w)  y = Add (s, b) }"""


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["run"], "y: float32 3x2, least 120, largest 120"),
        (["verify"], "1 of 1 outputs agree with ONNX Runtime"),
        (["verify", "--layers"], "all 2 nodes agree with ONNX Runtime"),
        (["bench", "--rounds", "1", "--seconds", "0.01"], "m.onnx, threads: "),
        (["inspect", "--kernels"], "symbolic sizes"),
    ],
)
def test_a_model_takes_the_inputs_that_replace_defaults(
    command: list[str], shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(SYMBOLIC), model)
    np.save(tmp_path / "w.npy", np.full((3, 2), 10, np.float32))
    inputs = ["-i", f"w=@{tmp_path / 'w.npy'}", "-i", "x=2xf32=2"]
    assert cli.execute([*command, str(model), *inputs]) == 0
    assert shown in capsys.readouterr().out
    assert cli.execute([*command, str(model), "-i", "v=1"]) == 2 or command[0] == "inspect"


def test_the_sizes_of_a_default_are_those_of_any_input(tmp_path: Path) -> None:
    """A size of 0 stays 0; dims without a useful name get distinct names, because their sizes may
    differ."""
    model = parser.parse_model(MODEL.replace("float[2] w)", "float[0, a, b, c, d, n] w)"))
    for dim, text in zip(model.graph.input[1].type.tensor_type.shape.dim[1:3], "??", strict=True):
        dim.dim_param = text
    dims = model.graph.input[1].type.tensor_type.shape.dim
    dims[3].dim_value, dims[4].dim_value = -1, 5
    onnx.save(model, tmp_path / "m.onnx")
    names = ("size_1_1", "size_1_2", "size_1_3")
    assert optional_inputs(tmp_path / "m.onnx", ["w=x"]) == (("w", (0, *names, 5, "n")),)
    assert optional_inputs(tmp_path / "m.onnx", ["x=x"]) == ()
