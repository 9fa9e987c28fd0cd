"""Ranks that meet over TCP, under the address sanitizer, with all that may go wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from library import WATCHED, build_whole, run
from tcc.backends.artifact.comm_library import comm_sources

PARTS = ("alloc", "clock", "exchange", "status")
SCENARIOS = (
    "agrees", "wrong_token", "stale_epoch", "restarts", "differ", "same_rank", "silence", "taken",
    "dies", "hostile", "garbled",
)  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [path for path in comm_sources() if path.stem in PARTS]
    return build_whole(tmp_path_factory.mktemp("exchange"), "exchanges", sources, *WATCHED)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ranks_meet_or_say_why_not(program: Path, scenario: str) -> None:
    assert run(program, scenario) == "ok\n"


def test_all_scenarios_are_run() -> None:
    text = Path(__file__).with_name("exchanges.c").read_text()
    assert set(re.findall(r'\{"(\w+)", \1\}', text)) == set(SCENARIOS)
