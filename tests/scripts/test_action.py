"""GitHub's action: its file is valid, and its steps run here with a stand-in for `gh`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / ".github" / "actions" / "tcc"
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[8, 16] x, float[16, 4] w) => (float[8, 4] y) {
  a = MatMul(x, w)
  y = Softmax(a)
}
"""
# Answers a request for comments with the file `comments`, and records all other requests.
GH = """#!{python}
import json, os, sys
words = sys.argv[1:]
if "--jq" in words:
    first = os.environ["FIRST_LINE"]
    for number, body in json.load(open("comments")):
        if body.startswith(first):
            print(number)
else:
    field = words[words.index("--field") + 1]
    assert field.startswith("body=@"), field
    json.dump([words[2], words[3], open(field[6:]).read()], open("request", "w"))
"""


def action() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((ACTION / "action.yml").read_text())
    return parsed


def step(name: str) -> dict[str, Any]:
    (match,) = (item for item in action()["runs"]["steps"] if item["name"] == name)
    return dict(match)


def perform(name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the script of a step in `folder`, as GitHub runs it."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "gh").write_text(GH.format(python=sys.executable))
    (tools / "gh").chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    script = step(name)["run"]
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "ACTION": str(ACTION), **variables},
        text=True,
        capture_output=True,
        check=False,
    )


def check(folder: Path, options: str = "", model: str = "model.onnx") -> tuple[int, str]:
    """Runs the check; returns its exit code and the report."""
    process = perform("Check", folder, MODEL=model, OPTIONS=options, GATE="1000",
                   GITHUB_STEP_SUMMARY="summary.md")  # fmt: skip
    assert "Traceback" not in process.stdout + process.stderr
    return process.returncode, (folder / "build" / "tcc-report.md").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "model.onnx")
    return tmp_path


def test_the_file_is_a_composite_action_whose_scripts_get_inputs_by_variables() -> None:
    parsed = action()
    assert parsed["runs"]["using"] == "composite"
    steps = parsed["runs"]["steps"]
    for item in steps:
        assert ("run" in item) != ("uses" in item)
        if "run" in item:
            assert item["shell"] == "bash"
            assert "${{" not in item["run"], "an input could be run as a command"
    text = (ACTION / "action.yml").read_text()
    assert set(re.findall(r"inputs\.(\w+)", text)) == parsed["inputs"].keys()
    assert {"model"} == {n for n, item in parsed["inputs"].items() if item.get("required")}
    writing_steps = [item for item in steps if "default_branch" in item.get("if", "")]
    assert len(writing_steps) == 2
    assert all("event_name == 'push'" in item["if"] for item in writing_steps)


def test_the_check_compiles_verifies_and_compares(folder: Path) -> None:
    code, report = check(folder)
    assert code == 0, report
    assert report.count("passed") == 2
    assert "no base is stored yet" in report
    assert (folder / "summary.md").read_text() == report
    assert perform("Make the artifact the base", folder).returncode == 0
    code, report = check(folder)
    assert code == 0, report
    assert report.count("passed") == 3
    assert re.search(r"^\|.*\|$", report, re.MULTILINE), "the comparison is a table"


def test_a_wrong_option_fails_the_check_and_is_in_the_report(folder: Path) -> None:
    code, report = check(folder, "--precision f7")
    assert code == 2
    assert "**Compile**: failed with exit code 2" in report
    assert "f7" in report
    assert "**Verify**" not in report


def test_no_text_of_a_command_closes_its_block(folder: Path) -> None:
    code, report = check(folder, model="a```b.onnx")
    assert code == 2
    fences = [line for line in report.splitlines() if line.startswith("````")]
    assert len(fences) == 4


@pytest.mark.parametrize("old", [False, True])
def test_a_report_replaces_the_older_report_of_its_model(folder: Path, old: bool) -> None:
    (folder / "build").mkdir()
    text = "<!-- tcc 0123 -->\nnew\n"
    (folder / "build" / "tcc-report.md").write_text(text)
    other_comments = [(7, "thanks"), (8, "<!-- tcc 9999 -->\nof another model")]
    comments = [*other_comments, *([(9, "<!-- tcc 0123 -->\nold")] if old else [])]
    (folder / "comments").write_text(json.dumps(comments))
    process = perform("Comment", folder, GITHUB_REPOSITORY="o/r", NUMBER="5", GH_TOKEN="t")
    assert process.returncode == 0, process.stderr
    place = (
        ["PATCH", "repos/o/r/issues/comments/9"] if old else ["POST", "repos/o/r/issues/5/comments"]
    )
    assert json.loads((folder / "request").read_text()) == [*place, text]


def test_options_with_commas_and_blanks_name_a_base(folder: Path) -> None:
    keys = set[str]()
    for options in ("--cpu x86-64-v3", "--input x=1,2"):
        output = folder / "output"
        output.write_text("")
        process = perform("Name the base", folder, MODEL="m.onnx", OPTIONS=options,
                       GITHUB_OUTPUT=str(output))  # fmt: skip
        assert process.returncode == 0
        assert re.fullmatch(r"key=tcc-base-[0-9a-f]{16}\n", output.read_text())
        keys.add(output.read_text())
    assert len(keys) == 2
