"""Compares results by tolerance class (compiler/ops/README.md explains the classes)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tcc.ir.lists import ListType
from tcc.ir.op import Tolerance
from tcc.ir.types import DType

Array = np.ndarray[Any, np.dtype[Any]]

# The distance from 1.0 to the next element, and the least positive normal value.
_FORMATS = {
    "f16": (2.0**-10, 2.0**-14),
    "bf16": (2.0**-7, 2.0**-126),
    "f32": (2.0**-23, 2.0**-126),
    "f64": (2.0**-52, 2.0**-1022),
    "f8e4m3fn": (2.0**-3, 2.0**-6),
    "f8e4m3fnuz": (2.0**-3, 2.0**-7),
    "f8e5m2": (2.0**-2, 2.0**-14),
    "f8e5m2fnuz": (2.0**-2, 2.0**-15),
    "f8e8m0": (1.0, 2.0**-127),
    "f4e2m1": (0.5, 1.0),
}


def ulp(expected: Array, dtype: DType) -> Array:
    """Returns the distance between neighbours of `dtype` at each value."""
    eps, tiny = _FORMATS[dtype.name]
    size = np.maximum(np.abs(expected.astype(np.float64)), tiny)
    return np.asarray(eps * np.exp2(np.floor(np.log2(size))))


def bound(tolerance: Tolerance, expected: Array, dtype: DType, scale: Array, length: int) -> Array:
    """Returns the largest allowed error of each element.

    For `ACCUMULATE`, `scale` is the sum of absolute terms and `length` the number of terms.
    """
    step = ulp(expected, dtype)
    match tolerance:
        case Tolerance.EXACT:
            return np.zeros_like(step)
        case Tolerance.ELEMENTWISE:
            return 4 * step
        case Tolerance.ACTIVATION:
            return np.maximum(1e-6 if dtype.name != "f64" else 1e-12, step)
        case Tolerance.ACCUMULATE:
            unit = _FORMATS["f64" if dtype.name == "f64" else "f32"][0] / 2
            gamma = length * unit / (1 - length * unit)
            return np.asarray(2 * gamma * scale + step)


def check(actual: Array, expected: Array, dtype: DType, allowed: Callable[[Array], Array]) -> None:
    """Fails unless `actual` has `expected`'s shape and non-finite values, and is within bounds.

    `allowed` maps the finite expected values (0 in place of others) to the allowed errors.
    """
    assert actual.shape == expected.shape
    if isinstance(dtype, ListType):
        assert len(actual[()]) == len(expected[()])
        for a, e in zip(actual[()], expected[()], strict=True):
            check(a, e, dtype.item, np.zeros_like)
        return
    if not dtype.is_float:
        np.testing.assert_array_equal(actual, expected)
        return
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(e)
    np.testing.assert_array_equal(np.where(finite, 0, a), np.where(finite, 0, e))
    with np.errstate(invalid="ignore"):
        error = np.where(finite, np.abs(a - e), 0)
    limit = allowed(np.where(finite, e, 0))
    worst = np.max(error - limit, initial=-1.0)
    assert worst <= 0, f"off by {np.max(error)} where {np.max(limit, initial=0)} is allowed"
