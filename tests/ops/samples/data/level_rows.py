"""Samples of the ops of `tcc.ops.data.level_rows`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ops.algebra.levels import LevelsAttrs

from tests.ops.samples.sampling import Sample, Samples


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    index = np.array([6, 0, 3, 3])
    levels = rng.integers(-128, 128, (24, 7)).astype(np.int8)
    scales = rng.uniform(0.1, 1, (3, 7)).astype(np.float32)
    yield Sample((levels, index, scales), LevelsAttrs(8, 8), "bytes")
    yield Sample((levels[:12], index, scales.astype(np.float16)), LevelsAttrs(4, 8), "halves")
    yield Sample((levels[:12], index, scales, levels[:3]), LevelsAttrs(5, 8), "five")
    yield Sample((levels[:12], index, scales, levels[-6:]), LevelsAttrs(6, 8), "six")


SAMPLES: Mapping[str, Samples] = {"gather_levels": _samples}
