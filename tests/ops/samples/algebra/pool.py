"""Samples of the ops of `tcc.ops.algebra.pool`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tcc.ops.algebra.pool import MaxUnpoolAttrs, PoolAttrs
from tcc.ops.operands import dims

from tests.ops.samples.sampling import Sample, Samples, normal


def _samples(**extra: Any) -> Callable[[np.random.Generator], Iterator[Sample]]:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        f32 = partial(normal, rng)

        def attrs(*lists: Any, ceil_mode: bool = False) -> PoolAttrs:
            return replace(PoolAttrs(*lists[1:], lists[0]), ceil_mode=ceil_mode, **extra)

        plain = attrs((2, 2), (2, 2), (0, 0), (0, 0), (1, 1))
        yield Sample((f32(2, 3, 6, 8),), plain, "plain")
        yield Sample((f32(1, 2, 7, 7),), attrs((3, 3), (2, 2), (1, 1), (1, 1), (1, 1)), "padded")
        uneven = attrs((2, 3), (1, 2), (0, 1), (1, 0), (1, 1))
        yield Sample((f32(1, 1, 5, 6),), uneven, "uneven")
        ceil = attrs((3, 3), (2, 2), (0, 0), (0, 0), (1, 1), ceil_mode=True)
        yield Sample((f32(1, 2, 6, 6),), ceil, "ceil")
        yield Sample((f32(2, 3, 17),), attrs((5,), (3,), (2,), (1,), (1,)), "1d")
        cube = attrs((2, 2, 2), (1, 2, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1))
        yield Sample((f32(1, 2, 3, 3, 2),), cube, "3d")
        dilated = attrs((2, 2), (1, 1), (0, 0), (0, 0), (2, 3))
        yield Sample((f32(1, 2, 7, 7),), dilated, "dilated")

    return samples


def _average_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _samples()(rng)
    for sample in _samples(count_include_pad=True)(rng):
        yield Sample(sample.inputs, sample.attrs, f"{sample.label}-include-pad")


def _lp_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for p in (1, 2, 3):
        for sample in list(_samples(p=p)(rng))[:3]:
            yield Sample(sample.inputs, sample.attrs, f"{sample.label}-{p}")


def _unpool_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((1, 1, 2, 2)).astype(np.float32)
    positions = np.array([[[[5, 7], [13, 10]]]])
    yield Sample((x, positions), MaxUnpoolAttrs(dims(1, 1, 4, 4)))


SAMPLES: Mapping[str, Samples] = {
    "average_pool": _average_samples,
    "lp_pool": _lp_samples,
    "max_unpool": _unpool_samples,
    "max_pool": _samples(),
    "max_pool_indices": _samples(),
}
