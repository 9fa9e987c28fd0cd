"""Figures of `scripts/plan_bars`: a run of the planner, its verdict and its row."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from bars import partitions

BAR = partitions.CostBar("G", 60, 217_039, 217_039)


@pytest.mark.skipif(not partitions.DATA.is_dir(), reason="the problems of the contest are missing")
def test_a_run_is_held_against_its_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "table.txt"
    monkeypatch.setattr(partitions, "BARS", (BAR, replace(BAR, most_cost=217_038)))
    monkeypatch.setattr(partitions, "TABLE", table)
    figures = list(partitions.solver(tmp_path))
    assert [figure.met for figure in figures] == [True, False]
    rows = table.read_text().splitlines()[-2:]
    assert [row.split()[:3] for row in rows] == [["G", "217,039", "217,039"]] * 2
    assert [row.split()[-2] for row in rows] == ["met", "MISSED"]


def test_an_invalid_plan_and_too_much_memory_miss() -> None:
    outcome = partitions.SolverOutcome(1, 1, True, 1.0, 1.0, 1 << 20)
    assert partitions._figure(BAR, outcome).met
    assert not partitions._figure(BAR, replace(outcome, valid=False)).met
    assert not partitions._figure(BAR, replace(outcome, bound=2)).met
    assert not partitions._figure(BAR, replace(outcome, memory_bytes=3 << 30)).met
