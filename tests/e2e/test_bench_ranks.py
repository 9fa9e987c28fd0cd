"""`tcc bench --nproc` times a model that the partition planner divided."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper
from tcc.artifact import read_manifest
from tcc.cli.bench import bench
from tcc.driver import compile_model
from tcc.errors import UserError
from tcc.options import read_options

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[8, 64] x) => (float[8, 64] y) { h = MatMul(x, first) r = Relu(h) y = MatMul(r, second) }
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, path = onnx.parser.parse_model(TEXT), tmp_path_factory.mktemp("bench") / "model.so"
    for name, shape in (("first", (64, 2048)), ("second", (2048, 64))):
        weight = np.random.default_rng(3).normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    compile_model(model, read_options({"ranks": "1,2", "jobs": 1}), path)
    return path


def test_ranks_are_timed_together(
    artifact: Path, comm_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCC_COMM_LIBRARY", str(comm_library))
    one, two = read_manifest(artifact)["variants"]
    assert two["weights"]["bytes"] < 0.6 * one["weights"]["bytes"]
    words = [str(artifact), "--nproc", "2", "--rounds", "3", "--seconds", "0.01", "--json"]
    result = CliRunner().invoke(bench, words, catch_exceptions=False)
    measured = json.loads(result.stdout)
    assert measured["model"] == "model.so on 2 ranks"
    assert len(measured["seconds"]["tcc"]["rounds"]) == 3
    assert measured["seconds"]["tcc"]["least"] > 0


def test_only_ranks_can_be_pinned(artifact: Path) -> None:
    with pytest.raises(UserError, match="no ranks to pin"):
        CliRunner().invoke(bench, [str(artifact), "--pin"], catch_exceptions=False)
