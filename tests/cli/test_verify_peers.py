"""`tcc verify --peers` uses other runtimes as further oracles."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import pytest
from tcc import cli
from tcc.cli import comparison
from tcc.cli.comparison import peer_line
from tcc.cli.peers.peer import PEERS, PeerKind
from tcc.cli.reference import ReferenceJob, run_reference
from tcc.runtime.verdict_text import Verdict

from tests.draws import RNG

SOFTMAX = """<ir_version: 9, opset_import: ["": 17]>
    three (float[rows, 3] x) => (float[rows, 3] y) { y = Softmax(x) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(SOFTMAX), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_a_peer_is_one_more_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    assert cli.execute(["verify", str(model), "--peers", "ort"]) == 0
    assert "\nONNX Runtime agrees: largest error " in capsys.readouterr().out
    assert cli.execute(["verify", str(model), "--peers", "ort", "--json"]) == 0
    [line] = json.loads(capsys.readouterr().out)["peers"]
    assert line.startswith("ONNX Runtime agrees")


@pytest.mark.parametrize(("cost", "agrees"), [(0.0, False), (0.02, True)])
def test_a_difference_above_the_cost_of_the_precision_fails(
    model: Path, cost: float, agrees: bool
) -> None:
    pytest.importorskip("onnxruntime")
    x = RNG.standard_normal((4, 3), np.float32)
    powers = np.exp(x.astype(np.float64))
    outputs = {"y": (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)}
    outputs["y"][0, 0] += 0.01
    verdicts = [Verdict("y", 0.0, 1e-6, cost, True)]
    line, ok = peer_line("ort", model, {"x": x}, outputs, verdicts)
    assert ok == agrees
    assert line.startswith("ONNX Runtime agrees" if agrees else "ONNX Runtime y differ")


def test_a_peer_that_does_not_run_the_model_says_nothing_of_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("raise SystemExit('operator Softmax is unknown')")
    row = PeerKind("Relax", str(worker))
    monkeypatch.setattr(comparison, "PEERS", MappingProxyType({**PEERS, "relax": row}))
    monkeypatch.setattr("tcc.cli.peers.peer.PEERS", comparison.PEERS)
    x = np.zeros((1, 3), np.float32)
    line, ok = peer_line("relax", model, {"x": x}, {"y": x}, [Verdict("y", 0.0, 0.0, 0.0, True)])
    assert ok
    assert line.startswith("Relax does not run the model: ")
    assert line.endswith("operator Softmax is unknown")


@pytest.mark.parametrize("others", [["--layers"], ["--nproc", "2"]])
def test_peers_run_whole_models(
    model: Path, others: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    assert cli.execute(["verify", str(model), "--peers", "ort", *others]) == 2
    assert "peers run whole models on one rank" in capsys.readouterr().err


def test_the_reference_adds_every_scattered_row(tmp_path: Path) -> None:
    """ONNX Runtime's threads add to one element at the same time and lose numbers."""
    pytest.importorskip("onnxruntime")
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        sums (float[3, 256] x, int64[50000, 1] where, float[50000, 256] rows) => (float[3, 256] y) {
            y = ScatterND <reduction = "add"> (x, where, rows) }""")
    onnx.save(model, tmp_path / "model.onnx")
    where = np.random.default_rng(0).integers(0, 3, (50_000, 1))
    inputs = {
        "x": np.zeros((3, 256), np.float32),
        "where": where,
        "rows": np.ones((50_000, 256), np.float32),
    }
    job = ReferenceJob(range(1))
    [[outputs]] = run_reference(tmp_path / "model.onnx", ["y"], [job], [inputs], 4, False)
    counts = np.bincount(where[:, 0])[:, None]
    np.testing.assert_array_equal(outputs["y"], np.broadcast_to(counts, (3, 256)))
