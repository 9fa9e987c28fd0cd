"""The comparison of results accepts errors within the tolerance and detects larger errors."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.ir.op import Tolerance
from tcc.ir.types import F16, F32

from tests.lib.op_matrix import tolerance

ONES = np.ones(4, np.float32)
STEP = np.float32(2.0**-23)


def within(kind: Tolerance, actual: object, length: int = 1) -> None:
    tolerance.check(
        np.asarray(actual, np.float32),
        ONES,
        F32,
        lambda e: tolerance.bound(kind, e, F32, np.ones_like(e), length),
    )


@pytest.mark.parametrize(
    ("kind", "steps", "length"),
    [
        (Tolerance.EXACT, 0, 1),
        (Tolerance.ELEMENTWISE, 4, 1),
        (Tolerance.ACTIVATION, 8, 1),
        (Tolerance.ACCUMULATE, 101, 100),
    ],
)
def test_each_class_has_its_bound(kind: Tolerance, steps: int, length: int) -> None:
    within(kind, ONES + steps * STEP, length)
    with pytest.raises(AssertionError):
        within(kind, ONES + (steps + 1) * STEP, length)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_must_be_equal(value: float) -> None:
    with pytest.raises(AssertionError):
        within(Tolerance.ACCUMULATE, [1, 1, 1, value])
    odd = np.array([value, 1], np.float32)
    tolerance.check(odd, odd, F32, np.zeros_like)


def test_shapes_must_be_equal() -> None:
    with pytest.raises(AssertionError):
        within(Tolerance.ACCUMULATE, np.ones((1, 4)))


def test_steps_of_a_format() -> None:
    values = np.array([1.0, 1.5, 2.0, 0.0, 2.0**-20])
    assert tolerance.ulp(values, F16).tolist() == [2**-10, 2**-10, 2**-9, 2**-24, 2**-24]
