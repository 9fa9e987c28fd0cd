"""Samples of the ops of `tcc.ops.random`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.op import NoAttrs
from tcc.ops.operands import dims
from tcc.ops.random import RandomBitsAttrs, StreamAttrs

from .sampling import Sample, Samples


def _alone(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((), NoAttrs(), "alone")


def _numbers(rng: np.random.Generator) -> Iterator[Sample]:
    for number in (0, 17, (1 << 63) - 1):
        yield Sample((), StreamAttrs(number), str(number))


def _bits(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, half, count, operands in (
        ((3, 5), 0, 64, 2),
        ((3, 5), 1, 64, 2),
        ((2, 3, 33), 0, 24, 3),
        ((), 1, 53, 3),
        ((0, 4), 0, 32, 2),
        ((257,), 0, 1, 2),
    ):
        drawn = rng.integers(-(1 << 63), 1 << 63, operands, np.int64)
        attrs = RandomBitsAttrs(dims(*shape), half, count)
        yield Sample(tuple(map(np.asarray, drawn)), attrs, f"{len(shape)}.{half}.{count}")


SAMPLES: Mapping[str, Samples] = {
    "run_seed": _alone,
    "trip_number": _alone,
    "stream_number": _numbers,
    "random_bits": _bits,
}
