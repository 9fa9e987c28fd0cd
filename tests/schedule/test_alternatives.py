"""The one comparison of prices: the least, the first of equals, and what a change must save."""

from __future__ import annotations

from itertools import permutations

import pytest
from tcc.schedule.alternatives import Alternative, in_order, preferred


def priced(*prices: float) -> list[Alternative[str, int]]:
    return [Alternative("region", n, price) for n, price in enumerate(prices)]


@pytest.mark.parametrize(
    ("prices", "margin", "taken"),
    [
        ((10, 9.7, 9.5), 0.1, 0),
        ((10, 9.7, 9.5), 0.04, 2),
        ((10, 9, 8), 0.2, 0),  # exactly the margin is not more than the margin
        ((10, 9, 9), 0.05, 1),
        ((10, 10), 0.0, 0),
        ((float("inf"), 3.0), 0.1, 1),
        ((float("inf"), float("inf")), 0.1, 0),
        ((10,), 0.1, 0),
    ],
)
def test_another_than_the_rule_has_to_save_the_margin(
    prices: tuple[float, ...], margin: float, taken: int
) -> None:
    rule, *others = priced(*prices)
    assert preferred(rule, others, margin).replacement == taken


def test_the_cheapest_comes_first_and_equals_stay_in_order() -> None:
    for prices in permutations((3.0, 1.0, 2.0, 1.0)):
        found = [each.replacement for each in in_order(priced(*prices))]
        assert found == sorted(range(4), key=lambda n: (prices[n], n))
