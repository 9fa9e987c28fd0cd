"""Samples of the ops of `tcc.ops.algebra.narrow`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.index import const
from tcc.ir.narrow import packed_size
from tcc.ir.types import F4E2M1, F8E8M0, I2, I4, I8, U2, U4, U8
from tcc.ops.algebra.narrow import NARROW_FLOATS, NarrowAttrs, PackAttrs, UnpackAttrs

from tests.ops.samples.sampling import Sample, Samples


def _narrow_samples(rng: np.random.Generator) -> Iterator[Sample]:
    powers = np.ldexp(rng.uniform(-2, 2, (29, 7)), rng.integers(-20, 18, (29, 7)))
    ends = np.array([np.nan, np.inf, 0.0, 464.0, 465.0, 61440.0, 248.0, 5.0, 0.25, 2.0**-130])
    values = np.append(powers, ends).astype(np.float32)
    for to in NARROW_FLOATS:
        x = np.abs(values) if to is F8E8M0 else np.append(values, -values)
        for saturate in (True, False):
            yield Sample((x,), NarrowAttrs(to, saturate), f"{to.name}_{saturate:d}")
    positive = np.append(np.abs(values), np.float32(3e38))
    for rounding in ("down", "nearest"):
        yield Sample((positive,), NarrowAttrs(F8E8M0, False, rounding), rounding)
        yield Sample((positive,), NarrowAttrs(F8E8M0, True, rounding), f"{rounding}_saturated")
    integers = rng.integers(-99, 99, (5, 3))
    to = NARROW_FLOATS[0]
    yield Sample((integers.astype(np.int64),), NarrowAttrs(to), "i64")
    yield Sample((integers.astype(np.float16),), NarrowAttrs(to), "f16")


def _unpack_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for to in (I2, I4, U2, U4, F4E2M1):
        data = rng.integers(0, 256, (packed_size(37, to),)).astype(np.uint8)
        yield Sample((data,), UnpackAttrs(to, const(37)), to.name)


def _pack_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for bits in (2, 4):
        for dtype in (I8, U8):
            x = rng.integers(0, 128, (37,)).astype(dtype.carrier)
            yield Sample((x,), PackAttrs(bits), f"{bits}_{dtype.name}")
    yield Sample((np.zeros((0,), np.uint8),), PackAttrs(4), "empty")


SAMPLES: Mapping[str, Samples] = {
    "to_narrow": _narrow_samples,
    "unpack": _unpack_samples,
    "pack": _pack_samples,
}
