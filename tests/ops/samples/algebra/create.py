"""Samples of the ops of `tcc.ops.algebra.create`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.index import const
from tcc.ops.algebra.create import DimsAttrs, RangeAttrs
from tcc.ops.operands import dims

from tests.ops.samples.sampling import Sample, Samples


def _range_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for start, limit, delta, size, dtype in (
        (0, 7, 1, 7, np.int64),
        (10, -3, -4, 4, np.int32),
        (0.5, 3.0, 0.5, 5, np.float32),
        (3, 3, 1, 0, np.int64),
    ):
        scalars = tuple(np.array(v, dtype) for v in (start, limit, delta))
        yield Sample(scalars, RangeAttrs(const(size)), np.dtype(dtype).name)


def _dims_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for values in ((3, 5, 7), (1,), ()):
        yield Sample((), DimsAttrs(dims(*values)))


SAMPLES: Mapping[str, Samples] = {
    "range": _range_samples,
    "dims": _dims_samples,
}
