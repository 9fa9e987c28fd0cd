"""Test folders carry the names of the folders whose modules they test."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
# The runtime's C files lie one folder deeper than its Python modules.
SOURCES = {
    "passes": ("passes",),
    "backends": ("backends",),
    "runtime": ("runtime", "runtime/src"),
    "scripts": ("scripts",),
    "models": ("models",),
}
# Folders that test no source folder: they test the repository, or properties of the whole compiler.
WHOLE = {"arch", "conformance", "e2e", "errors", "fuzz", "lib"}


def folders_with_tests() -> list[str]:
    """Returns the folders below tests/ that hold test files."""
    return sorted({str(p.parent.relative_to(TESTS)) for p in TESTS.rglob("test_*.py")} - {"."})


def homeless(folders: Iterable[str]) -> list[str]:
    """Returns the test folders without a source folder of the same name."""
    missing = []
    for folder in folders:
        room, _, inner = folder.partition("/")
        places = [ROOT / place / inner for place in SOURCES.get(room, (f"compiler/{room}",))]
        if room not in WHOLE and not any(map(Path.is_dir, places)):
            missing.append(folder)
    return missing


def test_each_test_folder_has_a_source_folder() -> None:
    folders = folders_with_tests()
    assert len(folders) > 50
    assert {"passes/tile/gpu", "schedule/cpu", "backends/artifact", "runtime/comm"} <= {*folders}
    assert homeless(folders) == []


def test_a_folder_without_sources_is_found() -> None:
    planted = ["passes/blocks", "schedule/tpu", "runtime/explorer", "express", "passes/tile/gpu"]
    assert homeless(planted) == planted[:-1]
