"""Comms of processes on this host: every operation agrees with exact oracles, and every fault is
reported.

The long version is scripts/comm_check.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from library import FAILING, RACES, THREADS, WATCHED, build_whole, run
from tcc.backends.artifact.comm_library import comm_sources

from tests.runtime.interposer import INTERPOSER

SCENARIOS = (
    "dies_in_operation", "dies_before_open", "dies_while_opening", "dies_in_split", "dies_in_group",
    "dies_sending", "dies_after_start", "stops", "closes_early", "closes_after_start", "aborts",
    "aborts_after_start", "starts", "differ", "differ_in_place", "refused", "outlived",
    "wrong_size", "same_rank", "forks", "cycles", "keeps_subgroups", "differs_in_subgroup",
    "small_files", "unfit", "wrong_arguments", "operates", "reduces_in_scratch", "outlives_close",
    "closes_in_call", "two_die", "dies_in_shrink", "dies_again_and_again", "shrinks_whole",
    "closes_and_shrinks", "leaves_out", "comes_left_out", "shrinks_late",
)  # fmt: skip


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


@pytest.mark.parametrize("ranks", [1, 3])
def test_two_threads_in_one_comm_both_have_an_error(programs: Path, ranks: int) -> None:
    assert run(programs / "crossed", str(ranks)) == "ok\n"


@pytest.mark.parametrize("flags", [RACES, WATCHED], ids=["races", "memory"])
def test_sanitizers_see_nothing_where_threads_meet(
    flags: Sequence[str], objects_of: Callable[..., list[Path]], tmp_path: Path
) -> None:
    program = build_whole(tmp_path, "crossed", objects_of(*flags), *flags)
    for ranks in ("1", "2"):
        assert run(program, ranks, TSAN_OPTIONS="halt_on_error=1") == "ok\n"


def test_ranks_that_are_killed_or_stopped_at_random(programs: Path) -> None:
    assert run(programs / "chaos", "1", "12", "4").startswith("12 trials; all ranks had an error")


SURVIVED = re.compile(r"(\d+) trials, (\d+) ranks ended; the others had a right sum after")


def test_the_others_go_on_when_ranks_end_at_random(programs: Path) -> None:
    """`scripts/runtime_bars --only survivors` measures how soon."""
    match = SURVIVED.match(run(programs / "survivors", "1", "20", "8"))
    assert match is not None
    trials, ended = map(int, match.groups())
    assert trials == 20
    assert ended > trials


@pytest.mark.parametrize("flags", [WATCHED, RACES], ids=["addresses", "races"])
def test_sanitizers_see_nothing_when_ranks_end_at_random(
    flags: tuple[str, ...], objects_of: Callable[..., list[Path]], tmp_path: Path
) -> None:
    program = build_whole(tmp_path, "survivors", objects_of(*flags), *flags)
    assert SURVIVED.match(run(program, "2", "6", "6", TSAN_OPTIONS="halt_on_error=1"))


@pytest.fixture(scope="module")
def failing(
    objects_of: Callable[..., list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("failing")
    return build_whole(folder, "faults", (*objects_of(*WATCHED), INTERPOSER), *FAILING)


@pytest.mark.parametrize(
    "scenario",
    [
        "fails_somewhere", "cycles", "keeps_subgroups", "differs_in_subgroup", "wrong_arguments",
        "operates", "starts", "aborts_after_start", "reduces_in_scratch", "outlives_close",
        "closes_in_call", "two_die", "dies_again_and_again", "shrinks_whole", "leaves_out",
        "comes_left_out", "shrinks_late",
    ],
)  # fmt: skip
def test_sanitizers_see_nothing(failing: Path, scenario: str) -> None:
    assert run(failing, scenario).endswith("ok\n")


# (the error of a call, whether all later calls fail too, one call in how many is tried)
@pytest.mark.parametrize(("error", "on", "every"), [(1, 0, 17), (0, 1, 29)])
def test_calls_to_the_system_fail(failing: Path, error: int, on: int, every: int) -> None:
    assert run(failing, "fails_somewhere", str(error), str(on), str(every)).endswith("ok\n")


def test_many_ranks_of_an_ordinary_user(programs: Path) -> None:
    """scripts/comm_check opens 64 ranks, the maximum."""
    stranger = () if os.geteuid() else ("54321",)
    assert run(programs / "crowded", "12", *stranger) == "ok\n"


def test_arguments_that_cannot_be_right_are_refused(
    objects_of: Callable[..., list[Path]], tmp_path: Path
) -> None:
    assert run(build_whole(tmp_path, "refusals", objects_of(*WATCHED), *WATCHED)) == "ok\n"


def test_ranks_as_threads_have_no_data_race(tmp_path: Path) -> None:
    program = build_whole(tmp_path, "threads", comm_sources(), *THREADS)
    assert run(program, TSAN_OPTIONS="halt_on_error=1") == "ok\n"


def test_a_wait_spins_at_first_and_sleeps_if_its_peer_is_away(
    objects_of: Callable[..., list[Path]], tmp_path: Path
) -> None:
    assert run(build_whole(tmp_path, "spins", objects_of(*WATCHED), *WATCHED)) == "ok\n"
