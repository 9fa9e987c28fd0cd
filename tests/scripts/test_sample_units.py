"""The script's helper runs tiles of a model's kernels in an interpreter and in the evaluator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

from tests.lib.interpreter.running import NEEDS_TRITON

pytestmark = NEEDS_TRITON
ROOT = Path(__file__).resolve().parents[2]
TEXT = '<ir_version: 8, opset_import: ["": 17]> m (float[4, 9] x) => (float[4, 9] y) {y = Exp (x)}'


@pytest.mark.parametrize("schedules", ["first", "chosen"])
def test_units_agree(schedules: str, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), model)
    command = [sys.executable, "-m", "gpu.sample_units", model, "cuda:sm_90", "f32", 1, 60, 0]
    process = subprocess.run(
        [*map(str, command), schedules],
        cwd=ROOT / "scripts", env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-2000:]
    *rows, last = map(json.loads, process.stdout.splitlines())
    assert len(rows) == 1
    assert last == {"left": 0}
