"""`tcc bench NEW.so --compare BASE.so`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tcc import cli
from tcc.artifact import code_bytes
from tcc.cli import gate
from tcc.driver import compile_model
from tcc.ir.op import Array
from tcc.options import Options
from tcc.runtime.gate_facts import FACTS
from tcc.runtime.interleaved import Times

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 64] {input}, float[64, 32] w) => (float[n, 32] y) {{
  a = MatMul({input}, w)
  y = {last}
}}
"""
MODELS = {
    "base": TEXT.format(input="x", last="Softmax(a)"),
    "new": TEXT.format(input="x", last="Softmax(a)"),
    "work": TEXT.format(input="x", last="Softmax(a)")
    .replace("Softmax(a)", "Softmax(b)")
    .replace("  y", "  s = Exp(a)  t = Exp(s)  b = Sub(a, t)\n  y"),
    "other": TEXT.format(input="x", last="Neg(a)"),
    "ports": TEXT.format(input="z", last="Softmax(a)"),
}
ARGUMENTS = ("--compare", "base.so", "--rounds", "7", "--seconds", "0.01", "-i", "x=8x64xf32")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gate")
    for name, text in MODELS.items():
        onnx.save(onnx.parser.parse_model(text), folder / f"{name}.onnx")
        compile_model(folder / f"{name}.onnx", Options(), folder / f"{name}.so")
    compile_model(folder / "base.onnx", Options(cpu="x86-64-v2"), folder / "target.so")
    return folder


@pytest.fixture(autouse=True)
def here(artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(artifacts)


def bench(*arguments: str) -> int:
    code: int = cli.execute(["bench", *arguments])
    return code


class Idle:
    """A peer that is never timed."""

    def __init__(self, kind: str, *_: object, **__: object) -> None:
        self.kind = kind

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def outputs(self) -> Mapping[str, Array]:
        return {"y": np.zeros(3, np.float32)}


def times_of(monkeypatch: pytest.MonkeyPatch, *ratios: float) -> list[int]:
    """Replaces measurements: call i has the ratio ratios[i]. Returns a list that collects the
    number of rounds of each call."""
    numbers: list[int] = []

    def interleaved(peers: Sequence[Idle], rounds: int, *_: Any, **__: Any) -> Mapping[str, Times]:
        numbers.append(rounds)
        seconds = {"base": 1e-3, "new": 1e-3 * ratios[len(numbers) - 1]}
        return {p.kind: Times(1, 1, (seconds[p.kind],) * rounds, 1) for p in peers}

    monkeypatch.setattr(gate, "Peer", Idle)
    monkeypatch.setattr(gate, "interleaved", interleaved)
    return numbers


# ---- verdicts -----------------------------------------------------------------------------------


def test_equal_kernels_pass_a_wide_gate(capsys: pytest.CaptureFixture[str]) -> None:
    """The gate is wide, because other processes may use the machine during this test."""
    assert bench("new.so", *ARGUMENTS, "--gate", "1000", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    (measurement,) = answer["measurements"]
    assert len(measurement["base"]) == len(measurement["new"]) == 7
    assert answer["failures"] == []
    facts = {fact["name"]: (fact["base"], fact["new"]) for fact in answer["facts"]}
    assert facts["kernels"] == (1, 1)
    assert facts["bytes"] == (code_bytes(Path("base.so")),) * 2
    assert facts["traffic"][0] == facts["traffic"][1] > 0


def test_more_work_fails_unless_it_is_allowed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times_of(monkeypatch, 1.0, 1.0, 1.0)
    assert bench("work.so", *ARGUMENTS, "--gate", "1.05") == 1
    out = capsys.readouterr().out
    for name in ("time", "bytes", "kernels", "traffic"):
        assert f"\n{name} grows from" in out
    assert "it depends on sizes" in out  # the bytes of the arena
    allowed = [word for name in ("bytes", "kernels", "traffic") for word in ("--allow", name)]
    assert bench("work.so", *ARGUMENTS, "--gate", "1.05", *allowed) == 1
    assert bench("work.so", *ARGUMENTS, "--gate", "1.05", *allowed, "--allow", "time") == 0
    assert "grows, allowed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ratios", "code"), [((1.1, 1.1), 1), ((1.1, 1.0), 0), ((1.04,), 0), ((0.5,), 0)]
)
def test_a_slower_artifact_fails_if_two_measurements_say_so(
    ratios: tuple[float, ...],
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = times_of(monkeypatch, *ratios)
    assert bench("new.so", *ARGUMENTS, "--gate", "1.05", "--markdown") == code
    assert len(numbers) == len(ratios)
    out = capsys.readouterr().out
    assert out.startswith("### new.so beside base.so, threads: ")
    assert out.count("measured ms") == len(ratios)
    assert ("- a run takes at least 1.100 and 1.100 times as long" in out) == bool(code)


def test_without_a_gate_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = times_of(monkeypatch, 3.0)
    assert bench("new.so", "--compare", "base.so") == 0
    assert numbers == [41]


def test_equal_files_are_not_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = times_of(monkeypatch)
    assert bench("base.so", *ARGUMENTS, "--gate", "1") == 0
    assert numbers == []
    assert "the files are equal" in capsys.readouterr().out


# ---- wrong inputs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ports.so", *ARGUMENTS), "the artifacts have other inputs or outputs"),
        (("target.so", *ARGUMENTS), "the artifacts have other targets"),
        (("other.so", *ARGUMENTS), "the artifacts compute different results"),
        (("base.onnx", *ARGUMENTS), "--compare compares two artifacts"),
        (("new.so", "--compare", "base.onnx"), "--compare compares two artifacts"),
        (("new.so", "--compare", "absent.so"), "absent.so"),
        (("new.so", *ARGUMENTS, "--gate", "0.99"), "a gate is a ratio of at least 1"),
        (("new.so", *ARGUMENTS, "--gate", "nan"), "a gate is a ratio of at least 1"),
        (("new.so", *ARGUMENTS, "--gate", "inf"), "a gate is a ratio of at least 1"),
        (("new.so", *ARGUMENTS, "--gate", "1.05", "--allow", "speed"), "'speed' is not one of"),
        (("new.so", *ARGUMENTS, "--nproc", "2"), "--compare does not go with this option"),
        (("new.so", "--gate", "1.05"), "no artifact to compare with is given"),
        (("new.so", "--allow", "arena"), "no artifact to compare with is given"),
    ],
)
def test_wrong_inputs_are_errors(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_files_that_are_no_artifacts_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, truncated = tmp_path / "text.so", tmp_path / "cut.so"
    text.write_text("hello\n" * 50)
    truncated.write_bytes(Path("base.so").read_bytes()[:-3000])
    for path in (text, truncated):
        assert bench("new.so", "--compare", str(path), "--gate", "1.05") == 2
        assert str(path) in capsys.readouterr().err


def test_results_that_may_differ_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = [word for name in (*FACTS, "outputs") for word in ("--allow", name)]
    assert bench("other.so", *ARGUMENTS, "--gate", "1000", *allowed) == 0
