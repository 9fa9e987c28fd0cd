"""`tcc bench` reports times correctly on a machine that is busy with other work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tcc import cli
from tcc.cli import bench
from tcc.runtime.interleaved import Times

CALM = Times(0.99e-3, 1.01e-3, (1.0e-3, 1.02e-3, 1.1e-3, 1.0e-3, 1.0e-3), 50)
SMALL = ("--input", "x=7xf32=1")
BUSY = Times(1.98e-3, 2.6e-3, (2.0e-3, 2.6e-3, 2.1e-3, 4.0e-3, 2.3e-3), 50)


class Idle:
    """A peer that is never called."""

    def __init__(self, kind: str, *_: object, **__: object) -> None:
        self.kind = kind

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Times]:
    """Replaces measurements by the returned dict, which a test fills with times."""
    times: dict[str, Times] = {}

    def given(*_: Any, **__: Any) -> Mapping[str, Times]:
        return times

    monkeypatch.setattr(bench, "Peer", Idle)
    monkeypatch.setattr(bench, "interleaved", given)
    return times


def test_rounds_over_a_ninth_longer_than_the_best_scatter() -> None:
    assert CALM.scattered == 0
    assert BUSY.scattered == 3


def test_calm_rounds_need_no_words(
    artifact: Path, timed: dict[str, Times], capsys: pytest.CaptureFixture[str]
) -> None:
    timed["tcc"] = CALM
    assert cli.execute(["bench", str(artifact), *SMALL]) == 0
    assert "busy" not in capsys.readouterr().out


def test_scattered_rounds_are_told(
    artifact: Path,
    timed: dict[str, Times],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    timed |= {"tcc": CALM, "ort": BUSY}
    assert cli.execute(["bench", str(artifact), *SMALL]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert line.startswith("ONNX Runtime: 3 of 5 rounds")
    assert "best 2.000 ms, median 2.600 ms" in line
    assert cli.execute(["bench", str(artifact), *SMALL, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [answer["seconds"][kind]["scattered"] for kind in ("tcc", "ort")] == [0, 3]
    assert answer["ratio"] == pytest.approx(2.3)  # the median of 2, 2.55, 1.91, 4 and 2.3
    assert answer["best_ratio"] == pytest.approx(2.0)


def test_the_table_has_both_ratios(
    artifact: Path, timed: dict[str, Times], capsys: pytest.CaptureFixture[str]
) -> None:
    timed |= {"tcc": CALM, "ort": BUSY}
    assert cli.execute(["bench", str(artifact), *SMALL]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.endswith("2.00x"))
    assert row.split()[-3:] == ["50", "2.30x", "2.00x"]
