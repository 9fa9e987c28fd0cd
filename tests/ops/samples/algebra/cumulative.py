"""Samples of the ops of `tcc.ops.algebra.cumulative`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from tcc.ir.types import F16, F32, F64, I32, I64
from tcc.ops.algebra.cumulative import CumSumAttrs

from tests.ops.samples.sampling import Sample, Samples, draw


def _samples(span: tuple[float, float]) -> Callable[[np.random.Generator], Iterator[Sample]]:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        x = draw(rng, F32, (3, 7, 5), *span)
        for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
            label = f"exclusive{exclusive:d}_reverse{reverse:d}"
            yield Sample((x,), CumSumAttrs(1, exclusive, reverse), label)
        for dtype in (F64, F16, I32, I64):
            yield Sample((draw(rng, dtype, (2, 13), *span),), CumSumAttrs(1), dtype.name)
        yield Sample((x[:, :, 0],), CumSumAttrs(0), "outer")
        yield Sample((draw(rng, F32, (3, 33, 2), *span),), CumSumAttrs(1, True), "long")
        yield Sample((draw(rng, I64, (5, 40), *span),), CumSumAttrs(1, False, True), "long_i64")
        yield Sample((x[:0, 0],), CumSumAttrs(0, True), "empty")

    return samples


SAMPLES: Mapping[str, Samples] = {
    "cum_sum": _samples((-4.0, 4.0)),
    "cum_prod": _samples((-1.5, 1.5)),
}
