"""Turns on a disturbed machine are repeated while patience lasts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from peaks import undisturbed


class Looks:
    """A watch that answers from two lists."""

    def __init__(self, calm: list[bool], patient: list[bool]) -> None:
        self.answers, self.waits = calm, patient

    def calm(self) -> bool:
        return self.answers.pop(0)

    def patient(self) -> bool:
        return self.waits.pop(0)


def taken(looks: Any, turns: list[float]) -> tuple[float, bool]:
    return undisturbed(lambda: turns.pop(0), looks)


def test_a_disturbed_measurement_is_repeated() -> None:
    # disturbed before: not run; disturbed after: run again; calm
    looks = Looks([False, True, False, True, True], [True, True])
    assert taken(looks, [9.0, 1.0]) == (1.0, True)
    assert (looks.answers, looks.waits) == ([], [])


def test_without_patience_a_disturbed_turn_counts() -> None:
    looks = Looks([False, True, True, False], [False, False, False])
    turns = [3.0, 2.0]
    assert [taken(looks, turns), taken(looks, turns)] == [(3.0, False), (2.0, False)]
