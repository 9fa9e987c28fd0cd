"""`tcc verify` compares results correctly."""

import numpy as np
import pytest
from tcc.runtime.compare import compare

WANT = np.array([1.0, -200.0, 3.0], np.float32)


def test_errors_are_relative_to_the_largest_expected_value() -> None:
    found = compare("y", WANT + np.float32(0.01), WANT, 1e-4)
    assert found.ok
    assert found.error == pytest.approx(5e-5, rel=1e-2)
    assert not compare("y", WANT + np.float32(0.03), WANT, 1e-4).ok


@pytest.mark.parametrize(
    "got",
    [
        WANT[:2],
        WANT.astype(np.float64),
        WANT[None],
        np.array([np.nan, -200, 3], np.float32),
        np.array([np.inf, -200, 3], np.float32),
    ],
)
def test_other_shapes_types_and_infinities_are_wrong(got: np.ndarray) -> None:
    assert not compare("y", got, WANT, 1e-4).ok


@pytest.mark.parametrize(("at", "largest"), [(0, 1 << 21), (5 << 19, 0), (-1, 1 << 20)])
def test_long_outputs_are_compared_whole(at: int, largest: int) -> None:
    want = np.ones((3, 1 << 20), np.float32)
    want.flat[largest] = 100
    got = want.copy()
    got.flat[at] += 1
    assert compare("y", got, want, 1e-3).error == pytest.approx(0.01)
    got.flat[at] = np.nan
    assert not compare("y", got, want, 1e-3).ok


def test_infinities_and_nan_keep_their_places_and_signs() -> None:
    want = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert compare("y", want.copy(), want, 1e-4).ok
    assert not compare("y", -want, want, 1e-4).ok
    assert not compare("y", np.roll(want, 1), want, 1e-4).ok


def test_integers_must_be_equal() -> None:
    want = np.array([1, 2, 3, 4])
    assert compare("y", want.copy(), want, 1e-4).ok
    found = compare("y", np.array([1, 2, 3, 5]), want, 1e-4)
    assert not found.ok
    assert found.error == 0.25


def test_empty_and_zero_outputs_agree() -> None:
    for want in (np.zeros((0, 3), np.float32), np.zeros(3, np.float32), np.zeros(0, np.int64)):
        assert compare("y", want.copy(), want, 1e-4).ok
    assert not compare("y", np.ones(3, np.float32), np.zeros(3, np.float32), 1e-4).ok
