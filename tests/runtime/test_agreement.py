"""Scores of results against expected results agree with brute force."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.runtime.agreement import Agreement, class_shares, ranks


def brute_rank(got: list[float], want: list[float]) -> int:
    """Returns the place of the expected class in the order of the classes by value."""
    key = [-np.inf if np.isnan(v) else v for v in got]
    expected = [-np.inf if np.isnan(v) else v for v in want]
    order = sorted(range(len(got)), key=lambda n: (-key[n], n))
    return order.index(expected.index(max(expected)))


@pytest.mark.parametrize("seed", range(20))
def test_ranks_are_those_of_a_sort(seed: int) -> None:
    rng = np.random.default_rng(seed)
    output, reference = rng.integers(0, 4, (2, 3, 5, 7)).astype(np.float32)  # many equal values
    output[rng.random(output.shape) < 0.1] = np.nan
    reference[rng.random(reference.shape) < 0.1] = np.nan
    expected = [
        brute_rank(a.tolist(), b.tolist())
        for a, b in zip(output.reshape(-1, 7), reference.reshape(-1, 7), strict=True)
    ]
    assert ranks(output, reference).tolist() == expected


def test_scores_sum_up_all_runs() -> None:
    agreement = Agreement()
    agreement.add({"y": np.float32([[1, 2, 3]])}, {"y": np.float32([[1, 2, 4]])})
    agreement.add({"y": np.float32([[5, 2, 3]])}, {"y": np.float32([[4, 2, 5]])})
    scores = agreement.scores()
    assert scores.error == pytest.approx(2 / 5)
    assert scores.mean_error == pytest.approx((1 / 4 + 2 / 5) / 2)
    assert (scores.top1, scores.top5, scores.rows) == (0.5, None, 2)


def test_top5_counts_the_five_largest() -> None:
    reference = np.float32([[9, 0, 0, 0, 0, 0, 0]])
    fifth, sixth = (np.float32([[1, *values]]) for values in ([2] * 4 + [0] * 2, [2] * 5 + [0]))
    assert class_shares([fifth, sixth], [reference, reference]) == (0.0, 0.5)


def test_an_output_of_one_value_has_no_classes() -> None:
    assert class_shares([np.float32([1])], [np.float32([2])]) == (None, None)
    assert Agreement().scores().error == 0.0


def test_a_nan_that_is_not_expected_is_an_infinite_error() -> None:
    agreement = Agreement()
    agreement.add({"y": np.float32([np.nan, 1])}, {"y": np.float32([0, 1])})
    assert agreement.scores().error == np.inf
