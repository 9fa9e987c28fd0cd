"""Samples of the ops of `tcc.ops.data.indexing`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.index import const
from tcc.ops.data.indexing import (
    REDUCTIONS,
    GatherNdAttrs,
    ScatterAttrs,
    ScatterNdAttrs,
    TensorScatterAttrs,
    UpdateSliceAttrs,
)
from tcc.ops.shapes import AxisAttrs

from tests.ops.samples.sampling import Sample, Samples


def _gather_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((5, 3, 7)).astype(np.float32)
    yield Sample((x, np.array([[0, -1], [4, 2]])), AxisAttrs(0), "rows")
    yield Sample((x, np.array([2, -3], np.int32)), AxisAttrs(1), "i32")
    yield Sample((x, np.array(6)), AxisAttrs(2), "scalar")
    yield Sample((x, np.zeros((0,), np.int64)), AxisAttrs(0), "empty")
    yield Sample((rng.integers(-9, 9, (13,)), np.array([12, 0, -13])), AxisAttrs(0), "vector")


def _elements_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((5, 3)).astype(np.float32)
    yield Sample((x, rng.integers(-5, 5, (7, 3))), AxisAttrs(0), "tall")
    yield Sample((x, rng.integers(0, 3, (2, 2))), AxisAttrs(1), "part")
    yield Sample((rng.integers(0, 9, (4,)), np.array([-1, 0, 0])), AxisAttrs(0), "vector")


def _nd_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    yield Sample((x, np.array([[0, 1], [-1, -2]])), GatherNdAttrs(0), "rows")
    yield Sample((x, np.array([[[2]], [[0]], [[-1]]])), GatherNdAttrs(1), "batch")
    yield Sample((x, np.array([1, 2, 3])), GatherNdAttrs(0), "element")
    yield Sample((rng.random((2, 2)) > 0.5, np.array([[0], [1], [0]])), GatherNdAttrs(0), "bool")


def _scatter_elements_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((5, 3)).astype(np.float32)
    places = np.array([[0, -1, 2], [3, 0, 4]])
    updates = rng.standard_normal((2, 3)).astype(np.float32)
    for reduction in REDUCTIONS:
        yield Sample((x, places, updates), ScatterAttrs(0, reduction), reduction)
    repeated = np.array([[1, 1, 1], [2, -1, 2]])
    yield Sample((x, repeated, updates), ScatterAttrs(1, "add"), "repeated")
    line = (rng.integers(0, 9, (7,)), np.array([6, 0], np.int32), np.array([-1, -2]))
    yield Sample(line, ScatterAttrs(0, "none"), "i64")


def _scatter_nd_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((4, 3, 2)).astype(np.float32)
    rows = rng.standard_normal((2, 3, 2)).astype(np.float32)
    for reduction in REDUCTIONS:
        attrs = ScatterNdAttrs(reduction)
        yield Sample((x, np.array([[3], [-3]]), rows), attrs, reduction)
    spots = (x, np.array([[[0, 1, 1], [2, 2, -1]]]), np.array([[5.0, 7.0]], np.float32))
    yield Sample(spots, ScatterNdAttrs("none"), "elements")
    repeated = (np.zeros(5, np.int64), np.array([[1], [1], [4]]), np.array([2, 3, 4]))
    yield Sample(repeated, ScatterNdAttrs("add"), "repeated")


def _scatter_rows_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((4, 3, 2)).astype(np.float32)
    table = rng.standard_normal((5, 3, 2)).astype(np.float32)
    for reduction in REDUCTIONS:
        bags = (x, np.array([[1], [3], [-3]]), table, np.array([4, -2, 4]))
        yield Sample(bags, ScatterNdAttrs(reduction), reduction)
    where = np.array([[[0, 2], [3, -1]], [[0, 2], [1, 1]]], np.int32)
    ids = np.array([[0, 1], [1, -5]], np.int32)
    yield Sample((x, where, table[:, 0], ids), ScatterNdAttrs("add"), "pairs")


def _update_slice_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 5, 3)).astype(np.float32)
    rows = rng.standard_normal((2, 2, 3)).astype(np.float32)
    yield Sample((x, rows), UpdateSliceAttrs(1, const(3)), "end")
    yield Sample((x, rows), UpdateSliceAttrs(1, const(1)), "middle")
    yield Sample((x, x[:, :, :1].copy()), UpdateSliceAttrs(2, const(0)), "columns")
    yield Sample((x, rows[:, :0]), UpdateSliceAttrs(1, const(5)), "nothing")
    yield Sample((x[0, 0] > 0, np.array([True])), UpdateSliceAttrs(0, const(2)), "bool")
    yield Sample((np.arange(7), np.array([-1, -2])), UpdateSliceAttrs(0, const(4)), "i64")


def _tensor_scatter_samples(rng: np.random.Generator) -> Iterator[Sample]:
    cache = rng.standard_normal((2, 3, 7, 4)).astype(np.float32)
    update = rng.standard_normal((2, 3, 2, 4)).astype(np.float32)
    linear, circular = (TensorScatterAttrs(2, mode) for mode in ("linear", "circular"))
    yield Sample((cache, update, np.array([0, 5])), linear, "linear")
    yield Sample((cache, update, np.array([6, 3])), circular, "circular")
    yield Sample((cache, update), linear, "front")
    yield Sample((cache[0], update[0], np.array([4, 0, 1])), TensorScatterAttrs(1, "linear"), "3d")


SAMPLES: Mapping[str, Samples] = {
    "gather": _gather_samples,
    "gather_elements": _elements_samples,
    "gather_nd": _nd_samples,
    "scatter_elements": _scatter_elements_samples,
    "scatter_nd": _scatter_nd_samples,
    "scatter_rows": _scatter_rows_samples,
    "update_slice": _update_slice_samples,
    "tensor_scatter": _tensor_scatter_samples,
}
