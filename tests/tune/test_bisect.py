"""Bisection names exactly the failing choices, for any failures."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from tcc.tune.bisect import culprits

CHOICES = {f"{n:02}": f"text {n}" for n in range(13)}


def named(bad: set[str], together: bool = False) -> tuple[dict[str, str], int]:
    """Returns the outcomes by site, and the number of trials."""
    trials = 0

    def fails(choices: Mapping[str, str]) -> tuple[str, str] | None:
        nonlocal trials
        trials += 1
        if bad <= choices.keys() if together else bad & choices.keys():
            return "wrong", "planted"
        return None

    failure = fails(CHOICES)
    assert failure is not None
    found_culprits = list(culprits(CHOICES, failure, fails))
    assert len({site for site, _, _ in found_culprits}) == len(found_culprits)
    assert all("planted" in why for _, _, why in found_culprits)
    return {site: outcome for site, outcome, _ in found_culprits}, trials


def test_every_single_culprit_is_named() -> None:
    for site in CHOICES:
        outcomes, trials = named({site})
        assert outcomes == {site: "wrong"}
        assert trials <= 1 + 2 * 4


def test_several_culprits_are_named() -> None:
    random = Random(0)
    for _ in range(50):
        bad = {*random.sample(sorted(CHOICES), random.randint(1, 6))}
        assert named(bad)[0] == dict.fromkeys(bad, "wrong")


def test_choices_that_fail_only_together_are_all_named() -> None:
    outcomes, _ = named({"00", "12"}, together=True)
    assert outcomes.keys() >= {"00", "12"}
