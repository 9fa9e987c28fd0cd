"""Samples of the ops of `tcc.ops.composite.linalg`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.index import const
from tcc.ir.op import Array, NoAttrs
from tcc.ops.composite.linalg import RowsAttrs, TriangleAttrs

from tests.ops.samples.sampling import Sample, Samples


def _draw(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


_SHAPES = ((3, 3), (2, 5, 3), (3, 5), (1, 1), (2, 2, 3, 4), (0, 2, 2), (2, 0, 3))


def _any_matrices(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in _SHAPES:
        yield Sample((_draw(rng, *shape),), NoAttrs())
    yield Sample((rng.standard_normal((4, 3)),), NoAttrs(), "f64")


def _det_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 3), (2, 4, 4), (1, 1), (0, 2, 2)):
        yield Sample((_draw(rng, *shape),), NoAttrs())


def _order_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, rows in (((3,), 3), ((2, 3), 5), ((2, 0), 2), ((0, 2), 2)):
        pivots = rng.integers(1, rows + 1, shape).astype(np.int32)
        yield Sample((pivots,), RowsAttrs(const(rows)), f"{len(shape)}-{rows}")


def _triangle_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for upper in (False, True):
        for unit in (False, True):
            a = _draw(rng, 2, 4, 4) + 4 * np.eye(4, dtype=np.float32)
            attrs = TriangleAttrs(upper, unit)
            yield Sample((a, _draw(rng, 2, 4, 3)), attrs, f"{int(upper)}{int(unit)}")
    empty = (_draw(rng, 0, 0), _draw(rng, 0, 2))
    yield Sample(empty, TriangleAttrs(upper=False, unit=False), "empty")


def _cholesky_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 3), (2, 4, 4), (0, 2, 2)):
        x = _draw(rng, *shape)
        yield Sample((x @ x.swapaxes(-1, -2) + np.eye(shape[-1], dtype=np.float32),), NoAttrs())
    yield Sample((np.diag(np.array([4, 9, -1, 2], np.float32)),), NoAttrs(), "indefinite")


SAMPLES: Mapping[str, Samples] = {
    "det": _det_samples,
    "lu": _any_matrices,
    "pivot_order": _order_samples,
    "solve_triangular": _triangle_samples,
    "cholesky": _cholesky_samples,
    "qr": _any_matrices,
    "svd": _any_matrices,
}
