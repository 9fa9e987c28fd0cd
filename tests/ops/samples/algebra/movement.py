"""Samples of the ops of `tcc.ops.algebra.movement`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ops.algebra.movement import (
    ConcatAttrs,
    ExpandAttrs,
    ReshapeAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
    TransposeAttrs,
)
from tcc.ops.operands import dims

from tests.ops.samples.sampling import Sample, Samples, normal


def _reshape_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for before, after in (
        ((2, 3, 4), (4, 6)),
        ((6, 4), (2, 3, 2, 2)),
        ((1,), ()),
        ((), (1, 1)),
        ((7, 13), (91,)),
        ((0, 3), (3, 0, 2)),
    ):
        yield Sample((normal(rng, *before),), ReshapeAttrs(dims(*after)))
    yield Sample((rng.integers(-9, 9, (3, 8)),), ReshapeAttrs(dims(8, 3)), "i64")


def _transpose_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, perm in (((2, 3, 5), (2, 0, 1)), ((7, 13), (1, 0)), ((), ()), ((0, 3), (1, 0))):
        yield Sample((normal(rng, *shape),), TransposeAttrs(perm))
    yield Sample((rng.random((2, 3, 4, 5)) > 0.5,), TransposeAttrs((0, 2, 3, 1)), "bool")


def _expand_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for before, after in (
        ((3, 1), (2, 3, 4)),
        ((), (3,)),
        ((1, 3), (0, 3)),
        ((1,), (7,)),
    ):
        yield Sample((normal(rng, *before),), ExpandAttrs(dims(*after)))
    yield Sample((rng.integers(-5, 5, (3, 1)),), ExpandAttrs(dims(3, 4)), "i64")


def _slice_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, starts, steps, lengths in (
        ((7, 13), (2, 0), (1, 1), (3, 13)),
        ((7, 13), (6, 12), (-1, -3), (7, 5)),
        ((5, 6, 7), (0, 1, 2), (2, 1, 3), (3, 5, 2)),
        ((4,), (2,), (1,), (0,)),
        ((), (), (), ()),
    ):
        attrs = SliceAttrs(dims(*starts), steps, dims(*lengths))
        yield Sample((normal(rng, *shape),), attrs)


def _tile_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, repeats in (((2, 3), (2, 1)), ((1, 5), (3, 2)), ((), ()), ((3,), (0,))):
        yield Sample((normal(rng, *shape),), TileAttrs(dims(*repeats)))
    yield Sample((rng.integers(0, 255, (3, 2), np.uint8),), TileAttrs(dims(2, 3)), "u8")


def _concat_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for axis, shapes in (
        (0, ((2, 3), (1, 3), (4, 3))),
        (1, ((2, 3), (2, 0), (2, 7))),
        (2, ((1, 2, 3),)),
        (0, ((1,), (1,))),
    ):
        yield Sample(tuple(normal(rng, *s) for s in shapes), ConcatAttrs(axis))
    yield Sample((rng.integers(0, 9, (2,)), rng.integers(0, 9, (3,))), ConcatAttrs(0), "i64")


def _split_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, axis, parts in (
        ((7, 3), 0, (2, 5)),
        ((2, 6), 1, (2, 2, 2)),
        ((4,), 0, (4,)),
        ((2, 3), 1, (3, 0)),
    ):
        yield Sample((normal(rng, *shape),), SplitAttrs(axis, dims(*parts)))


SAMPLES: Mapping[str, Samples] = {
    "reshape": _reshape_samples,
    "transpose": _transpose_samples,
    "expand": _expand_samples,
    "slice": _slice_samples,
    "tile": _tile_samples,
    "concat": _concat_samples,
    "split": _split_samples,
}
