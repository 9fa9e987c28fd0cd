"""Samples of the ops of `tcc.ops.composite.softmax`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.types import F16, F32, F64
from tcc.ops.shapes import AxisAttrs

from tests.ops.samples.sampling import Sample, Samples, draw


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for axis in (0, 1, 2):
        yield Sample((draw(rng, F32, (3, 7, 5), -9, 9),), AxisAttrs(axis), f"axis_{axis}")
    for dtype in (F64, F16):
        yield Sample((draw(rng, dtype, (2, 33), -9, 9),), AxisAttrs(1), dtype.name)
    large = draw(rng, F32, (2, 13), -1e4, 1e4)
    yield Sample((large,), AxisAttrs(1), "large")
    large[0, :5] = -np.inf
    yield Sample((large,), AxisAttrs(1), "masked")
    yield Sample((large[:, :1],), AxisAttrs(1), "one")
    yield Sample((large[:0],), AxisAttrs(1), "empty")


SAMPLES: Mapping[str, Samples] = {
    "softmax": _samples,
    "log_softmax": _samples,
}
