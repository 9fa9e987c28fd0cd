"""Locks of models for GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from tcc.cli.compile import compile
from tcc.cli.tune import tune
from tcc.schedule.gpu import candidates, choose
from tcc.tune.lock_file import read_lock

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 64] x, float[64, 32] w) => (float[n, 32] y) {
  a = MatMul(x, w)
  y = Softmax(a)
}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(TEXT), "model.onnx")
    return Path("model.onnx")


def run(command: object, *arguments: str | Path) -> Result:
    result = CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result


def test_a_pin_of_two_targets_has_a_section_for_each(model: Path) -> None:
    run(tune, model, "--pin", "--target", "cuda:sm_80+cpu", "--cpu", "x86-64-v3", "--jobs", "2")
    (cpu, _), (gpu, processors) = read_lock(Path("tcc.lock.json")).sections
    assert (cpu, gpu) == ("cpu:x86-64 (x86-64-v3)", "cuda:sm_80")
    assert processors > 50
    rows = [row for s in read_lock(Path("tcc.lock.json")).sections.values() for row in s.values()]
    assert any((row.alternative or "").startswith("BlockKernel(") for row in rows)
    flags = ("--tuned", "tcc.lock.json", "--target", "cuda:sm_80", "--jobs", "2", "--json")
    tuned = json.loads(run(compile, model, *flags).stdout)["tuned"]
    assert (tuned["unfit"], tuned["unrelated"], tuned["warnings"]) == (0, 0, [])
    assert tuned["applied"] > 0
    # Sites name their target in the listing only, so a lock serves both kinds of compiles.
    assert tuned["applied"] + tuned["elsewhere"] == len(rows)


def test_a_pinned_gpu_model_has_the_same_code_in_another_version(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--target", "cuda:sm_80", "--jobs", "2", "--name", "m", "-o", "model.so")
    run(tune, model, "--pin", *flags[:4])
    run(compile, model, *flags, "--tuned", "tcc.lock.json")
    before = Path("model.so").read_bytes()
    monkeypatch.setattr(candidates, "_LINES", (64, 512))
    monkeypatch.setattr(candidates, "_ROWS", 1 << 10)
    monkeypatch.setattr(choose, "_VARIED", 1)
    run(compile, model, *flags, "--tuned", "tcc.lock.json")
    assert Path("model.so").read_bytes() == before
