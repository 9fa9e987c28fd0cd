"""Strangers at the meeting place of the ranks of one host do no harm, under sanitizers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from library import RACES, WATCHED, build_whole

from tests.processes import finished

PARTS = ("alloc", "clock", "memory", "packet", "proof", "rendezvous", "sha256", "status")
SCENARIOS = (
    "other_user", "other_user_stays", "hidden_name", "silence", "impostor", "altered", "replayed",
    "other_file",
)  # fmt: skip


@pytest.fixture(scope="module", params=[WATCHED, RACES], ids=["addresses", "races"])
def program(
    request: pytest.FixtureRequest,
    objects_of: Callable[..., list[Path]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("strangers")
    objects = objects_of(*request.param, only=PARTS)
    return build_whole(folder, "strangers", objects, *request.param)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_strangers_harm_nobody(program: Path, scenario: str) -> None:
    process = finished(program, scenario)
    if process.returncode == 77:
        pytest.skip(process.stderr.strip())
    assert (process.returncode, process.stdout) == (0, "ok\n"), process.stderr[-3000:]


def test_all_scenarios_are_run() -> None:
    text = Path(__file__).with_name("strangers.c").read_text()
    assert set(re.findall(r'\{"(\w+)", \1\}', text)) == set(SCENARIOS)
