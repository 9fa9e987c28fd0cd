"""The comparison of sums fails where it must."""

from __future__ import annotations

import numpy as np
import pytest

from .closeness import assert_within

EXACT = [0.0, 1.0, np.nan, -np.inf]


def test_elements_within_their_bounds_agree() -> None:
    assert_within([1e-8, 1.0, np.nan, -np.inf], EXACT, [1e-7, 0, 0, 0])
    assert_within(np.zeros((0, 3)), np.zeros((0, 3)), 0)


@pytest.mark.parametrize(
    ("place", "value"), [(0, 2e-7), (0, np.nan), (1, np.inf), (2, 1.0), (3, np.inf), (3, np.nan)]
)
def test_an_element_that_is_off_is_named(place: int, value: float) -> None:
    values = [*EXACT]
    values[place] = value
    with pytest.raises(AssertionError, match=rf"1 of 4 elements .* the one at \({place},\) is"):
        assert_within(values, EXACT, 1e-7)


def test_shapes_agree() -> None:
    with pytest.raises(AssertionError):
        assert_within([0.0], 0.0, 1)
