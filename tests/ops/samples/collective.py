"""Samples of the ops of `tcc.ops.collective`: all ranks have equal operands, and the results are
rank 0's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.op import NoAttrs
from tcc.ir.program import CollectiveKind
from tcc.ops import OPS
from tcc.ops.collective import CollectiveAttrs

from .sampling import Sample, Samples, draw, normal, spread


def _samples(kind: CollectiveKind) -> Samples:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        reductions = ("sum", "prod", "min", "max", "avg") if kind.reduces else ("sum",)
        for reduction in reductions:
            yield Sample((normal(rng, 6, 5),), CollectiveAttrs(3, reduction), reduction)
        for dtype in spread(OPS[kind.name.lower()].dtypes)[1:]:
            yield Sample((draw(rng, dtype, (4,), -4, 4),), CollectiveAttrs(2), dtype.name)
        yield Sample((normal(rng, 0, 5),), CollectiveAttrs(2), "empty")
        if not (kind.sends_blocks or kind.receives_blocks):
            yield Sample((normal(rng),), CollectiveAttrs(), "scalar")

    return samples


SAMPLES: Mapping[str, Samples] = {
    **{kind.name.lower(): _samples(kind) for kind in CollectiveKind},
    "rank": lambda _: iter((Sample((), NoAttrs(), "alone"),)),
}
