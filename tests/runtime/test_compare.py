"""`tcc verify` compares results correctly."""

import numpy as np
import pytest
from tcc.runtime.compare import compare

WANT = np.array([1.0, -200.0, 3.0], np.float32)


def test_errors_are_relative_to_the_largest_expected_value() -> None:
    comparison = compare("y", WANT + np.float32(0.01), WANT, 1e-4)
    assert comparison.ok
    assert comparison.error == pytest.approx(5e-5, rel=1e-2)
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
    reference = np.ones((3, 1 << 20), np.float32)
    reference.flat[largest] = 100
    output = reference.copy()
    output.flat[at] += 1
    assert compare("y", output, reference, 1e-3).error == pytest.approx(0.01)
    output.flat[at] = np.nan
    assert not compare("y", output, reference, 1e-3).ok


def test_infinities_and_nan_keep_their_places_and_signs() -> None:
    reference = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert compare("y", reference.copy(), reference, 1e-4).ok
    assert not compare("y", -reference, reference, 1e-4).ok
    assert not compare("y", np.roll(reference, 1), reference, 1e-4).ok


def test_integers_must_be_equal() -> None:
    reference = np.array([1, 2, 3, 4])
    assert compare("y", reference.copy(), reference, 1e-4).ok
    comparison = compare("y", np.array([1, 2, 3, 5]), reference, 1e-4)
    assert not comparison.ok
    assert comparison.error == 0.25


def test_empty_and_zero_outputs_agree() -> None:
    for reference in (np.zeros((0, 3), np.float32), np.zeros(3, np.float32), np.zeros(0, np.int64)):
        assert compare("y", reference.copy(), reference, 1e-4).ok
    assert not compare("y", np.ones(3, np.float32), np.zeros(3, np.float32), 1e-4).ok
