"""`tcc verify --nproc` compares ranks with the reference and with each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper
from tcc.cli.verify import verify as command
from tcc.driver import compile_model
from tcc.errors import UserError
from tcc.options import read_options
from tcc.runtime.rank_bits import different_outputs
from tcc.runtime.verdict_text import Verdict

from tests.ranks import run_ranks

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[8, 64] x) => (float[8, 64] y, float[8, 1024] r) {
  h = MatMul(x, first) r = Relu(h) y = MatMul(r, second)
}
"""


SMALL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x) => (float[4] y) { y = Softmax(x) }
"""


def saved(path: Path, seed: int) -> Path:
    model, rng = onnx.parser.parse_model(TEXT), np.random.default_rng(seed)
    for name, shape in (("first", (64, 1024)), ("second", (1024, 64))):
        weight = (rng.standard_normal(shape) / 16).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    options = read_options({"ranks": "1,2", "jobs": 1})
    compile_model(saved(folder / "model.onnx", 1), options, folder / "model.so")
    saved(folder / "other.onnx", 2)
    return folder


def verify(folder: Path, library: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tcc", "verify", *words], cwd=folder, text=True,
        env=os.environ | {"TCC_COMM_LIBRARY": str(library)}, capture_output=True, timeout=200,
        check=False,
    )  # fmt: skip


def test_each_rank_of_a_model_compiled_now_is_compared(folder: Path, comm_library: Path) -> None:
    ended = verify(folder, comm_library, "model.onnx", "--nproc", "2")
    assert ended.returncode == 0, ended.stderr
    rows = [line.split() for line in ended.stdout.splitlines()]
    assert [row[:2] for row in rows if row[-1] == "ok"] == [
        ["y", "0"], ["y", "1"], ["r", "0"], ["r", "1"],
    ]  # fmt: skip
    assert "the bits of all outputs are equal on all 2 ranks" in ended.stdout


def test_an_artifact_of_other_weights_is_wrong_on_every_rank(
    folder: Path, comm_library: Path
) -> None:
    words = ("other.onnx", "model.so", "--nproc", "2", "--json")
    ended = verify(folder, comm_library, *words)
    assert ended.returncode == 1, ended.stderr
    result = json.loads(ended.stdout)
    assert not result["ok"]
    assert [rank["ok"] for rank in result["ranks"]] == [False, False]
    assert [rank["different"] for rank in result["ranks"]] == [[], []]


def test_ranks_that_exchange_nothing_are_compared_too(folder: Path, comm_library: Path) -> None:
    model = onnx.parser.parse_model(SMALL)
    onnx.save(model, folder / "small.onnx")
    ended = verify(folder, comm_library, "small.onnx", "--nproc", "2", "--json")
    assert ended.returncode == 0, ended.stderr
    assert [rank["different"] for rank in json.loads(ended.stdout)["ranks"]] == [[], []]


COMPARE = """
import sys, numpy as np
from tcc.runtime.rank_bits import different_outputs
from tcc.cli.verify import verify as command
from tcc.runtime import comm
with comm.open() as c:
    last = 1.0 if c.rank == int(sys.argv[1]) else np.nextafter(np.float32(1), np.float32(2))
    outputs = {"same": np.arange(5), "other": np.array([0, last], np.float32)}
    print(different_outputs(c, [{**outputs, "other": np.zeros(1)}, outputs]))
"""


def test_one_bit_is_enough_to_be_different(comm_library: Path) -> None:
    assert run_ranks(3, COMPARE, comm_library, 1) == ["['other']\n"] * 3
    assert run_ranks(3, COMPARE, comm_library, 9) == ["[]\n"] * 3
    assert different_outputs(None, []) == []


STATE = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4, 1, 256] x, float[4, 64, 256] past) => (float[4, 65, 256] present, float[4, 1, 65] y) {
  k = MatMul(x, w)
  present = Concat<axis = 1>(past, k)
  t = Transpose<perm = [0, 2, 1]>(present)
  y = MatMul(x, t)
}
"""


def test_a_state_in_parts_is_refused(folder: Path, comm_library: Path) -> None:
    model = onnx.parser.parse_model(STATE)
    weight = np.random.default_rng(1).standard_normal((4, 256, 256)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, folder / "state.onnx")
    options = read_options({"ranks": "1,2", "state": ["past=present"], "jobs": 1})
    compile_model(folder / "state.onnx", options, folder / "state.so")
    ended = verify(folder, comm_library, "state.onnx", "state.so", "--nproc", "2")
    assert ended.returncode == 2
    assert "the plan splits this state along axis 0" in ended.stderr


@pytest.mark.parametrize(
    ("flags", "what"),
    [(("--pin",), "no ranks to pin"), (("--layers", "--nproc", "2"), "no layers")],
)
def test_flags_that_do_not_fit_are_refused(folder: Path, flags: tuple[str, ...], what: str) -> None:
    words = [str(folder / "model.onnx"), *flags]
    with pytest.raises(UserError, match=what):
        CliRunner().invoke(command, words, catch_exceptions=False)


def test_an_output_of_different_bits_is_wrong() -> None:
    verdicts = [Verdict(name, 0.0, 1.0, 0.0, True) for name in ("same", "other")]
    assert [item.with_equal_bits(["other"]).ok for item in verdicts] == [True, False]
