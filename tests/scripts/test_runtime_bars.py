"""Figures of `scripts/runtime_bars` have the right verdicts, table and exit code."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from comm_times import CollectiveTimes

from bars.figures import Figure, absent, at_least, at_most
from bars.speed import _outcome, _peers, _tcc_times

MIB = 1 << 20


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr("environment.enter", lambda *extras: None)
    loader = SourceFileLoader("runtime_bars", str(SCRIPTS / "runtime_bars"))
    spec = importlib.util.spec_from_loader("runtime_bars", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (at_most("x", 25.0, 25, "ns"), "met"),
        (at_most("x", 25.1, 25, "ns"), "MISSED"),
        (at_least("x", 0.75, 0.75), "met"),
        (at_least("x", 0.74, 0.75), "MISSED"),
        (absent("x", "<= 1", "no torch"), "not here"),
    ],
)
def test_a_figure_says_whether_its_bar_is_met(figure: Figure, verdict: str) -> None:
    assert figure.row().endswith(f" {verdict}")


@pytest.mark.parametrize(("value", "code"), [(1.2, 0), (1.4, 1)])
def test_a_missed_bar_is_the_exit_code(
    script: ModuleType, value: float, code: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def measure(folder: Path) -> Iterator[Figure]:
        assert folder.is_dir()
        yield at_most("two processes", value, 1.3)
        yield absent("beside Gloo", ">= 5", "not installed")

    monkeypatch.setattr(script, "MEASURES", {"processes": measure})
    monkeypatch.setattr(sys, "argv", ["runtime_bars", "--only", "processes"])
    assert script.main() == code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2


def test_a_collective_is_compared_at_its_worst_size_with_the_best_peer() -> None:
    sizes = [4 << 10, 64 << 10, MIB, 8 * MIB, 32 * MIB]
    flat = dict.fromkeys(sizes, 2.0)
    times = CollectiveTimes(
        dict(zip(sizes, (1.0, 10.0, 61.0, 700.0, 3000.0), strict=True)),
        {
            "copy": flat | {32 * MIB: 0.7},
            "symmetric": flat | {32 * MIB: 0.5},
            "gloo": flat | {MIB: 4.0},
            "MPI of a": flat | {MIB: 1.0},
            "MPI of b": flat | {MIB: 3.0, 4 << 10: 1.5},
        },
    )
    assert [f.met for f in _tcc_times(times)] == [True, True, False, True, False, True]
    gloo, mpi = _peers(times)
    assert (gloo.value, gloo.met) == ("2 (4 KiB)", False)
    assert (mpi.value, mpi.met) == ("1 (1024 KiB)", False)


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("matrix, 2 ranks over /usr/lib/libmpi.so.40: ok: 3 ranks\n", "met"),
        ("chaos: FAILED rank 1: no answer\n", "MISSED"),
        ("two hosts: not here: no network namespaces\n", "not here"),
    ],
)
def test_a_line_of_comm_check_is_a_figure(line: str, verdict: str) -> None:
    figure = _outcome(line)
    assert figure.what == line.partition(":")[0]
    assert figure.row().endswith(f" {verdict}")
