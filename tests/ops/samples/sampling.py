"""The type of a sample, and random operands in every element type that an op takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tcc.ir.op import Array, NoAttrs
from tcc.ir.types import DTYPES, DType, DTypeKind


@dataclass(frozen=True, slots=True)
class Sample:
    """One test case of an op: input arrays (None for an absent optional input) and attributes."""

    inputs: tuple[Array | None, ...]
    attrs: Any
    label: str = ""


Samples = Callable[[np.random.Generator], Iterator[Sample]]

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1.0], np.float32)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Returns f32 samples of the normal distribution."""
    return rng.standard_normal(shape).astype(np.float32)


def draw(
    rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], lo: float, hi: float
) -> Array:
    """Returns random values in `[lo, hi)` that `dtype` represents exactly."""
    if dtype.kind is DTypeKind.BOOL:
        return np.asarray(rng.integers(0, 2, shape) == 1)
    if dtype.is_integer:
        least = 0 if dtype.kind is DTypeKind.UINT else int(lo)
        return np.asarray(rng.integers(max(int(lo), least), int(hi) + 1, shape)).astype(
            dtype.carrier
        )
    return np.asarray(rng.uniform(lo, hi, shape)).astype(dtype.carrier)


def spread(dtypes: Sequence[DType]) -> tuple[DType, ...]:
    """Returns the element types that samples cover, the main type first."""
    order = ("f32", "f64", "f16", "i32", "i64", "i8", "u8", "bool")
    return tuple(DTYPES[n] for n in order if DTYPES[n] in dtypes)


def unary_samples(
    dtypes: Sequence[DType],
    lo: float = -4.0,
    hi: float = 4.0,
    *,
    attrs: Sequence[Any] = (NoAttrs(),),
    special: bool = True,
) -> Samples:
    """Returns samples of one operand: odd sizes in every element type, a scalar, size zero, special
    floats."""

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        main, *other_dtypes = spread(dtypes)
        for n, attr in enumerate(attrs):
            yield Sample((draw(rng, main, (3, 17), lo, hi),), attr, f"matrix{n or ''}")
        yield Sample((draw(rng, main, (), lo, hi),), attrs[0], "scalar")
        yield Sample((draw(rng, main, (0, 3), lo, hi),), attrs[0], "empty")
        for dtype in other_dtypes:
            yield Sample((draw(rng, dtype, (13,), lo, hi),), attrs[0], dtype.name)
        if special and main.is_float:
            yield Sample((SPECIAL.copy(),), attrs[0], "special")

    return samples


def binary_samples(
    dtypes: Sequence[DType],
    lo: float = -4.0,
    hi: float = 4.0,
    *,
    right: tuple[float, float] | None = None,
    attrs: Sequence[Any] = (NoAttrs(),),
    special: bool = True,
) -> Samples:
    """Returns samples of two operands: equal shapes, both directions of broadcasting, scalar, size
    zero."""
    low, high = right or (lo, hi)

    def pair(
        rng: np.random.Generator, dtype: DType, a: tuple[int, ...], b: tuple[int, ...]
    ) -> tuple[Array, Array]:
        return draw(rng, dtype, a, lo, hi), draw(rng, dtype, b, low, high)

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        main, *other_dtypes = spread(dtypes)
        for n, attr in enumerate(attrs):
            yield Sample(pair(rng, main, (3, 17), (3, 17)), attr, f"same{n or ''}")
        yield Sample(pair(rng, main, (7, 1), (2, 1, 13)), attrs[0], "broadcast")
        yield Sample(pair(rng, main, (5,), ()), attrs[0], "scalar")
        yield Sample(pair(rng, main, (0, 3), (1, 3)), attrs[0], "empty")
        for dtype in other_dtypes:
            yield Sample(pair(rng, dtype, (3, 5), (5,)), attrs[0], dtype.name)
        if special and main.is_float:
            yield Sample((SPECIAL.copy(), SPECIAL[:, None].copy()), attrs[0], "special")

    return samples
