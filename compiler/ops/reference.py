"""Conventions of the NumPy references: absent operands, and f16 computed in f32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tcc.ir.op import Array, Arrays, OutArrays
from tcc.ir.types import DType, integer_limits
from tcc.ops.operands import array


def given(arrays: Arrays, count: int | None = None) -> OutArrays:
    """The first `count` operands, or all, none of which may be absent."""
    return tuple(array(arrays, n) for n in range(len(arrays) if count is None else count))


def widen_half(array: Array) -> Array:
    """f16 as f32; other arrays as they are."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def truncated(array: Array, dtype: DType) -> Array:
    """Floats as integers: towards zero, beyond the type its ends, and 0 of NaN."""
    low, high = integer_limits(dtype)

    def whole(value: float) -> int:
        if not math.isfinite(value):
            return 0 if math.isnan(value) else high if value > 0 else low
        return min(max(int(value), low), high)

    values = [whole(float(v)) for v in array.ravel()]
    return np.array(values, dtype.carrier).reshape(array.shape)


def in_f32(function: Callable[..., Any]) -> Callable[..., Array]:
    """`function` with f16 arguments widened and the result rounded to f16 once.

    Floating-point exceptions are part of the meaning here, so NumPy does not report them.
    """

    def apply(*arrays: Array | None) -> Array:
        with np.errstate(all="ignore"):
            wide = [None if a is None else widen_half(a) for a in arrays]
            result = np.asarray(function(*wide))
            halves = [a for a in arrays if a is not None and a.dtype == np.float16]
            if halves and result.dtype == np.float32:
                return result.astype(np.float16)
            return result

    return apply
