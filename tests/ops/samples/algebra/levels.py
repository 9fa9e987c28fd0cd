"""Samples of the ops of `tcc.ops.algebra.levels`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ops.algebra.levels import LevelsAttrs

from tests.ops.samples.sampling import Sample, Samples


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((5, 24)).astype(np.float32)
    levels = rng.integers(-128, 128, (24, 7)).astype(np.int8)
    scales = rng.uniform(0.1, 1, (3, 7)).astype(np.float32)
    zeros = rng.integers(-8, 8, (3, 7)).astype(np.int8)
    yield Sample((x, levels), LevelsAttrs(), "bytes")
    yield Sample((x, levels, scales), LevelsAttrs(8, 8), "blocks")
    yield Sample((x, levels[:12], scales), LevelsAttrs(4, 8), "halves")
    yield Sample((x, levels[:12], scales, zeros), LevelsAttrs(4, 8), "points")
    yield Sample((x, levels, scales, zeros + np.float32(0.3)), LevelsAttrs(8, 8), "real_points")
    yield Sample((x[None, :1], levels[:12], scales.astype(np.float16)), LevelsAttrs(4, 8), "f16")
    yield Sample((x, levels[:12], scales, None, levels[:3]), LevelsAttrs(5, 8), "five")
    yield Sample((x, levels[:12], scales, None, levels[-6:]), LevelsAttrs(6, 8), "six")


def _zero_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((5, 24)).astype(np.float32)
    scales = rng.uniform(0.1, 1, (3, 7)).astype(np.float32)
    zeros = rng.uniform(-8, 8, (3, 7)).astype(np.float32)
    yield Sample((x, scales, zeros), LevelsAttrs(8, 8), "blocks")
    yield Sample((x[None, :1, :20], scales, zeros), LevelsAttrs(4, 8), "short_block")
    yield Sample((x, scales.astype(np.float16), zeros), LevelsAttrs(4, 8), "f16")


SAMPLES: Mapping[str, Samples] = {
    "matmul_zeros": _zero_samples,
    "matmul_levels": _samples,
}
