"""Samples of the ops of `tcc.ops.algebra.space_to_depth`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ops.algebra.space_to_depth import (
    DepthToSpaceAttrs,
    ReverseSequenceAttrs,
    SpaceToDepthAttrs,
)

from tests.ops.samples.sampling import Sample, Samples, normal


def _depth_to_space_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for mode in ("DCR", "CRD"):
        yield Sample((normal(rng, 2, 12, 3, 5),), DepthToSpaceAttrs(2, mode), mode)
    yield Sample((normal(rng, 1, 9, 1, 1),), DepthToSpaceAttrs(3, "DCR"))


def _space_to_depth_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((normal(rng, 2, 3, 4, 6),), SpaceToDepthAttrs(2))
    yield Sample((normal(rng, 1, 1, 9, 3),), SpaceToDepthAttrs(3))


def _reverse_sequence_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = normal(rng, 3, 5, 2)
    yield Sample((x, np.array([5, 1, 3])), ReverseSequenceAttrs(0, 1))
    yield Sample((x, np.array([2, 3, 1, 0, 3])), ReverseSequenceAttrs(1, 0))


SAMPLES: Mapping[str, Samples] = {
    "depth_to_space": _depth_to_space_samples,
    "space_to_depth": _space_to_depth_samples,
    "reverse_sequence": _reverse_sequence_samples,
}
