"""The ops of `tcc.ops.control` and `tcc.ops.collective` have no samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.program import CollectiveKind

from .sampling import Sample, Samples


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    """None: a body is a graph of other rows, and a collective needs several ranks."""
    yield from ()


SAMPLES: Mapping[str, Samples] = {
    **dict.fromkeys(("if", "loop", "scan", "rank"), _samples),
    **{kind.name.lower(): _samples for kind in CollectiveKind},
}
