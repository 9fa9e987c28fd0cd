"""`scripts/predictions`: its rows are the output of `tcc inspect --measure`, and its shares count
them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tcc.cli.commands import execute
from tcc.options import read_options

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from predicted import Prediction, operator_cases, predictions, summary


def test_rows_are_those_of_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [case for case in operator_cases(tmp_path) if case.name == "softmax 64"]
    assert [size for case in cases for size in case.shapes] == ["28", "65", "199"]
    case = cases[0]
    rows = list(predictions(case, read_options({"jobs": 1}), [1], tmp_path))
    assert {row.sizes for row in rows} == set(case.shapes)
    artifact = str(tmp_path / f"{case.source.stem}.so")
    for size, shapes in case.shapes.items():
        inputs = [f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items()]
        options = ["--measure", "--runs", "1", "--threads", "1", "--json", "--input", *inputs]
        assert execute(["inspect", artifact, *options]) == 0
        printed = json.loads(capsys.readouterr().out)
        expected = {row["name"]: row["predicted"] / row["launches"] for row in printed}
        predicted_times = {row.kernel: row.predicted for row in rows if row.sizes == size}
        assert predicted_times == pytest.approx(expected)


def test_times_are_kept_with_the_artifact(tmp_path: Path) -> None:
    case = next(case for case in operator_cases(tmp_path) if case.name == "softmax 64")
    options = read_options({"jobs": 1})
    first = list(predictions(case, options, [1], tmp_path))
    assert list(predictions(case, options, [1], tmp_path)) == first
    (stored_times,) = tmp_path.glob("*.json")
    stored_times.write_text(stored_times.read_text().replace('"digest": "', '"digest": "0'))
    again = list(predictions(case, options, [1], tmp_path))
    assert [row.predicted for row in again] == [row.predicted for row in first]
    assert [row.measured for row in again] != [row.measured for row in first]


def test_shares_are_of_long_kernels() -> None:
    times = [(70e-6, 100e-6), (140e-6, 100e-6), (69e-6, 100e-6), (141e-6, 100e-6), (None, 30e-6)]
    short = [(1e-6, 19e-6)] * 9
    rows = [Prediction("a", "1", 2, f"k{n}", *pair) for n, pair in enumerate(times + short)]
    lines = [line.split() for line in summary(rows)]
    assert lines[1] == ["a", "1", "5", "40%", "1.05"]
    assert lines[2] == ["together", "5", "40%", "1.05"]
