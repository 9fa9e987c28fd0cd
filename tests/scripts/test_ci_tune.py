"""`scripts/ci_tune` on a small model: pull requests, shards, the decision, and the template.

Tests that time models run the script and its commands as processes. Other tests run both in this
process, because a process that imports the compiler takes a second to start.
"""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from tcc import cli

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "ci_tune"
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[96, 64] x, float[64, 32] w) => (float[96, 32] y) {
  a = MatMul(x, w)
  y = Softmax(a)
}
"""
LOCK = Path("tcc.lock.json")
START = subprocess.run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    onnx.save(onnx.parser.parse_model(TEXT), "model.onnx")


def run(*words: str) -> int:
    return subprocess.run([sys.executable, str(SCRIPT), *words], check=False).returncode


def in_this_process(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command of tcc in this process, and starts a process for any other command."""
    if tuple(command[:4]) != (sys.executable, "-P", "-m", "tcc"):
        return START(command, **options)
    assert options == {"check": False}
    return subprocess.CompletedProcess(command, cli.execute(command[4:]))


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Returns a function that does the work of `run` in this process."""

    def main(*words: str) -> int:
        with monkeypatch.context() as patches:
            patches.setattr(sys, "argv", [str(SCRIPT), *words])
            patches.setattr(subprocess, "run", in_this_process)
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(SCRIPT), run_name="__main__")
        return int(str(ended.value.code))

    return main


def summary() -> str:
    return Path("summary.md").read_text()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a lock of all choices of the model, and the base's artifact."""
    folder = tmp_path_factory.mktemp("pinned")
    onnx.save(onnx.parser.parse_model(TEXT), folder / "model.onnx")
    (folder / "base").mkdir()
    with contextlib.chdir(folder):
        assert cli.execute(["tune", "model.onnx", "--pin"]) == 0
        words = ["compile", "model.onnx", "-o", "base/model.so", "--tuned", str(LOCK)]
        assert cli.execute(words) == 0
    return folder


@pytest.fixture
def pinned(made: Path, tmp_path: Path) -> None:
    """Copies the files of `made` to the folder of the test."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)


# ---- pull requests ------------------------------------------------------------------------------


def test_an_unchanged_model_passes(pinned: None) -> None:
    assert run("check", "model.onnx", "--base", "base") == 0
    assert Path("build/tuned/model.so").read_bytes() == Path("base/model.so").read_bytes()
    assert "gate 1.05 passes" in summary()


def test_a_planted_slowdown_fails(pinned: None) -> None:
    """Tiles and register blocks of a single row replace the pinned ones."""
    text = LOCK.read_text()
    (section,) = json.loads(text)["targets"]
    (entry,) = (entry for entry in section["entries"] if entry["op"].startswith("schedule"))
    slow = re.sub(r"\(l0, \d+\)", "(l0, 1)", entry["alternative"])
    assert slow != entry["alternative"]
    LOCK.write_text(text.replace(json.dumps(entry["alternative"]), json.dumps(slow)))
    allowed = ("--allow", "bytes", "--allow", "arena", "--allow", "weights")
    assert run("check", "model.onnx", "--base", "base/model.so", *allowed) == 1
    assert "gate 1.05 fails" in summary()
    assert "- time grows from" in summary()


def test_an_incomplete_lock_fails(pinned: None, run_here: Callable[..., int]) -> None:
    text = LOCK.read_text()
    (section,) = json.loads(text)["targets"]
    (site,) = (e["site"] for e in section["entries"] if "CoreKernel" in e["alternative"])
    LOCK.write_text(text.replace(site, "0" * 32))
    assert run_here("check", "model.onnx") == 1
    assert Path("build/tuned/model.so").exists()


def test_wrong_arguments_are_errors(pinned: None, run_here: Callable[..., int]) -> None:
    assert run_here("check", "model.onnx", "--base", "base", "--output", "base") == 2
    assert run_here("check", "model.onnx", "--lock", "absent.json") == 2
    assert run_here("check", "model.onnx", "--", "--cpu", "z80") == 2
    assert run() == 2


# ---- nights -------------------------------------------------------------------------------------


def test_shards_measure_and_a_job_decides() -> None:
    """The machine may be busy, so any verdict is allowed."""
    for number in ("1", "2"):
        words = ("--records", f"shard-{number}.jsonl", "--shard", f"{number}/2", "--time", "2s")
        assert run("measure", "model.onnx", *words) in (0, 1)
    assert sorted(path.name for path in Path().glob("*.json*")) == [
        "shard-1.jsonl",
        "shard-2.jsonl",
    ]
    files = ("--records", "shard-1.jsonl", "shard-2.jsonl")
    assert run("decide", "model.onnx", *files, "--time", "2s", "--table", "table.md") in (0, 1)
    (section,) = json.loads(LOCK.read_text())["targets"]
    entries = section["entries"]
    assert entries
    head, line, *rows = Path("table.md").read_text().splitlines()
    assert head.count("|") == line.count("|") == 6
    assert len(rows) == len(entries)
    for entry in entries:
        assert any(f"| no entry | {entry['verdict']} |" in row for row in rows)
    assert all(row in summary() for row in rows)
    assert run("measure", "model.onnx", "--records", "again.jsonl", "--time", "2s") == 0
    assert Path("again.jsonl").read_bytes() == b""
    assert run("decide", "model.onnx", "--records", "again.jsonl") == 0


def test_the_template_calls_each_command_of_the_script_once() -> None:
    template = (ROOT / "scripts" / "ci_tune.yml").read_text().replace("\\\n", "")
    calls = [line.split() for line in template.splitlines() if "python scripts/ci_tune" in line]
    names = [words[words.index("scripts/ci_tune") + 1] for words in calls]
    assert names == ["check", "measure", "decide"]
    for words in calls:
        assert '"$MODEL"' in words
        assert words[-2:] == ["--", "$OPTIONS"]
    jobs = [line[2:-1] for line in template.splitlines() if re.fullmatch(r"  [a-z]+:", line)]
    assert jobs[-3:] == names
    assert [line for line in template.splitlines() if "git add" in line] == [
        "          git add tcc.lock.json"
    ]
