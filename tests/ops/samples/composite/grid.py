"""Samples of the ops of `tcc.ops.composite.grid`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ops.composite.grid import GridSampleAttrs

from tests.ops.samples.sampling import Sample, Samples


def _sample_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 2, 4, 5)).astype(np.float32)
    grid = rng.uniform(-1.6, 1.6, (2, 3, 3, 2)).astype(np.float32)
    for mode in ("nearest", "linear", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for align in (False, True):
                label = f"{mode}-{padding}-{int(align)}"
                yield Sample((x, grid), GridSampleAttrs(mode, padding, align), label)
    mirrored = GridSampleAttrs("linear", "reflection", True)
    yield Sample((x[:, :, :1], grid), mirrored, "one row, mirrored")
    cube = rng.standard_normal((1, 2, 3, 4, 3)).astype(np.float32)
    places = rng.uniform(-1.2, 1.2, (1, 2, 2, 3, 3)).astype(np.float32)
    yield Sample((cube, places), GridSampleAttrs("linear", "zeros", False), "3d")


SAMPLES: Mapping[str, Samples] = {"grid_sample": _sample_samples}
