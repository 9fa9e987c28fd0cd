"""Ranks meet over TCP under the address sanitizer, and report everything that may go wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from library import RACES, WATCHED, build_whole, run

PARTS = (
    "address", "alloc", "clock", "exchange", "gather", "proof", "sha256", "status", "visit", "wire",
)  # fmt: skip
SCENARIOS = (
    "agrees", "wrong_token", "without_token", "stale_epoch", "restarts", "differ", "same_rank",
    "silence", "taken", "leaves", "own_name", "all_addresses", "patience", "both_kinds",
    "slow_name", "no_name", "elsewhere", "replays", "altered", "dies", "hostile", "garbled",
)  # fmt: skip


Objects = Callable[..., list[Path]]


def build(folder: Path, objects_of: Objects, *flags: str) -> Path:
    return build_whole(folder, "exchanges", objects_of(*flags, only=PARTS), *flags)


@pytest.fixture(scope="module")
def program(objects_of: Objects, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("exchange"), objects_of, *WATCHED)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ranks_meet_or_say_why_not(program: Path, scenario: str) -> None:
    assert run(program, scenario) == "ok\n"


def test_look_ups_beside_have_no_data_race(objects_of: Objects, tmp_path: Path) -> None:
    racing = build(tmp_path, objects_of, *RACES)
    for scenario in ("own_name", "all_addresses", "slow_name"):
        assert run(racing, scenario, TSAN_OPTIONS="halt_on_error=1") == "ok\n"


def test_all_scenarios_are_run() -> None:
    text = Path(__file__).with_name("exchanges.c").read_text()
    assert set(re.findall(r'\{"(\w+)", \w+\}', text)) == set(SCENARIOS)
