"""Samples of the ops of `tcc.ops.control`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from .sampling import Sample, Samples


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yields no samples: a body is a graph of other rows, which a row cannot name."""
    yield from ()


SAMPLES: Mapping[str, Samples] = {
    "if": _samples,
    "loop": _samples,
    "scan": _samples,
}
