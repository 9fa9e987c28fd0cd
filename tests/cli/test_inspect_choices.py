"""`tcc inspect --choices` lists decisions and checks its flags."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from tcc.cli.inspect import inspect
from tcc.errors import UserError

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 64] x, float[64, 32] w) => (float[n, 32] y) {
  a = MatMul(x, w)
  y = Softmax(a)
}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


def output(*arguments: str | Path) -> str:
    result = CliRunner().invoke(inspect, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_json_lines_name_sites_alternatives_and_reasons(model: Path) -> None:
    rows = [json.loads(line) for line in output(model, "--choices", "--json").splitlines()]
    for row in rows:
        assert {"site", "alternative", "kind", "reason", "rule", "alternatives", "text"} <= {*row}
        assert row["alternative"] in [a["text"] for a in row["alternatives"]]
    assert "schedule" in {row["kind"] for row in rows}


def test_few_schedules_of_a_kernel_are_listed_unless_all_are(model: Path) -> None:
    def counts(*flags: str) -> list[int]:
        lines = output(model, "--choices", "--kind", "schedule", "--json", *flags).splitlines()
        return [len(json.loads(line)["alternatives"]) for line in lines]

    assert max(counts()) <= 16
    assert all(few <= every for few, every in zip(counts(), counts("--all"), strict=True))


def test_alternatives_are_compared_only_on_request(model: Path) -> None:
    def marks(*flags: str) -> list[bool | None]:
        lines = output(model, "--choices", "--json", "--kind", "join", *flags).splitlines()
        rows = map(json.loads, lines)
        return [
            option["same_kernel"]
            for row in rows
            for option in row["alternatives"]
            if option["text"] != row["alternative"] and option["seconds"] is not None
        ]

    assert {*marks()} == {None}
    assert {*marks("--compare")} == {False}


def test_a_choice_is_marked_in_the_text(model: Path) -> None:
    text = output(model, "--choices", "--kind", "schedule")
    assert text.startswith("schedule ")
    assert "\n  * Knobs(" in text
    assert text.rstrip().endswith("decisions")


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["--kind", "join"], "--kind"),
        (["--all"], "--all"),
        (["--compare"], "--compare"),
        (["--target", "cpu"], "--target"),
        (["--choices", "--kind", "none"], "--kind none"),
    ],
)
def test_flags_that_do_not_fit_are_refused(model: Path, arguments: list[str], where: str) -> None:
    with pytest.raises(UserError) as error:
        output(model, *arguments)
    assert error.value.where == where
