"""Alternatives near the best price are selected for measurement."""

from __future__ import annotations

from typing import Any

import pytest
from tcc.passes.choose.near import near, predicted
from tcc.schedule.alternatives import IMPOSSIBLE, Alternative, Decision, Seconds, Site


def decision(choice: str, **prices: float) -> Decision[Any]:
    options = [Alternative(name, Seconds(price), name=name) for name, price in prices.items()]
    (option_chosen,) = [option for option in options if option.name == choice]
    return Decision(Site("join", "x"), options[0], tuple(options[1:]), option_chosen, "")


@pytest.mark.parametrize(
    ("choice", "prices", "expected", "seconds"),
    [
        ("a", {"a": 10.0, "b": 12.9, "c": 13.1, "d": 11.0}, ["d", "b"], 10.0),
        ("b", {"a": 10.0, "b": 20.0}, ["a"], 20.0),
        # Price differences: an alternative is near if its difference is equal, or if the choice was
        # not the best.
        ("a", {"a": 0.0, "b": 1e-9}, [], 0.0),
        ("b", {"a": 0.0, "b": 5.0}, ["a"], 5.0),
        ("a", {"a": -10.0, "b": 0.0, "c": -8.0}, ["c"], 10.0),
        ("a", {"a": 2.0, "b": float(IMPOSSIBLE)}, [], 2.0),  # type: ignore[arg-type]
        ("a", {"a": 7.0}, [], 7.0),
    ],
)
def test_alternatives_within_a_part_of_the_best_price_are_near(
    choice: str, prices: dict[str, float], expected: list[str], seconds: float
) -> None:
    row = decision(choice, **prices)
    assert near(row, 0.3) == expected
    assert predicted(row) == seconds


def test_equal_texts_count_once() -> None:
    options = [Alternative(n, Seconds(1.0), name="same") for n in range(3)]
    choice = Alternative(9, Seconds(1.0), name="choice")
    assert near(Decision(Site("cut", "x"), choice, tuple(options), choice, ""), 0.3) == ["same"]


def test_impossible_alternatives_are_never_near() -> None:
    options = tuple(Alternative(n, IMPOSSIBLE, name=n) for n in "bc")
    choice = Alternative("a", IMPOSSIBLE, name="a")
    row = Decision(Site("order", "x"), choice, options, choice, "")
    assert near(row, 0.3) == []
    assert predicted(row) == 0.0
