"""`tcc verify` rounds the model's states as an artifact compiled with `--state-type` stores
them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper
from tcc.cli import execute

from tests.lib.language_model import STATES, language_model


@pytest.mark.parametrize("dtype", ["bf16", "f16", "int8"])
def test_states_are_rounded(dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = language_model(20)
    onnx.save(model, tmp_path / "m.onnx")
    words = [str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.so"), "-O1", "--jobs=1"]
    assert (
        execute(["compile", *words, *(f"--state={s}" for s in STATES), f"--state-type={dtype}"])
        == 0
    )
    assert execute(["verify", words[0], words[2]]) == 0
    text = capsys.readouterr().out
    outputs = 5 if dtype == "int8" else 3  # with scales
    assert f"{outputs} of {outputs} outputs agree with the reference evaluator" in text
    # A changed model is detected, although it differs by less than the cost of rounded states.
    (weights,) = (item for item in model.graph.initializer if item.name == "wq")
    changed = numpy_helper.to_array(weights) * 1.01
    weights.CopyFrom(numpy_helper.from_array(changed.astype("f4"), "wq"))
    onnx.save(model, tmp_path / "m.onnx")
    assert execute(["verify", words[0], words[2]]) == 1
    assert "logits: WRONG" in capsys.readouterr().out
