"""Samples of the ops of `tcc.ops.algebra.bits`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.types import F32, F64, I32, I64, U8, U16
from tcc.ops.algebra.bits import BitCastAttrs

from tests.ops.samples.sampling import Sample, Samples


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = np.array([0.0, -0.0, 1.5, np.inf, -3e38], np.float32)
    yield Sample((x,), BitCastAttrs(I32), "f32-i32")
    yield Sample((rng.integers(0, 1 << 20, (2, 3)).astype(np.int32),), BitCastAttrs(F32), "i32-f32")
    yield Sample((rng.standard_normal((3, 2)),), BitCastAttrs(I64), "f64-i64")
    yield Sample((rng.integers(0, 99, 4),), BitCastAttrs(F64), "i64-f64")
    yield Sample((np.array([True, False]),), BitCastAttrs(U8), "bool-u8")
    yield Sample((np.array(-2, np.int16),), BitCastAttrs(U16), "scalar")
    yield Sample((np.zeros((0, 3), np.float32),), BitCastAttrs(I32), "empty")


SAMPLES: Mapping[str, Samples] = {
    "bit_cast": _samples,
}
