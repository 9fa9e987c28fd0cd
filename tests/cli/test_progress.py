"""Progress lines, message levels and shell completion, on terminals, dumb terminals and pipes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from rich.cells import cell_len
from tcc import cli
from tcc.cli import progress as module
from tcc.cli.log import LOG
from tcc.cli.progress import Progress, progress
from tcc.debug import Trace
from tcc.driver import compile_model
from tcc.options import read_options
from tcc.passes.pipeline import step_names

from tests.screens import Terminal

SOFTMAX = """<ir_version: 9, opset_import: ["": 17]>
    three (float[3] x) => (float[3] y) { y = Softmax(x) }"""


@pytest.fixture(autouse=True)
def _a_usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLUMNS", "NO_COLOR", "TCC_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(LOG, "level", "")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns model.onnx in a new folder, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(SOFTMAX), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


# ---- text of a line ------------------------------------------------------------------------------


def test_each_stage_of_a_compile_has_words_for_users() -> None:
    stages = {"import", "measure int8", "optimise", "lower", "generate code", "link"}
    assert {*module._WORDS} == stages | {*step_names()}
    assert len(module._STAGES) < 12


def test_a_line_has_a_clock_the_stage_and_the_kernels() -> None:
    seconds = [0.0]
    display = Progress("compiling model.onnx", lambda: seconds[0])
    assert display.line(None) == "0:00  compiling model.onnx"
    display("derive")
    seconds[0] = 75.5
    assert display.line(None) == "1:15  compiling model.onnx: searching for cheaper sums"
    display("cpu:x86-64 (x86-64-v3): generate code", lambda: (34, 112))
    assert display.line(None) == (
        "1:15  compiling model.onnx: cpu:x86-64 (x86-64-v3): generating code, 34 of 112 kernels"
    )
    display("link")
    assert display.line(None) == "1:15  compiling model.onnx: linking"
    display("round 2 of 7")
    assert display.line(None) == "1:15  compiling model.onnx: round 2 of 7"


TITLES = {
    "short": "model.onnx",
    "long": "n" * 3000,
    "wide": "漢字" * 500,
    "control": "\x1b[2J\x07\r\n" * 50,
}


@pytest.mark.parametrize("columns", [10, 60, 80, 200])
@pytest.mark.parametrize("title", TITLES.values(), ids=TITLES)
def test_a_long_title_leaves_room_for_the_stage(title: str, columns: int) -> None:
    display = Progress(title, lambda: 0.0)
    display("generate code", lambda: (34, 112))
    line = display.line(columns)
    assert cell_len(line) <= columns
    assert line.isprintable()
    if columns >= 60:
        assert line.endswith(": generating code, 34 of 112 kernels")


# ---- where progress is shown ---------------------------------------------------------------------


def test_a_terminal_rewrites_one_line_and_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PERIODS", (0.001, 600.0))
    terminal = Terminal(60)
    with terminal.streams(), progress("compiling model.onnx") as stage:
        stage("generate code", lambda: (3, 8))
        terminal.wait_for("compiling model.onnx: generating code, 3 of 8 kernels")
        terminal.wait_for("\r")
    assert terminal.display == []


@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_a_dumb_terminal_gets_lines(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PERIODS", (600.0, 0.001))
    monkeypatch.setenv("TERM", term)
    terminal = Terminal(60)
    with terminal.streams(), progress("compiling model.onnx") as stage:
        stage("generate code", lambda: (3, 8))
        terminal.wait_for(": generating code, 3 of 8 kernels\r\n")
    assert "\x1b" not in terminal.written
    assert re.fullmatch(r"(0:\d\d  compiling model.onnx(: .*)?\r\n)+", terminal.written)


def test_a_pipe_gets_a_line_every_ten_seconds(capfd: pytest.CaptureFixture[str]) -> None:
    """tests/conftest.py sets other periods for the tests, so a new process prints the default
    periods."""
    code = "from tcc.cli.progress import _PERIODS; print(_PERIODS)"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout == "(0.2, 10.0)\n"
    display = Progress("compiling model.onnx")
    display("derive")
    display.show()
    out, err = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(r"0:\d\d  compiling model.onnx: searching for cheaper sums\n", err)


def test_notes_stand_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PERIODS", (0.001, 600.0))
    terminal = Terminal(60)
    with terminal.streams(), progress("tuning model.onnx"):
        terminal.wait_for("tuning model.onnx")
        module.say("waiting for another measurement", err=True)
        terminal.wait_for("waiting")
    assert terminal.display == ["waiting for another measurement"]


def test_a_compile_reports_its_kernels(model: Path, tmp_path: Path) -> None:
    counts: list[tuple[str, Callable[[], tuple[int, int]]]] = []

    def report(stage: str, count: Callable[[], tuple[int, int]] | None = None) -> None:
        if count is not None:
            counts.append((stage, count))

    artifact = compile_model(model, read_options({"jobs": 1}), tmp_path / "m.so", report)
    ((stage, count),) = counts
    assert stage == "generate code"
    assert count() == (artifact.summary.variants[0].kernels,) * 2


def test_a_count_belongs_to_the_stage_that_runs() -> None:
    reports: list[Any] = []
    trace = Trace(progress=lambda *values: reports.append(values))
    with trace.stage("generate code"):
        trace.counting(lambda: (1, 2))
    assert [values[0] for values in reports] == ["generate code"] * 2
    assert reports[1][1]() == (1, 2)
    with Trace().stage("generate code") as nothing:
        assert nothing is None


# ---- levels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["-q", "compile"], ["compile", "-q"], ["compile", "--quiet"]])
def test_a_quiet_compile_prints_nothing(
    words: list[str], model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute([*words, "model.onnx"]) == 0
    assert capfd.readouterr() == ("", "")
    assert Path("model.so").exists()


def test_quiet_commands_print_results_and_errors(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["run", "model.onnx", "-q"]) == 0
    out, err = capfd.readouterr()
    assert (out.startswith("y: float32 3"), err) == (True, "")
    assert cli.execute(["run", "absent.onnx", "-q"]) == 2
    assert capfd.readouterr().err.startswith("error: ")


def test_a_verbose_compile_prints_its_stages(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["compile", "model.onnx", "-v", "--jobs", "1"]) == 0
    out, err = capfd.readouterr()
    assert out.count("\n") == 4
    lines = err.splitlines()
    assert all(re.fullmatch(r" *\d+\.\d\d s  [a-z ]+ \([a-z0-9 -]+\)", line) for line in lines)
    assert lines[0].endswith("reading the model (import)")
    assert lines[-1].endswith("linking (link)")


def test_a_log_of_json_has_an_object_in_each_line(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["run", "model.onnx", "--log-json"]) == 0
    out, err = capfd.readouterr()
    events = [json.loads(line) for line in err.splitlines()]
    assert out.startswith("y: float32 3")
    assert {event["event"] for event in events} == {"stage", "note"}
    assert [e["stage"] for e in events if e["event"] == "stage"][:2] == ["import", "optimise"]
    assert all(event["time"] > 1.7e9 for event in events)
    assert any(e["event"] == "note" and "random values" in e["text"] for e in events)
    for words, text in (
        (["run", "absent.so"], "cannot be read"),
        (["run"], "Missing argument"),
        (["compile", "m.onnx", "--target", "nothing"], "nothing"),
    ):
        assert cli.execute([*words, "--log-json"]) == 2
        (event,) = map(json.loads, capfd.readouterr().err.splitlines())
        assert (event["event"], event["exit_code"]) == ("error", 2)
        assert text in event["text"]


def test_the_variable_sets_the_level_and_flags_take_precedence(
    model: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCC_LOG", "quiet")
    assert cli.execute(["run", "model.onnx"]) == 0
    assert capfd.readouterr().err == ""
    assert cli.execute(["run", "model.onnx", "--log-json"]) == 0
    assert capfd.readouterr().err.startswith("{")
    monkeypatch.setenv("TCC_LOG", "loud\x1b[31m")
    assert cli.execute(["doctor"]) == 2
    assert capfd.readouterr() == (
        "",
        "error: there is no such level of messages\n  at: TCC_LOG=loud\\x1b[31m\n"
        "  to do: set it to quiet, verbose, json, or unset it\n",
    )
    monkeypatch.delenv("TCC_LOG")
    assert cli.execute(["run", "model.onnx"]) == 0
    assert "random values" in capfd.readouterr().err


# ---- completion ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("tcc comp", "compile completion"),
        ("tcc compile --ta", "--target"),
        ("tcc completion z", "zsh"),
        ("tcc --log", "--log-json"),
    ],
)
def test_bash_completes_with_the_script(words: str, found: str, tmp_path: Path) -> None:
    """`tcc` is here a script that starts this Python."""
    program = tmp_path / "tcc"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tcc "$@"\n')
    program.chmod(0o755)
    script = (
        f"PATH={tmp_path}:$PATH; source <(tcc completion bash); COMP_WORDS=({words}); "
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tcc_completion tcc; echo ${COMPREPLY[@]}"
    )
    process = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout.strip(), process.stderr) == (0, found, "")


def test_a_completion_ends_with_exit_code_0() -> None:
    variables = {"_TCC_COMPLETE": "bash_complete", "COMP_WORDS": "tcc comp", "COMP_CWORD": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "tcc"],
        env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == "plain,compile\nplain,completion\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["completion", shell]) == 0
    assert f"_TCC_COMPLETE={shell}_complete" in capsys.readouterr().out
    assert cli.execute(["completion", "cmd"]) == 2
    assert "'cmd' is not one of" in capsys.readouterr().err


def test_commands_are_completed_without_importing_them() -> None:
    code = (
        "import sys; from tcc.cli.commands import cli; import click;"
        "print([i.value for i in cli.shell_complete(click.Context(cli), 'pro')], "
        "[m for m in sys.modules if m in ('numpy', 'tcc.cli.profile')])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout == "['profile'] []\n"
