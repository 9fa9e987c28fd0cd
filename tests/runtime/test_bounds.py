"""Bounds of medians hold as often as they claim, on distributions with a known median."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.runtime.bounds import median_bound


@pytest.mark.parametrize("rounds", [10, 40])
@pytest.mark.parametrize("spread", [0.01, 0.3])
def test_a_bound_holds_as_often_as_it_says(rounds: int, spread: float) -> None:
    rng = np.random.default_rng(rounds)
    draws = np.exp(spread * rng.standard_t(3, (400, rounds)))  # with outliers; the median is 1
    lower = [median_bound(row.tolist(), 0.95) for row in draws]
    upper = [median_bound(row.tolist(), 0.95, lower=False) for row in draws]
    assert 0.90 < np.mean([bound <= 1 for bound in lower]) < 0.99
    assert 0.90 < np.mean([bound >= 1 for bound in upper]) < 0.99


def test_a_bound_is_between_the_least_ratio_and_the_median() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        ratios = rng.uniform(0.5, 2, 21)
        assert ratios.min() <= median_bound(ratios.tolist(), 0.95) <= np.median(ratios)
        assert np.median(ratios) <= median_bound(ratios.tolist(), 0.95, lower=False)


def test_equal_ratios_are_their_own_bound() -> None:
    assert median_bound([1.25] * 9, 0.95) == 1.25
    assert median_bound([1.25] * 9, 0.95, lower=False) == 1.25


def test_few_rounds_have_no_bound() -> None:
    assert median_bound([2.0] * 4, 0.95) == 0
    assert median_bound([], 0.95, lower=False) == float("inf")


def test_bounds_do_not_change_with_versions() -> None:
    ratios = [1.0 + 0.01 * ((7 * n) % 23) for n in range(23)]
    assert median_bound(ratios, 0.95) == pytest.approx(GOLDEN)


GOLDEN = 1.07
