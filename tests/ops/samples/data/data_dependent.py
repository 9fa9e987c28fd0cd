"""Samples of the ops of `tcc.ops.data.data_dependent`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.index import const
from tcc.ops import OPS
from tcc.ops.data.data_dependent import (
    BindSizeAttrs,
    CompressAttrs,
    NonMaxSuppressionAttrs,
    NonZeroAttrs,
    TopKAttrs,
    UniqueAttrs,
)

from tests.ops.samples.sampling import Sample, Samples


def _top_k_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((3, 13)).astype(np.float32)
    yield Sample((x,), TopKAttrs(1, const(5), True, True), "largest")
    yield Sample((x,), TopKAttrs(0, const(2), False, True), "smallest")
    yield Sample((x,), TopKAttrs(1, const(13), True, True), "all")
    yield Sample((x,), TopKAttrs(1, const(0), True, True), "none")
    ties = rng.integers(0, 3, (2, 17))
    yield Sample((ties,), TopKAttrs(1, const(6), True, True), "ties")
    yield Sample((ties,), TopKAttrs(1, const(6), False, True), "low-ties")


def _non_zero_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x in (
        rng.integers(0, 2, (3, 7)),
        rng.random((2, 3, 4)) > 0.5,
        np.array([0.0, -0.0, np.nan, 1.0], np.float32),
        np.zeros((2, 2), np.float32),
    ):
        yield Sample((x,), NonZeroAttrs(const(int(np.count_nonzero(x)))))


def _compress_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((3, 4)).astype(np.float32)
    yield Sample((x, np.array([False, True, True])), CompressAttrs(0, const(2)), "rows")
    yield Sample((x, np.array([True, False, False, True])), CompressAttrs(1, const(2)), "columns")
    yield Sample((x, np.array([False, True, False])), CompressAttrs(None, const(1)), "flat")
    yield Sample((x, np.array([False])), CompressAttrs(0, const(0)), "none")


def _unique_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = np.array([2, 1, 1, 3, 4, 3], np.float32)
    yield Sample((x,), UniqueAttrs(None, True, const(4)), "sorted")
    yield Sample((x,), UniqueAttrs(None, False, const(4)), "unsorted")
    rows = np.array([[1, 0, 0], [1, 0, 0], [2, 3, 4]], np.int64)
    yield Sample((rows,), UniqueAttrs(0, True, const(2)), "rows")
    yield Sample((rows,), UniqueAttrs(1, False, const(3)), "columns")
    yield Sample((rows,), UniqueAttrs(None, True, const(5)), "flat")


def _nms_samples(rng: np.random.Generator) -> Iterator[Sample]:
    corners = np.array(
        [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1]]],
        np.float32,
    )
    scores = np.array([[[0.9, 0.75, 0.6, 0.95, 0.5], [0.1, 0.2, 0.9, 0.3, 0.4]]], np.float32)
    limits = (np.array(3), np.array(0.5, np.float32), np.array(0.4, np.float32))
    yield Sample((corners, scores, *limits), NonMaxSuppressionAttrs(0, const(3)), "corners")
    centers = rng.uniform(1, 3, (2, 7, 4)).astype(np.float32)
    likely = rng.random((2, 1, 7)).astype(np.float32)
    operands = (centers, likely, np.array(2), np.array(0.3, np.float32))
    count = len(
        OPS["non_max_suppression"].reference(operands, NonMaxSuppressionAttrs(1, const(0)))[0]
    )
    yield Sample(operands, NonMaxSuppressionAttrs(1, const(count)), "centers")
    yield Sample((corners, scores), NonMaxSuppressionAttrs(0, const(0)), "none")


def _bind_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((np.array([3, 5]),), BindSizeAttrs(const(5), 1))


SAMPLES: Mapping[str, Samples] = {
    "top_k": _top_k_samples,
    "non_zero": _non_zero_samples,
    "compress": _compress_samples,
    "unique": _unique_samples,
    "non_max_suppression": _nms_samples,
    "bind_size": _bind_samples,
}
