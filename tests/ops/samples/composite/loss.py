"""Samples of the ops of `tcc.ops.composite.loss`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from tcc.ir.types import F16, F32, F64
from tcc.ops.composite.loss import LossAttrs

from tests.ops.samples.sampling import Sample, Samples, draw


def _samples(outputs: int, rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (F32, F64, F16):
        x, labels = draw(rng, dtype, (7, 5), -4, 0), rng.integers(0, 5, (7,))
        yield Sample((x, labels), LossAttrs(), f"mean_{dtype.name}")
    x, labels = draw(rng, F32, (3, 5, 2, 7), -4, 0), rng.integers(0, 5, (3, 2, 7))
    weights = draw(rng, F32, (5,), 0.1, 2)
    for reduction in ("none", "sum", "mean"):
        yield Sample((x, labels), LossAttrs(reduction, 3), f"ignore_{reduction}")
        narrow = labels.astype(np.int32)
        yield Sample((x, narrow, weights), LossAttrs(reduction), f"weights_{reduction}")
        both = LossAttrs(reduction, -1, outputs)
        yield Sample((x, labels - (labels == 2) * 3, weights), both, f"both_{reduction}")


SAMPLES: Mapping[str, Samples] = {
    "negative_log_likelihood_loss": partial(_samples, 1),
    "softmax_cross_entropy_loss": partial(_samples, 2),
}
