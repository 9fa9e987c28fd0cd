"""Samples of the ops of `tcc.ops.algebra.diagonal`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.index import const
from tcc.ir.types import BOOL, F16, F32, I64
from tcc.ops.algebra.diagonal import TriluAttrs

from tests.ops.samples.sampling import Sample, Samples, draw


def _trilu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = draw(rng, F32, (2, 5, 7), -4, 4)
    for upper in (False, True):
        for k in (-2, 0, 3, 9):
            yield Sample((x,), TriluAttrs(upper, const(k)), f"upper{upper:d}_{k}")
    for dtype in (F16, I64, BOOL):
        yield Sample((draw(rng, dtype, (7, 3), -4, 4),), TriluAttrs(True, const(0)), dtype.name)
    yield Sample((x[:, :0],), TriluAttrs(True, const(0)), "empty")


SAMPLES: Mapping[str, Samples] = {
    "trilu": _trilu_samples,
}
