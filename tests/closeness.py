"""Comparisons of sums whose results may lie near zero."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def assert_within(found: Any, exact: Any, bound: ArrayLike) -> None:
    """Fails if an element of `found` differs from that of `exact` by more than its element of
    `bound`.

    The bound of a sum is a fraction of the sum of the magnitudes of its terms. NaNs and infinities
    must be equal in both.
    """
    found, exact = np.asarray(found, np.float64), np.asarray(exact, np.float64)
    assert found.shape == exact.shape
    with np.errstate(invalid="ignore"):
        is_close = np.abs(found - exact) <= bound
    wrong = np.argwhere(~(is_close | (found == exact) | (np.isnan(found) & np.isnan(exact))))
    if len(wrong):
        at = tuple(map(int, wrong[0]))
        allowed = np.broadcast_to(bound, exact.shape)[at]
        raise AssertionError(
            f"{len(wrong)} of {exact.size} elements are too far off; the one at {at} is "
            f"{found[at]:.17g} in place of {exact[at]:.17g}, and may be {allowed:g} off"
        )
