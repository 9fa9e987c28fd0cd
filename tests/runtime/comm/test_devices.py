"""Comms of ranks with GPUs, over libraries that check every call: operations agree with exact
oracles, and faults are reported."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from library import DEVICE_LIBRARIES, HERE, RACES, WATCHED, build_nccl, build_whole, run

SCENARIOS = tuple(
    re.findall(r'^    \{"(\w+)", \1, ', (HERE / "device_faults.c").read_text(), re.MULTILINE)
)


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Returns the variables of programs over each library."""
    return {name: build_nccl(tmp_path_factory.mktemp(name), name) for name in DEVICE_LIBRARIES}


@pytest.mark.parametrize(("name", "ranks"), [("nccl", 1), ("nccl", 3), ("rccl", 2)])
def test_the_matrix_over_devices(
    programs: Path, variables: dict[str, dict[str, str]], name: str, ranks: int
) -> None:
    command = (programs / "matrix", str(ranks), "short", "shared", name)
    assert run(*command, **variables[name]) == "ok\n"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_faults_of_devices(
    programs: Path, variables: dict[str, dict[str, str]], scenario: str
) -> None:
    assert run(programs / "device_faults", scenario, **variables["nccl"]) == "ok\n"


def test_the_watching_thread_has_no_data_race(
    variables: dict[str, dict[str, str]], objects_of: Callable[..., list[Path]], tmp_path: Path
) -> None:
    program = build_whole(tmp_path, "device_faults", objects_of(*RACES), *RACES)
    for scenario in (
        "dies_in_operation", "comes_late", "aborts", "outlives", "records", "two_threads",
    ):  # fmt: skip
        output = run(program, scenario, TSAN_OPTIONS="halt_on_error=1", **variables["nccl"])
        assert output == "ok\n"


def test_sanitizers_see_nothing_of_devices(
    variables: dict[str, dict[str, str]], objects_of: Callable[..., list[Path]], tmp_path: Path
) -> None:
    program = build_whole(tmp_path, "device_faults", objects_of(*WATCHED), *WATCHED)
    suppressions = tmp_path / "leaks.txt"  # leaks of the stand-ins
    suppressions.write_text("leak:libnccl.so\nleak:CUDA.so\n")
    watched = {"LSAN_OPTIONS": f"suppressions={suppressions}:print_suppressions=0"}
    for scenario in ("fails_somewhere", "outlives"):
        assert run(program, scenario, **watched, **variables["nccl"]) == "ok\n"
