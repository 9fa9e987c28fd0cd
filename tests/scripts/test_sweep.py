"""Sweeps over many cases print the table, check the goal, and set the exit code."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
sys.path.insert(0, str(SCRIPTS / "frameworks"))

import sweep


class Answers:
    """Stands for the worker's process; it knows each case's outcome."""

    def __init__(self, outcomes: Mapping[str, tuple[str, str]]) -> None:
        self._outcomes = outcomes

    def ask(self, name: str) -> list[object]:
        return ["names", [*self._outcomes]] if name == "?" else [*self._outcomes[name]]

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("last", "code"), [(("refused", "no such op"), 0), (("mismatch", "3e-1"), 1)]
)
def test_a_sweep_writes_its_table(
    last: tuple[str, str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers({"bert": ("pass", "1e-7"), "gpt": ("pass", "2e-7"), "t5": last})
    (tmp_path / "scripts" / "results").mkdir(parents=True)
    monkeypatch.setattr(sweep, "ROOT", tmp_path)
    monkeypatch.setattr(sweep, "WorkerProcess", lambda *_: answers)
    monkeypatch.setattr(sys, "argv", ["sweep"])
    one = sweep.CaseSweep("models", "architectures", seconds=1, per_process=1)
    assert one.main("A page.", lambda passed, cases: 2 * passed > cases, "most") == code
    table = (tmp_path / "scripts" / "results" / "models.txt").read_text()
    counts = ", ".join(sorted(["2 pass", f"1 {last[0]}"], key=lambda count: count[2:]))
    assert table.startswith(f"3 architectures: {counts}; 66.7% pass (goal: most)\n")
    assert json.loads((tmp_path / "build" / "models.json").read_text())["t5"] == [*last]
