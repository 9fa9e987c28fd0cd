"""Samples of the ops of `tcc.ops.algebra.reverse_sequence`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ops.algebra.reverse_sequence import ReverseSequenceAttrs

from tests.ops.samples.sampling import Sample, Samples, normal


def _reverse_sequence_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = normal(rng, 3, 5, 2)
    yield Sample((x, np.array([5, 1, 3])), ReverseSequenceAttrs(0, 1))
    yield Sample((x, np.array([2, 3, 1, 0, 3])), ReverseSequenceAttrs(1, 0))


SAMPLES: Mapping[str, Samples] = {
    "reverse_sequence": _reverse_sequence_samples,
}
