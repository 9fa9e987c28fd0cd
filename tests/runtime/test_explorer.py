"""The explorer runs the workers' real code in all executions that C11 allows within a budget of
deviations."""

from __future__ import annotations

from pathlib import Path

import pytest
from trials import (
    MISPLACED,
    SCENARIOS,
    UNORDERED,
    WORKERS,
    Fault,
    build_explorer,
    build_explorer_parts,
    explore,
    orders,
)

from tests.once import made_once
from tests.part import takes_all

# Two deviations take long here; scripts/stress explores every scenario with three.
LONG = ("callers", "growing", "narrowing", "settling")


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Builds the objects that all explorers share."""
    return sorted(made_once(tmp_path_factory, "explorer", build_explorer_parts).glob("*.o"))


@pytest.fixture(scope="module")
def explorer(parts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_explorer(tmp_path_factory.mktemp("explorer"), parts=parts)


@pytest.mark.parametrize(("scenario", "deviations"), SCENARIOS.items())
def test_all_executions_hold(explorer: Path, scenario: str, deviations: int) -> None:
    if scenario in LONG and not takes_all():
        deviations -= 1
    holds, text = explore(explorer, scenario, deviations)
    assert holds, text
    assert f"{scenario}, {deviations} deviations: " in text


# scripts/stress plants the other faults
@pytest.mark.parametrize("fault", [*MISPLACED, UNORDERED[0], UNORDERED[4]], ids=lambda f: f.name)
def test_planted_faults_are_found(fault: Fault, parts: list[Path], tmp_path: Path) -> None:
    assert fault.file in WORKERS  # the shared objects stay unchanged
    binary = build_explorer(tmp_path, fault.plant(tmp_path), parts)
    holds, text = explore(binary, fault.scenario, 2)
    assert not holds, text
    assert "does not hold" in text


def test_every_order_has_its_fault(tmp_path: Path) -> None:
    assert orders() == len(UNORDERED)
    for fault in (*MISPLACED, *UNORDERED):
        assert fault.plant(tmp_path / fault.name).is_dir()
