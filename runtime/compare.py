"""Comparison of a result with the expected values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tcc.runtime.arrays import Array

_AT_ONCE = 1 << 20  # elements compared at once: bounds the size of temporary copies


@dataclass(frozen=True, slots=True)
class Difference:
    """How one output compares with the expected values.

    `error` is the largest difference, divided by the largest expected magnitude. For types other
    than floats it is the share of elements that differ.
    """

    output: str
    error: float
    ok: bool
    why: str = ""


def compare(output: str, got: Array, want: Array, tolerance: float) -> Difference:
    """Compares an output with the expected values.

    Floats must agree within `tolerance` times the largest finite expected magnitude, and have NaN
    and infinities at the same places.  Other types must be equal.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        why = f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
        return Difference(output, float("inf"), False, why)
    if want.dtype.kind != "f":
        error = float(np.mean(got != want)) if want.size else 0.0
        return Difference(output, error, error == 0.0, "elements differ" if error else "")
    largest = distance = 0.0
    flat = got.reshape(-1), want.reshape(-1)
    for begin in range(0, want.size, _AT_ONCE):
        actual, expected = (a[begin : begin + _AT_ONCE] for a in flat)
        finite = np.isfinite(expected)
        if not np.array_equal(actual[~finite], expected[~finite], equal_nan=True) or not np.all(
            np.isfinite(actual[finite])
        ):
            return Difference(output, float("inf"), False, "NaN or infinity at other places")
        exact = expected[finite].astype(np.float64)
        deviation = actual[finite].astype(np.float64) - exact
        largest = float(np.max(np.abs(exact), initial=largest))
        distance = float(np.max(np.abs(deviation), initial=distance))
    error = distance / largest if largest else distance
    return Difference(output, error, error <= tolerance)
