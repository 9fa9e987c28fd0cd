"""Samples of the ops of `tcc.ops.algebra.reduce`."""

from __future__ import annotations

from collections.abc import Mapping

from tcc.ops.algebra.reduce import SUMMABLE

from tests.ops.samples.defaults import reduction_samples
from tests.ops.samples.sampling import Samples

SAMPLES: Mapping[str, Samples] = {
    "reduce_prod": reduction_samples(SUMMABLE, -1.5, 1.5),
    "reduce_log_sum": reduction_samples(SUMMABLE, 1.0, 4.0),
}
