"""`tcc profile` writes and prints a profile, or refuses and leaves no file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from tcc import cli
from tcc.artifact import read_manifest
from tcc.runtime.sections import SEAL, SEAL_MAGIC

from tests.cli.named_model import NAMES, other_machine


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """Returns the JSON that `tcc profile` prints."""
    assert cli.execute(["profile", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_profile_names_each_node_and_its_times(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    words = (compiled, "--input", "x=4x8xf32", "--runs", 8, "--threads", 1, "--trace", trace)
    result = printed(capsys, *words)
    assert result["runs"] == 8
    assert [step["step"] for step in result["steps"]] == [*range(len(result["steps"]))]
    locations = " ".join(step["location"] for step in result["steps"])
    assert "first" in locations
    assert NAMES[1] in locations
    total = sum(step["measured"] for step in result["steps"]) + result["between"]
    assert total == pytest.approx(result["seconds"])
    assert min(result["startup"].values()) > 0
    path = result["critical_path"]
    assert path["nodes"] == [f"s{step}" for step in range(len(result["steps"]))]  # a chain
    assert path["seconds"] == pytest.approx(total - result["between"])
    peak = result["peak_memory"]
    assert sum(size for *_, size in peak["buffers"]) == peak["bytes"] > 0
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"load", "weights", "first run", "run"} <= names


def test_symbolic_sizes_are_those_of_the_inputs(
    compiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A matmul of [n, 8] by [8, 8] has 128 n operations."""
    flops = {}
    for batch in (2, 16):
        result = printed(capsys, compiled, "--input", f"x={batch}x8xf32", "--runs", 1)
        flops[batch] = max(step["flops"] or 0 for step in result["steps"])
    assert flops[16] == 8 * flops[2] >= 16 * 128


def test_the_terminal_shows_the_slowest_step(
    compiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["profile", str(compiled), "--runs", "2"]) == 0
    out = capsys.readouterr().out
    assert "slowest: " in out
    assert "critical path: " in out
    assert "start-up: load" in out


def test_the_manifest_entry_is_small(compiled: Path) -> None:
    (variant,) = read_manifest(compiled)["variants"]
    size = len(json.dumps(variant["profile"]))
    assert size <= compiled.stat().st_size / 100 + (16 << 10)
    assert variant["profile"]["steps"] == len(variant["steps"])


def test_a_static_model_has_its_arena_over_the_steps(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> chain (float[64, 64] x) => (float[64, 64] y)
        { a = MatMul(x, x)  b = Softmax(a)  c = MatMul(b, x)  y = Softmax(c) }"""
    module = tcc.compile(onnx.parser.parse_model(text))
    result = tcc.profile(module, {"x": np.ones((64, 64), np.float32)}, runs=1)
    live, bound = result.facts.live, result.facts.arena_bound
    assert len(live) == len(result.facts.steps)
    assert bound == max(live) <= module.manifest["variants"][0]["arena_bytes"]
    assert all(size % (64 * 64 * 4) == 0 for size in live)  # every value is one matrix
    assert "<table>" in module._repr_html_()
    assert "<table>" in result._repr_html_()


# ---- refusals ------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.execute(["profile", *map(str, words)]) == 2
    return capsys.readouterr().err


def test_a_full_disk_is_one_error(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, compiled, "--runs", 1, "--trace", "/dev/full")
    assert "a profile cannot be written\n  at: /dev/full\n  because: No space left" in error
    assert Path("/dev/full").is_char_device()


def test_a_missing_folder_is_one_error(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "absent" / "trace.json"
    assert "No such file" in refused(capsys, compiled, "--runs", 1, "--trace", target)
    assert not target.parent.exists()


def test_an_artifact_of_another_machine(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tcc profile` refuses the artifact before it runs any part of it."""
    foreign, trace = other_machine(compiled, tmp_path), tmp_path / "trace.json"
    assert "and this machine is" in refused(capsys, foreign, "--trace", trace)
    assert not trace.exists()


def test_changed_manifests_are_refused_or_read(compiled: Path, tmp_path: Path) -> None:
    """Bytes of the packed entry change and the seal is recomputed, so only the reader can see the
    change."""
    data = compiled.read_bytes()
    start, place = data.index(SEAL_MAGIC), data.index(b'"packed": [')
    place = data.index(b'"', place + 10) + 1
    draw = np.random.default_rng(0)
    codes = []
    for number in range(12):
        changed = bytearray(data)
        changed[place + int(draw.integers(60))] = int(draw.choice([*b"A9/=!"]))
        digest = hashlib.sha256(changed[:start]).digest()
        changed[start : start + SEAL.size] = SEAL.pack(SEAL_MAGIC, start, digest)
        path = tmp_path / f"{number}.so"
        path.write_bytes(changed)
        codes.append(cli.execute(["profile", str(path), "--runs", "1"]))
    assert set(codes) <= {0, 2}
    assert 2 in codes
