"""`tcc verify` tells what a narrow mode costs from a fault in its code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc import cli
from tcc.cli import verify
from tcc.cli.compare import compare
from tcc.options import TOLERANCES
from tcc.passes.quantize import precision

from .agreement import model_of, value

node = helper.make_node
MODES: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "f16": {"precision": "f16"},
    "int8": {"weights": "int8"},
    "int4": {"weights": "int4"},
}
DIFFERENCE = {"bf16": 0.05, "f16": 0.05, "int8": 0.1, "int4": 0.3, "f32": 1e-5}


def save(path: Path, mode: str, terms: int = 256) -> Path:
    """Two products whose difference is small: what is lost in them is large beside it."""
    rng = np.random.default_rng(0)
    a, d = (rng.standard_normal((terms, 128)).astype(np.float32) for _ in range(2))
    nodes = [
        node("MatMul", ["x", "a"], ["p"]),
        node("MatMul", ["x", "b"], ["q"]),
        node("Sub", ["p", "q"], ["y"]),
    ]
    ports = [value("x", shape=(1, terms))], [value("y", shape=(1, 128))]
    model = model_of(nodes, *ports, {"a": a, "b": a + np.float32(DIFFERENCE[mode]) * d})
    onnx.save(model, path)
    return path


def verified(
    model: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    artifact = model.with_suffix(".so")
    # Derivation subtracts the matrices first, and loses nothing.
    tcc.compile(model, jobs=1, derive=False, **options).save(artifact)
    code = cli.execute(["verify", str(model), str(artifact), "--json"])
    (found,) = json.loads(capsys.readouterr().out)["outputs"]
    return code, found


@pytest.mark.parametrize(
    ("mode", "oracle"), [*((mode, "ONNX Runtime") for mode in MODES), ("int8", "evaluator")]
)
def test_what_a_mode_costs_is_ok(
    mode: str,
    oracle: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if oracle == "evaluator":
        monkeypatch.setattr(verify, "find_spec", lambda name: None)
    code, found = verified(save(tmp_path / "m.onnx", mode), MODES[mode], capsys)
    assert found["error"] > TOLERANCES[mode]
    assert (code, found["ok"]) == (0, True)
    assert "rounded weights alone make" in found["why"]


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_in_a_mode_is_wrong(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded, quantized = precision.rounded, precision.quantized

    def shifted(*given: Any) -> Any:
        found = rounded(*given)
        return None if found is None else np.roll(found, 1, 0)

    def shifted_levels(*given: Any) -> Any:
        found = quantized(*given)
        return None if found is None else (np.roll(found[0], 1, 0), found[1])

    model = save(tmp_path / "m.onnx", mode)
    monkeypatch.setattr(precision, "rounded", shifted)
    monkeypatch.setattr(precision, "quantized", shifted_levels)
    code, found = verified(model, MODES[mode], capsys)
    assert (code, found["ok"]) == (1, False)
    assert "rounded weights alone make" in found["why"]


def test_a_tolerance_that_is_given_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save(tmp_path / "m.onnx", "bf16")
    verified(model, MODES["bf16"], capsys)
    words = ["verify", str(model), str(model.with_suffix(".so")), "--tolerance", "1e-3"]
    assert cli.execute(words) == 1
    assert "more than bf16 may cost" in capsys.readouterr().out


@pytest.mark.parametrize(("apart", "ok"), [(0.0, False), (2e-5, False), (5e-5, True)])
def test_an_error_is_judged_by_the_references_own(apart: float, ok: bool) -> None:
    want = np.linspace(0, 1, 11, dtype=np.float32)
    found = compare("y", want + np.float32(1.2e-4), want, 1e-4)
    judged = verify._judged(
        found, {"y": want}, [("another order", {"y": want + np.float32(apart)})]
    )
    assert judged.ok is ok
    assert ("where another order alone make" in judged.why) is (apart > 0)


@pytest.mark.parametrize("faulty", [False, True])
def test_an_error_is_judged_by_what_rounding_the_inputs_makes(
    faulty: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A difference of nearly equal products has no more digits than these leave it."""
    model = save(tmp_path / "m.onnx", "f32", 1000)
    verified(model, {}, capsys)
    if faulty:
        given = onnx.load(model)
        (b,) = (t for t in given.graph.initializer if t.name == "b")
        b.raw_data = np.roll(np.frombuffer(b.raw_data, np.float32), 1).tobytes()
        onnx.save(given, model)
    code = cli.execute(["verify", str(model), str(model.with_suffix(".so")), "--json"])
    (found,) = json.loads(capsys.readouterr().out)["outputs"]
    assert (code, found["ok"]) == (int(faulty), not faulty)
    assert found["error"] > TOLERANCES["f32"]
    assert "inputs changed by one rounding alone make" in found["why"]


def test_inputs_are_rounded_to_their_neighbours() -> None:
    given = {"x": np.array([1, -2, 0, np.inf], np.float32), "n": np.array([3])}
    ups, downs = (np.nextafter(given["x"], np.float32(end)) for end in (np.inf, -np.inf))
    for seed in range(4):
        nudged = verify._nudged(given, seed)
        assert np.all((nudged["x"] == ups) | (nudged["x"] == downs))
        assert nudged["x"].dtype == np.float32
        assert nudged["n"] is given["n"]
