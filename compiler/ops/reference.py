"""Conventions of the NumPy references; for example, f16 is computed in f32."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tcc.ir.expr import MONOIDS
from tcc.ir.expr.scalar import Const
from tcc.ir.op import Array, OutArrays
from tcc.ir.types import DType, integer_limits


def as_tuple(results: Any) -> tuple[Any, ...]:
    """Returns a single result as a tuple, and a tuple of results unchanged."""
    return results if isinstance(results, tuple) else (results,)


def widen_half(array: Array) -> Array:
    """Returns an f16 array as f32, any other array unchanged."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def identity_of(monoid: str, dtype: DType) -> bool | int | float:
    """Returns the result of a reduction over no elements."""
    (identity,) = MONOIDS[monoid].identity((dtype,))
    assert isinstance(identity, Const)
    return identity.value


def truncated(array: Array, dtype: DType) -> Array:
    """Returns floats as integers of `dtype`: truncated towards zero and saturated; NaN gives 0."""
    low, high = integer_limits(dtype)

    def integer(value: float) -> int:
        if not math.isfinite(value):
            return 0 if math.isnan(value) else high if value > 0 else low
        return min(max(int(value), low), high)

    values = [integer(float(v)) for v in array.ravel()]
    return np.array(values, dtype.carrier).reshape(array.shape)


def in_f32(reference: Callable[..., Any]) -> Callable[..., OutArrays]:
    """Wraps `reference` so that f16 operands are widened to f32.

    If the first operand is a float, float results are rounded to its type. NumPy's warnings are
    turned off, because infinities and NaNs are valid results.
    """

    def apply(attrs: Any, x: Array, *arrays: Array | None) -> OutArrays:
        with np.errstate(all="ignore"):
            wide, *operands = (None if a is None else widen_half(a) for a in (x, *arrays))
            results = as_tuple(reference(attrs, wide, *operands))
            if wide is None or x.dtype.kind != "f":
                return results
            # f64 results for an f16 operand are rounded to f32 first, as f32 is what it is read in.
            pairs = ((r, r.dtype.kind == "f") for r in results)
            return tuple(r.astype(wide.dtype).astype(x.dtype) if f else r for r, f in pairs)

    return apply
