"""Samples of the ops of `tcc.ops.composite.signal`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.index import const
from tcc.ops.composite.signal import DftAttrs

from tests.ops.samples.sampling import Sample, Samples


def _dft_samples(rng: np.random.Generator) -> Iterator[Sample]:
    real = rng.standard_normal((2, 7, 1)).astype(np.float32)
    pair = rng.standard_normal((1, 6, 3, 2)).astype(np.float32)
    yield Sample((real,), DftAttrs(1, const(7), False, False), "real")
    yield Sample((real,), DftAttrs(1, const(7), False, True), "onesided")
    yield Sample((pair,), DftAttrs(1, const(6), False, False), "complex")
    yield Sample((pair,), DftAttrs(2, const(3), True, False), "inverse")
    yield Sample((real,), DftAttrs(1, const(9), False, False), "longer")
    yield Sample((pair,), DftAttrs(1, const(4), False, False), "shorter")
    yield Sample((pair,), DftAttrs(1, const(10), True, True), "real-inverse")
    half = rng.standard_normal((2, 7, 2)).astype(np.float32)
    yield Sample((half,), DftAttrs(1, const(12), True, True), "real-inverse12")


SAMPLES: Mapping[str, Samples] = {
    "dft": _dft_samples,
}
