"""Samples of the ops of `tcc.ops.algebra.phases`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.op import Array
from tcc.ops.algebra.phases import PhaseConvAttrs
from tcc.ops.operands import dims

from tests.ops.samples.sampling import Sample, Samples


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    def f32(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    twice = PhaseConvAttrs(dims(4, 5), (1, 1), (1, 1), 1)
    yield Sample((f32(1, 3, 4, 5), f32(2, 2, 4, 3, 2, 2), f32(4)), twice, "twice")
    uneven = PhaseConvAttrs(dims(5, 3), (2, 0), (0, 1), 1)
    yield Sample((f32(2, 2, 4, 5), f32(3, 1, 2, 2, 2, 3)), uneven, "uneven")
    grouped = PhaseConvAttrs(dims(4, 4), (0, 1), (1, 2), 2)
    yield Sample((f32(1, 4, 5, 5), f32(2, 2, 6, 2, 2, 2), f32(6)), grouped, "grouped")
    line = PhaseConvAttrs(dims(7), (3,), (-1,), 1)
    yield Sample((f32(1, 3, 9), f32(4, 2, 3, 2)), line, "1d")


SAMPLES: Mapping[str, Samples] = {
    "phase_conv": _samples,
}
