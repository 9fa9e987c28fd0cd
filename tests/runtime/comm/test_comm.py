"""Comms of processes on this host: every operation against exact oracles, and every fault.

The long version is scripts/comm_check.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from library import FAILING, HERE, build_objects, build_program, run

SCENARIOS = (
    "dies_in_operation", "dies_before_open", "dies_while_opening", "dies_in_split", "dies_in_group",
    "dies_sending", "stops", "closes_early", "aborts", "differ", "differ_in_place", "refused",
    "outlived", "wrong_size", "same_rank", "forks", "cycles", "small_files",
    "unfit", "wrong_arguments",
)  # fmt: skip


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of matrix and faults, with sanitizers."""
    folder = tmp_path_factory.mktemp("sanitized")
    flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    objects = build_objects(folder / "objects", *flags)
    for name in ("matrix", "faults"):
        build_program(folder, name, objects, *flags)
    return folder


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_the_matrix(programs: Path, ranks: int) -> None:
    assert run(programs / "matrix", str(ranks), "short") == "ok\n"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_faults(programs: Path, scenario: str) -> None:
    assert run(programs / "faults", scenario) == "ok\n"


def test_all_scenarios_are_run() -> None:
    text = Path(__file__).with_name("faults.c").read_text()
    named = re.findall(r'^    \{"(\w+)", \1, ', text, re.M)
    assert sorted(SCENARIOS) == sorted([*named, "differ"])


def test_ranks_that_are_killed_or_stopped_at_random(programs: Path) -> None:
    assert run(programs / "chaos", "1", "12", "4").startswith("12 trials; all ranks had an error")


def test_every_call_to_the_system_may_fail(tmp_path: Path) -> None:
    objects = build_objects(tmp_path / "objects", "-O1", *FAILING)
    program = build_program(tmp_path, "faults", objects, "-O1", "-DFAILING")
    assert run(program, "fails_somewhere") == "ok\n"


def test_ranks_as_threads_have_no_data_race(tmp_path: Path) -> None:
    flags = ("-O1", "-g", "-fsanitize=thread")
    once = ("-include", str(HERE / "one_mapping.h"))
    objects = build_objects(tmp_path / "objects", *flags, *once)
    program = build_program(tmp_path, "threads", objects, *flags)
    assert run(program, TSAN_OPTIONS="halt_on_error=1") == "ok\n"


@pytest.mark.parametrize(
    ("program", "arguments"), [("matrix", ("2", "short")), ("faults", ("cycles",))]
)
def test_sanitizers(sanitized: Path, program: str, arguments: tuple[str, ...]) -> None:
    assert run(sanitized / program, *arguments) == "ok\n"
