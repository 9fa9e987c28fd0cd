"""`tcc verify` of an artifact whose runs give an input that the model has an initialiser for."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser
from tcc import cli

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
        monkeypatch.setattr("tcc.cli.verify.find_spec", lambda name: None)
    assert cli.execute(["verify", str(model), str(artifact)]) == 0
    assert "1 of 1 outputs agree" in "".join(capsys.readouterr())
