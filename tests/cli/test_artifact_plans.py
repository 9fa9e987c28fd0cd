"""`tcc inspect` shows the plans of an artifact."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper
from tcc.cli.inspect import inspect
from tcc.driver import compile_model
from tcc.options import read_options

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[8, 64] x) => (float[8, 64] y) { h = MatMul(x, a) r = Relu(h) y = MatMul(r, b) }
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, path = onnx.parser.parse_model(TEXT), tmp_path_factory.mktemp("plans") / "model.so"
    for name, shape in (("a", (64, 2048)), ("b", (2048, 64))):
        array = np.random.default_rng(3).normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    compile_model(model, read_options({"ranks": "1,2,4", "jobs": 1}), path)
    return path


def output(*arguments: str | Path) -> str:
    result = CliRunner().invoke(inspect, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_each_number_of_ranks_has_its_weights_and_collectives(artifact: Path) -> None:
    plans = json.loads(output(artifact, "--json"))["plans"]
    assert [(plan["variant"], plan["ranks"]) for plan in plans] == [(1, 2), (2, 4)]
    total_bytes = 2 * 64 * 2048 * 4
    for plan in plans:
        share = total_bytes // plan["ranks"]
        assert share <= plan["weight_bytes_of_a_rank"] <= 1.05 * share
        assert (plan["collectives"], plan["all_reduce"]) == (1, 1)


def test_plans_are_lines_of_the_text(artifact: Path) -> None:
    text = " ".join(output(artifact).split())
    assert "plan 2 ranks: weights 512 KiB a rank, 1 all_reduce" in text
    assert "plan 4 ranks: weights 256 KiB a rank, 1 all_reduce" in text
