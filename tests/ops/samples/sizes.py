"""Samples of the ops of `tcc.ops.sizes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.index import const
from tcc.ops.sizes import BroadcastSizeAttrs, CheckIndicesAttrs, NameSizeAttrs, RequireAttrs

from .sampling import Sample, Samples


def _require_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((), RequireAttrs(const(3), const(3), "of this sample"), "equal")
    yield Sample((), RequireAttrs(const(1), const(3), "of this sample", or_one=True), "one")


def _broadcast_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((), BroadcastSizeAttrs(const(3), const(1), const(3)))


def _name_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((), NameSizeAttrs(const(3), const(3)))


def _indices_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((np.array([3, -5, 4]),), CheckIndicesAttrs(const(5)), "all")
    pairs = np.array([[0, 9], [2, 7]], np.int32)
    yield Sample((pairs,), CheckIndicesAttrs(const(3), 2, 0), "first of two")
    yield Sample((np.array([0, 4]),), CheckIndicesAttrs(const(5), signed=False), "unsigned")


SAMPLES: Mapping[str, Samples] = {
    "check_indices": _indices_samples,
    "broadcast_size": _broadcast_samples,
    "name_size": _name_samples,
    "require": _require_samples,
}
