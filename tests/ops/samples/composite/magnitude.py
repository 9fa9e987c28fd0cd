"""Samples of the ops of `tcc.ops.composite.magnitude`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.types import F16, F32, F64
from tcc.ops.composite.moments import NormAttrs

from tests.ops.samples.sampling import Sample, Samples, draw


def _rms_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (F32, F64, F16):
        x, scale = draw(rng, dtype, (3, 5, 33), -2, 7), draw(rng, dtype, (33,), -2, 2)
        yield Sample((x, scale), NormAttrs(2), dtype.name)
    x = draw(rng, F32, (2, 3, 7), -2, 7)
    yield Sample((x, x[0]), NormAttrs(1, 1e-3), "two_axes")
    yield Sample((x[:0], x[0, 0]), NormAttrs(2), "empty")


SAMPLES: Mapping[str, Samples] = {
    "rms_normalization": _rms_samples,
}
