"""Samples of the ops of `tcc.ops.composite.normalization`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.types import F16, F32, F64
from tcc.ops.composite.moments import NormAttrs
from tcc.ops.composite.normalization import EpsilonAttrs, GroupNormAttrs

from tests.ops.samples.sampling import Sample, Samples, draw


def _layer_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (F32, F64, F16):
        x = draw(rng, dtype, (3, 5, 33), -2, 7)
        scale, bias = draw(rng, dtype, (33,), -2, 2), draw(rng, dtype, (33,), -2, 2)
        yield Sample((x, scale, bias), NormAttrs(2), f"bias_{dtype.name}")
    x = draw(rng, F32, (2, 3, 7), -2, 7)
    scale = draw(rng, F32, (3, 7), -2, 2)
    yield Sample((x, scale), NormAttrs(1, 1e-3), "two_axes")
    yield Sample((x, scale, scale), NormAttrs(1, 1e-5, 3), "statistics")
    yield Sample((x[:, :0], scale[0]), NormAttrs(2), "empty")
    offset = x + np.float32(30)
    yield Sample((offset, scale[0]), NormAttrs(2), "offset")


def _group_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for groups, dtype in ((1, F32), (2, F32), (6, F32), (3, F64), (2, F16)):
        x = draw(rng, dtype, (2, 6, 5, 3), -2, 7)
        scale, bias = draw(rng, dtype, (6,), -2, 2), draw(rng, dtype, (6,), -2, 2)
        yield Sample((x, scale, bias), GroupNormAttrs(6 // groups), f"{groups}_{dtype.name}")
    x, scale = draw(rng, F32, (1, 3, 17), -2, 7), draw(rng, F32, (3,), -2, 2)
    yield Sample((x, scale, scale), GroupNormAttrs(1, 1e-2), "one_axis")


def _batch_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, dtype in (((2, 7, 3, 5), F32), ((5, 7), F32), ((2, 7, 3), F64), ((2, 7, 3), F16)):
        x = draw(rng, dtype, shape, -2, 7)
        scale, bias, mean = (draw(rng, dtype, (7,), -2, 2) for _ in range(3))
        variance = draw(rng, dtype, (7,), 0.1, 3)
        yield Sample((x, scale, bias, mean, variance), EpsilonAttrs(), f"rank{x.ndim}_{dtype.name}")


SAMPLES: Mapping[str, Samples] = {
    "layer_normalization": _layer_samples,
    "group_normalization": _group_samples,
    "batch_normalization": _batch_samples,
}
