"""The C functions behind CallOp agree with NumPy and with enumeration; so do the pool and the
arena."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from op_library import Array, Ops

from tests.closeness import assert_within

# One worker compiles the ops, even if tests are spread over several workers.
pytestmark = pytest.mark.xdist_group("runtime-ops")
DTYPES = ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


def sample(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Returns values with many ties and extremes, and for floats both zeros, infinities and NaN."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    array = rng.integers(0 if kind.kind in "ub" else -4, 5, shape).astype(kind)
    if array.size and kind.kind in "iu":
        array.flat[rng.integers(0, array.size)] = np.iinfo(kind).max
        array.flat[rng.integers(0, array.size)] = np.iinfo(kind).min
    if array.size and kind.kind == "f":
        for value in (np.nan, np.inf, -np.inf, -0.0):
            array.flat[rng.integers(0, array.size)] = value
    return array


def order(line: Array, descending: bool) -> Array:
    """Returns the indices in the documented order: NaN above all, ties by index."""
    ranks = np.unique(line, return_inverse=True)[1]  # NaN are one value, the last
    return np.lexsort((np.arange(len(line)), -ranks if descending else ranks))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [0, 1])
def test_sort(ops: Ops, dtype: str, descending: int) -> None:
    for seed, (shape, axis) in enumerate((((50,), 0), ((3, 17, 2), 1), ((4, 0), 1), ((0, 3), 1))):
        x = sample(dtype, shape, seed)
        values, indices = np.empty_like(x), np.empty(shape, np.int64)
        ops("sort", [x], [values, indices], [axis, descending])
        expected = np.apply_along_axis(order, axis, x, bool(descending)) if x.size else indices
        assert np.array_equal(indices, expected)
        assert np.array_equal(
            values, np.take_along_axis(x, expected, axis), equal_nan=x.dtype.kind == "f"
        )
        without_values = np.empty(shape, np.int64)
        ops("sort", [x], [without_values], [axis, descending])
        assert np.array_equal(without_values, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("k", [0, 1, 3, 16, 17])
def test_topk(ops: Ops, dtype: str, largest: int, k: int) -> None:
    x = sample(dtype, (3, 17, 2), k)
    values, indices = np.empty((3, k, 2), x.dtype), np.empty((3, k, 2), np.int64)
    ops("top_k", [x], [values, indices], [1, largest, 1])
    expected = np.apply_along_axis(order, 1, x, bool(largest))[:, :k]
    assert np.array_equal(indices, expected)
    assert np.array_equal(values, np.take_along_axis(x, expected, 1), equal_nan=x.dtype.kind == "f")


def test_topk_of_many(ops: Ops) -> None:
    x = np.random.default_rng(0).standard_normal(10000).astype(np.float32)
    values, indices = np.empty(100, np.float32), np.empty(100, np.int64)
    ops("top_k", [x], [values, indices], [0, 1, 1])
    assert np.array_equal(values, np.sort(x)[::-1][:100])
    assert np.array_equal(x[indices], values)


def test_bfloat16_orders_by_its_top_bits(ops: Ops) -> None:
    x = sample("f4", (40,), 3)
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    bits[np.isnan(x)] = 0x7FC0
    values, indices = np.empty_like(bits), np.empty(40, np.int64)
    ops("sort", [bits], [values, indices], [0, 0], code=4)
    assert np.array_equal(indices, order(x, False))


def test_topk_refuses_more_than_there_is(ops: Ops) -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match="k is 4, but the axis has 3"):
        ops("top_k", [x], [np.empty((2, 4), np.float32), np.empty((2, 4), np.int64)], [1, 1, 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nonzero(ops: Ops, dtype: str) -> None:
    for shape in ((20,), (3, 4, 5), (), (2, 0)):
        x = sample(dtype, shape, 1)
        expected = np.stack(np.nonzero(np.atleast_1d(x)))[: x.ndim] if x.ndim else None
        count = ops("non_zero_count", [x], results=1)[0]
        assert count == np.count_nonzero(x)
        y = np.empty((x.ndim, count), np.int64)
        ops("non_zero", [x], [y])
        assert expected is None or np.array_equal(y, expected)


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
@pytest.mark.parametrize("length", [0, 2, 3, 99])
def test_compress(ops: Ops, axis: int, length: int) -> None:
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    size = x.size if axis < 0 else x.shape[axis]
    condition = np.random.default_rng(length).integers(0, 2, length).astype(np.bool_)
    selection = condition[:size]
    expected = np.compress(selection, x, None if axis < 0 else axis)
    count = ops("compress_count", [x, condition], ints=[axis], results=1)[0]
    assert count == selection.sum()
    y = np.empty_like(expected)
    ops("compress", [x, condition], [y], [axis])
    assert np.array_equal(y, expected)


@pytest.mark.parametrize("dtype", ["i8", "f4", "u1"])
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("keep_order", [0, 1])
def test_unique(ops: Ops, dtype: str, axis: int, keep_order: int) -> None:
    x = np.random.default_rng(5).integers(0, 3, (6, 5)).astype(dtype)
    x[3] = x[1]
    x[:, 2] = x[:, 4]
    expected = list(np.unique(x, True, True, True, axis=None if axis < 0 else axis))
    expected[2] = expected[2].reshape(-1)
    if keep_order:
        by_first = np.argsort(expected[1])
        expected[0] = np.take(expected[0], by_first, axis=max(axis, 0))
        expected[2] = np.argsort(by_first)[expected[2]]
        expected[1], expected[3] = expected[1][by_first], expected[3][by_first]
    ints = [axis, 1 - keep_order]
    assert ops("unique_count", [x], (), ints, results=1) == [len(expected[1])]
    y = np.empty(expected[0].shape, x.dtype)
    first, inverse, counts = (np.empty_like(a) for a in expected[1:])
    ops("unique", [x], [y, first, inverse, counts], ints)
    for output, reference in zip((y, first, inverse, counts), expected, strict=True):
        assert np.array_equal(output, reference)


def test_unique_of_nothing_and_of_nan(ops: Ops) -> None:
    assert ops("unique_count", [np.empty(0, np.float32)], (), [-1, 1], results=1) == [0]
    x = np.array([np.nan, -0.0, np.nan, 0.0], np.float32)
    assert ops("unique_count", [x], (), [-1, 1], results=1) == [2]


def brute_nms(boxes: Array, scores: Array, most: int, iou: float, score: float) -> list[list[int]]:
    """Returns non-maximum suppression by its definition, for corner boxes (y1, x1, y2, x2)."""
    rows = []
    for batch in range(scores.shape[0]):
        for cls in range(scores.shape[1]):
            candidates = [i for i in range(scores.shape[2]) if scores[batch, cls, i] > score]
            picks: list[int] = []
            while candidates and len(picks) < most:
                best = max(candidates, key=lambda i: (scores[batch, cls, i], -i))
                picks.append(best)
                candidates = [
                    i for i in candidates if i != best and overlap(boxes[batch], best, i) <= iou
                ]
            rows += [[batch, cls, i] for i in picks]
    return rows


def overlap(boxes: Array, a: int, b: int) -> float:
    low = np.maximum(boxes[a, :2], boxes[b, :2])
    high = np.minimum(boxes[a, 2:], boxes[b, 2:])
    common = float(np.prod(np.maximum(high - low, 0)))
    areas = [float(np.prod(boxes[i, 2:] - boxes[i, :2])) for i in (a, b)]
    return common / (sum(areas) - common) if common else 0.0


@pytest.mark.parametrize("centre", [0, 1])
@pytest.mark.parametrize("most", [0, 2, 1000])
def test_non_max_suppression(ops: Ops, centre: int, most: int) -> None:
    rng = np.random.default_rng(most)
    corner = rng.random((2, 30, 2)).astype(np.float32)
    boxes = np.concatenate([corner, corner + rng.random((2, 30, 2)).astype(np.float32)], 2)
    scores = rng.random((2, 3, 30)).astype(np.float32)
    encoded = boxes
    if centre:
        size = boxes[..., 2:] - boxes[..., :2]
        middle = boxes[..., :2] + size / 2
        encoded = np.concatenate([middle[..., ::-1], size[..., ::-1]], 2)
    limits = [np.array([most]), np.array([0.3], np.float32), np.array([0.2], np.float32)]
    inputs = [np.ascontiguousarray(encoded), scores]
    for mask, iou, least in ((7, 0.3, 0.2), (5, 0.0, 0.2), (3, 0.3, -np.inf), (6, 0.3, 0.2)):
        optional_inputs = [limit for bit, limit in enumerate(limits) if mask >> bit & 1]
        expected = brute_nms(boxes, scores, most if mask & 1 else 0, iou, least)
        ints = [centre, mask]
        count = ops("non_max_suppression_count", [*inputs, *optional_inputs], (), ints, results=1)[
            0
        ]
        selected = np.full((count, 3), -1, np.int64)
        ops("non_max_suppression", [*inputs, *optional_inputs], [selected], ints)
        assert selected.tolist() == expected


REDUCTIONS = (None, np.add, np.multiply, np.maximum, np.minimum)


def scattered(y: Array, target: tuple[Any, ...], update: Any, reduction: int) -> None:
    function = REDUCTIONS[reduction]
    with np.errstate(over="ignore", invalid="ignore"):
        y[target] = update if function is None else function(y[target], update)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", range(5))
def test_scatter_elements(ops: Ops, dtype: str, reduction: int) -> None:
    x, updates = sample(dtype, (5, 4), 1), sample(dtype, (7, 3), 2)
    indices = np.random.default_rng(3).integers(-5, 5, (7, 3))
    for axis, index_type in ((0, np.int64), (1, np.int32)):
        target_array, update_array = (x, updates) if axis == 0 else (x.T.copy(), updates.T.copy())
        places = (indices if axis == 0 else indices.T).astype(index_type).copy()
        # Halves are widened before they are combined, and rounded once at the end.
        expected = target_array.astype(np.float32) if dtype == "f2" else target_array.copy()
        for at in np.ndindex(*places.shape):
            target = (places[at], at[1]) if axis == 0 else (at[0], places[at])
            scattered(expected, target, update_array[at].astype(expected.dtype), reduction)
        expected = expected.astype(target_array.dtype)
        y = np.empty_like(target_array)
        ops("scatter_elements", [target_array, places, update_array], [y], [axis, reduction])
        assert np.array_equal(y, expected, equal_nan=y.dtype.kind == "f")


@pytest.mark.parametrize("reduction", range(5))
def test_scatter_nd(ops: Ops, reduction: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 2)).astype(np.float32)
    for depth in (0, 1, 2, 3):
        indices = np.random.default_rng(depth).integers(-2, 2, (5, depth))
        updates = np.random.default_rng(9).standard_normal((5, *x.shape[depth:])).astype(np.float32)
        expected, y = x.copy(), np.empty_like(x)
        for row, update in zip(indices, updates, strict=True):
            scattered(expected, tuple(row), update, reduction)
        ops("scatter_nd", [x, indices, updates], [y], [reduction])
        assert np.array_equal(y, expected)
        in_place = x.copy()
        ops("scatter_nd", [in_place, indices, updates], [in_place], [reduction])
        assert np.array_equal(in_place, expected)


def test_half_precision_sums_round_once(ops: Ops) -> None:
    rng = np.random.default_rng(4)
    bits = rng.integers(0, 1 << 16, (2, 20000)).astype(np.uint16)
    x, updates = bits.view(np.float16)
    places, y = np.arange(20000), np.empty(20000, np.float16)
    for reduction in (1, 2):
        expected = x.copy()
        scattered(expected, (slice(None),), updates, reduction)
        ops("scatter_elements", [x.copy(), places, updates.copy()], [y], [0, reduction])
        assert np.array_equal(y, expected, equal_nan=True)
    wide = [torch.from_numpy(row.view(np.int16)).view(torch.bfloat16) for row in bits]
    for reduction, result in ((1, wide[0] + wide[1]), (2, wide[0] * wide[1])):
        out = np.empty(20000, np.uint16)
        ops("scatter_elements", [bits[0], places, bits[1]], [out], [0, reduction], code=4)
        result_torch = torch.from_numpy(out.view(np.int16)).view(torch.bfloat16)
        assert torch.equal(result_torch.nan_to_num(7), result.nan_to_num(7))


@pytest.mark.parametrize("dtype", DTYPES)
def test_update_slice(ops: Ops, dtype: str) -> None:
    x = sample(dtype, (2, 5, 3), 1)
    for axis, start, size in ((0, 1, 1), (1, 3, 2), (1, 0, 5), (2, 1, 1), (1, 2, 0)):
        at = (slice(None),) * axis
        update = np.ascontiguousarray(sample(dtype, x.shape, 2)[(*at, slice(0, size))])
        front = np.ascontiguousarray(x[(*at, slice(0, start))])
        expected, y, in_place = x.copy(), np.empty_like(x), x.copy()
        expected[(*at, slice(start, start + size))] = update
        ops("update_slice", [x, update, front], [y], [axis])
        ops("update_slice", [in_place, update, front], [in_place], [axis])
        assert y.tobytes() == in_place.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("shape", "widths"),
    [
        ((2, 21, 5, 3), (0, 0, 1, 2, 1, 1, 0, 0)),
        ((4, 3, 2, 70), (1, 1, 0, 0, 0, 1, 0, 0)),
        ((20, 6), (0, 0, 2, 0)),
        ((20, 6), (3, 17, 2, 1)),
        ((7, 2, 4), (0, 0, 1, 1, 1, 2)),
        ((9,), (2, 3)),
        ((5, 3), (0, 0, 0, 0)),
    ],
    ids=str,
)
@pytest.mark.parametrize(("dtype", "value"), [("f4", 0.0), ("f4", -2.5), ("f8", 7.0), ("u1", 9)])
def test_fill_halo(
    ops: Ops, shape: tuple[int, ...], widths: tuple[int, ...], dtype: str, value: float
) -> None:
    x = np.arange(1, prod(shape) + 1).reshape(shape).astype(dtype)
    inside = tuple(
        slice(before, size - after)
        for size, before, after in zip(shape, widths[::2], widths[1::2], strict=True)
    )
    expected = np.full_like(x, value)
    expected[inside] = x[inside]
    bits_of = int.from_bytes(np.array(value, dtype).tobytes(), "little")
    ops("fill_halo", [], [x], [bits_of, *widths])
    assert x.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("shape", "every"),
    [
        ((2, 9, 8, 400), (1, 2, 2, 1)),
        ((3, 5, 7), (2, 1, 3)),
        ((4, 6, 3), (4, 2, 1)),
        ((7, 130), (3, 1)),
        ((11,), (4,)),
        ((5, 3), (1, 1)),
        ((0, 3), (2, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["f4", "f8", "u1"])
def test_thin(ops: Ops, shape: tuple[int, ...], every: tuple[int, ...], dtype: str) -> None:
    """The destination is other memory, or the front of the array itself."""
    x = (np.arange(prod(shape)) * 7 % 251).reshape(shape).astype(dtype)
    expected = np.ascontiguousarray(x[tuple(slice(None, None, n) for n in every)])
    y = np.zeros_like(expected)
    ops("thin", [x], [y], list(every))
    assert y.tobytes() == expected.tobytes()
    front = x.reshape(-1)[: expected.size].reshape(expected.shape)
    ops("thin", [x], [front], list(every))
    assert front.tobytes() == expected.tobytes()


def test_thin_checks_what_fits(ops: Ops) -> None:
    x = np.zeros((4, 6), np.float32)
    for y, every in ((x[:2, :2].copy(), (2, 2)), (x[:2].copy(), (2, 0)), (x[:2, 0].copy(), (2,))):
        with pytest.raises(ValueError, match="thin"):
            ops("thin", [x], [y], list(every))


def test_update_slice_stays_inside(ops: Ops) -> None:
    x, y = np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32)
    with pytest.raises(ValueError, match="2 rows from 2 on, of 3"):
        ops("update_slice", [x, x[:2].copy(), x[:2].copy()], [y], [0])
    for update, axis in ((x[:, :1].copy(), 0), (x.astype(np.float64), 0), (x, 2)):
        with pytest.raises(ValueError, match=r"do not fit|axis 2 of an array"):
            ops("update_slice", [x, update, x[:0].copy()], [y], [axis])


@pytest.mark.parametrize("dtype", ["f2", "bf16"])
def test_repeated_half_sums_are_kept_in_single_precision(ops: Ops, dtype: str) -> None:
    """In halves, a sum of ones would stop growing long before 5000."""
    one, total = (0x3F80, 0x459C) if dtype == "bf16" else (0x3C00, 0x6CE2)  # 1, and 5000 rounded
    y, updates = np.zeros((2, 1), np.uint16), np.full((5000, 1), one, np.uint16)
    code = 4 if dtype == "bf16" else 2
    rows = np.ones((5000, 1), np.int64)
    ops("scatter_elements", [y, rows, updates], [y], [0, 1], code=code)
    assert y.ravel().tolist() == [0, total]
    ops("scatter_nd", [y, np.zeros((1, 1), np.int64), updates[:1]], [y], [1], code=code)
    assert y.ravel().tolist() == [one, total]


def test_scatter_refuses_indices_outside(ops: Ops) -> None:
    x, one = np.zeros(3, np.float32), np.zeros(1, np.float32)
    for index in (3, -4, 1 << 40):
        with pytest.raises(ValueError, match=f"index {index} of an axis of 3"):
            ops("scatter_elements", [x, np.array([index]), one], [x.copy()], [0, 0])
        with pytest.raises(ValueError, match=f"index {index} of an axis of 3"):
            ops("scatter_nd", [x, np.array([[index]]), one], [x.copy()], [0])


def test_max_unpool(ops: Ops) -> None:
    x, places = np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 0], [9, -1]])
    y = np.empty((2, 3), np.float32)
    ops("max_unpool", [x, places], [y])
    assert y.tolist() == [[2, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 1, 1), (2, 3, 4, 4), (9, 9), (2, 0, 0), (0, 2, 2)])
def test_det(ops: Ops, dtype: type, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)
    y = np.empty(shape[:-2], dtype)
    ops("det", [x], [y])
    wide = x.astype(np.float64)
    # Hadamard: a determinant is at most the product of the lengths of its rows
    bound = (1e-13 if dtype is np.float64 else 1e-6) * np.linalg.norm(wide, axis=-1).prod(-1)
    assert_within(y, np.linalg.det(wide), bound)


def test_det_of_singular_extreme_and_undefined_matrices(ops: Ops) -> None:
    def det(x: Array) -> float:
        y = np.empty((), x.dtype)
        ops("det", [x], [y])
        return float(y)

    assert det(np.array([[0.0, 2.0], [3.0, 5.0]])) == -6
    assert det(np.array([[1.0, 2.0], [2.0, 4.0]])) == 0
    assert det(np.diag([1e200, 1e200, 1e-200, 1e-200])) == pytest.approx(1)
    assert det(np.diag([1e200, -1e200])) == -np.inf
    assert det(np.diag([1e-200, 1e-200])) == 0
    assert np.isnan(det(np.array([[1.0, 2.0], [np.nan, 4.0]])))
    assert np.isnan(det(np.array([[np.nan, 2.0], [0.0, 4.0]])))
    with pytest.raises(ValueError, match="do not fit"):
        ops("det", [np.zeros((2, 3))], [np.zeros(())])
    with pytest.raises(ValueError, match="do not fit"):
        ops("det", [np.zeros((2, 2), np.int32)], [np.zeros((), np.int32)])


def f64(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


@pytest.mark.parametrize("shape", [(4, 4), (2, 6, 3), (3, 5), (1, 1), (2, 0, 3), (0, 2, 2)])
def test_factorizations_give_their_matrix_again(ops: Ops, shape: tuple[int, ...]) -> None:
    x, few = f64(*shape), min(shape[-2:])
    packed, pivots = np.empty_like(x), np.empty((*shape[:-2], few), np.int32)
    order = np.empty(shape[:-1], np.int64)
    ops("lu", [x], [packed, pivots])
    ops("pivot_order", [pivots], [order])
    lower = np.tril(packed, -1)[..., :few] + np.eye(shape[-2], few)
    exchanged = np.take_along_axis(x, order[..., None], -2) if x.size else x
    np.testing.assert_allclose(lower @ np.triu(packed)[..., :few, :], exchanged, atol=1e-13)
    assert np.all(np.abs(lower) <= 1)

    tau = np.empty((*shape[:-2], few))
    ops("qr", [x], [packed, tau])
    q = np.broadcast_to(np.eye(shape[-2]), (*shape[:-1], shape[-2])).copy()
    for step in range(few):
        v = np.tril(packed, -1)[..., step, None] + np.eye(shape[-2])[:, step, None]
        q = q - q @ v @ v.swapaxes(-1, -2) * tau[..., step, None, None]
    np.testing.assert_allclose(q @ np.triu(packed), x, atol=1e-13)

    u, s, vt = (
        np.empty((*shape[:-1], few)),
        np.empty_like(tau),
        np.empty((*shape[:-2], few, shape[-1])),
    )
    ops("svd", [x], [u, s, vt])
    np.testing.assert_allclose(u * s[..., None, :] @ vt, x, atol=1e-13)
    np.testing.assert_allclose(s, np.linalg.svd(x, compute_uv=False), atol=1e-13)


def test_singular_vectors_are_orthonormal_whatever_the_rank(ops: Ops) -> None:
    full = f64(5, 4)
    for x in (
        full[:, :2] @ full[:2],
        np.zeros((4, 3)),
        np.ones((3, 3)) * 1e200,
        np.eye(4) * 1e-300,
    ):
        k = min(x.shape)
        u, s, vt = np.empty((x.shape[0], k)), np.empty(k), np.empty((k, x.shape[1]))
        ops("svd", [x], [u, s, vt])
        np.testing.assert_allclose(u.T @ u, np.eye(k), atol=1e-13)
        np.testing.assert_allclose(vt @ vt.T, np.eye(k), atol=1e-13)
        np.testing.assert_allclose(u * s @ vt, x, rtol=1e-13, atol=1e-14 * np.abs(x).max())
    odd = np.array([[1.0, np.nan], [np.inf, 0]])
    ops("svd", [odd], [(u := np.empty((2, 2))), (s := np.empty(2)), (vt := np.empty((2, 2)))])
    assert all(np.isnan(part).all() for part in (u, s, vt))


def test_cholesky_and_triangles(ops: Ops) -> None:
    x = f64(3, 4, 4)
    x = x @ x.swapaxes(-1, -2)
    lower, info = np.empty_like(x), np.empty(3, np.int32)
    ops("cholesky", [np.tril(x) + np.triu(np.full(x.shape, np.nan), 1)], [lower, info])
    np.testing.assert_allclose(lower, np.linalg.cholesky(x), atol=1e-12)
    b, y = f64(3, 4, 2), np.empty((3, 4, 2))
    ops("solve_triangular", [lower + np.triu(np.full(x.shape, np.nan), 1), b], [y], [0, 0])
    np.testing.assert_allclose(lower @ y, b, atol=1e-12)
    ops("solve_triangular", [lower.swapaxes(-1, -2).copy(), b], [y], [1, 1])
    unit = np.triu(lower.swapaxes(-1, -2), 1) + np.eye(4)
    np.testing.assert_allclose(unit @ y, b, atol=1e-12)
    ops("cholesky", [np.diag([1.0, np.nan, 1.0])], [np.empty((3, 3)), info[:1].reshape(())])
    assert info.tolist() == [2, 0, 0]
    with pytest.raises(ValueError, match="do not fit"):
        ops("solve_triangular", [lower, b[:2]], [y], [0, 0])
    with pytest.raises(ValueError, match="pivot 9 is outside"):
        ops("pivot_order", [np.array([9], np.int32)], [np.empty(3, np.int64)])


def bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def bilinear(plane: Array, y: float, x: float) -> list[float]:
    """Returns the weighted sums of the four neighbours of a point; zero if the point is outside by
    more than a pixel."""
    height, width = plane.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return [0.0]
    y, x = max(y, 0), max(x, 0)
    top, left_column = min(int(y), height - 1), min(int(x), width - 1)
    below, right = min(top + 1, height - 1), min(left_column + 1, width - 1)
    v, h = (0 if top == below else y - top), (0 if left_column == right else x - left_column)
    corners = ((top, left_column, (1 - v) * (1 - h)), (top, right, (1 - v) * h), 
               (below, left_column, v * (1 - h)), (below, right, v * h))  # fmt: skip
    return [float(plane[a, b]) * w for a, b, w in corners]


REGIONS = ([0, 0, 5, 5], [1.5, 2.25, 8, 6.5], [-9, -3, 40, 30], [6, 6, 2, 3], [50, 50, 60, 60])


@pytest.mark.parametrize("maximum", [0, 1])
@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_roi_align(ops: Ops, maximum: int, ratio: int, dtype: type) -> None:
    x = np.random.default_rng(0).standard_normal((2, 2, 7, 9)).astype(dtype)
    regions, batches = np.array(REGIONS, dtype), np.array([0, 1, 1, 0, 1])
    for half_pixel in (0, 1):
        y = np.empty((5, 2, 3, 2), dtype)
        ops("roi_align", [x, regions, batches], [y], [maximum, ratio, half_pixel, bits(0.75)])
        for r, c, i, j in np.ndindex(*y.shape):
            x1, y1, x2, y2 = regions[r].astype(np.float64) * 0.75 - half_pixel / 2
            height, width = y2 - y1, x2 - x1
            if not half_pixel:
                height, width = max(height, 1), max(width, 1)
            rows = ratio or max(int(np.ceil(height / 3)), 0)
            columns = ratio or max(int(np.ceil(width / 2)), 0)
            samples = [
                bilinear(
                    x[batches[r], c],
                    y1 + (i + (a + 0.5) / rows) * height / 3,
                    x1 + (j + (b + 0.5) / columns) * width / 2,
                )
                for a, b in np.ndindex(rows, columns)
            ]
            pooled = max(map(max, samples)) if maximum and samples else sum(map(sum, samples))
            expected = pooled if maximum or not samples else pooled / len(samples)
            assert y[r, c, i, j] == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_region_far_larger_than_the_image_takes_no_longer(ops: Ops) -> None:
    x, y = np.ones((1, 1, 4, 4)), np.empty((1, 1, 1, 1))
    regions = np.array([[-1e9, -1e9, 1e9, 1e9]])
    ops("roi_align", [x, regions, np.zeros(1, np.int64)], [y], [0, 0, 0, bits(1)])
    assert 0 < y[0, 0, 0, 0] < 1e-16
    ops("roi_align", [x, regions, np.zeros(1, np.int64)], [y], [1, 0, 0, bits(1)])
    assert 0 < y[0, 0, 0, 0] <= 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_max_roi_pool(ops: Ops, dtype: type) -> None:
    x = np.random.default_rng(0).standard_normal((2, 2, 8, 8)).astype(dtype)
    regions = np.array([[1, 0, 0, 7, 3], [0, 4.4, 3.6, 4.4, 3.6], [0, 20, 20, 30, 30]], dtype)
    y = np.empty((3, 2, 2, 4), dtype)
    ops("max_roi_pool", [x, regions], [y], [bits(1)])
    halves = x[1, :, :4].reshape(2, 2, 2, 4, 2)
    assert np.array_equal(y[0], halves.max((2, 4)))
    assert np.array_equal(y[1], np.broadcast_to(x[0, :, 4, 4, None, None], (2, 2, 4)))
    assert not y[2].any()
    doubled = regions.copy()
    doubled[:, 1:] *= 2
    again = np.empty_like(y)
    ops("max_roi_pool", [x, doubled], [again], [bits(0.5)])
    assert np.array_equal(again, y)


def test_regions_are_checked(ops: Ops) -> None:
    x, y, at = np.ones((2, 1, 4, 4)), np.empty((1, 1, 1, 1)), np.zeros(1, np.int64)
    box, row = np.array([[0.0, 0, 2, 2]]), np.array([[0.0, 0, 0, 2, 2]])
    ints = [0, 1, 0, bits(1)]
    for batch in (-1, 2, 1 << 62):
        with pytest.raises(ValueError, match="region: batch"):
            ops("roi_align", [x, box, np.array([batch])], [y], ints)
        with pytest.raises(ValueError, match="region: batch"):
            ops("max_roi_pool", [x, np.array([[float(batch), 0, 0, 2, 2]])], [y], [bits(1)])
    for bad in (np.nan, np.inf, -1e30):
        with pytest.raises(ValueError, match="not finite or too large"):
            ops("roi_align", [x, np.array([[0, 0, bad, 2]]), at], [y], ints)
        with pytest.raises(ValueError, match="not finite or too large"):
            ops("max_roi_pool", [x, np.array([[0, 0, 0, 2, bad]])], [y], [bits(1)])
    for inputs in ([x, row, at], [x, box, at[:0]], [x, box.astype(np.float32), at]):
        with pytest.raises(ValueError, match="roi_align: operands do not fit"):
            ops("roi_align", inputs, [y], ints)
    with pytest.raises(ValueError, match="max_roi_pool: operands do not fit"):
        ops("max_roi_pool", [x, box], [y], [bits(1)])


def test_ops_refuse_operands_that_do_not_fit(ops: Ops) -> None:
    x, i = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int64)
    with pytest.raises(ValueError, match="axis 2"):
        ops("sort", [x], [x, i], [2, 0])
    with pytest.raises(ValueError, match="do not fit"):
        ops("sort", [x], [x, i[:1].copy()], [0, 0])
    with pytest.raises(ValueError, match="other operands"):
        ops("sort", [x], [x, i], [0])
    with pytest.raises(ValueError, match="another count"):
        ops("non_zero", [x], [np.zeros((2, 4), np.int64)])


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 20, (4 << 20) + 1])
def test_arenas_are_aligned_and_zero(ops: Ops, size: int) -> None:
    assert ops.library.harness_exercise_arena(ctypes.c_size_t(size)) == 0
