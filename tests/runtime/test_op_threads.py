"""Ops whose work several threads share agree with NumPy, on arrays that are large enough for it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from op_library import Array, Ops

pytestmark = pytest.mark.xdist_group("runtime-ops")


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("dtype", ["f4", "i4", "i8", "f2"])
@pytest.mark.parametrize(("shape", "axis", "k"), [
    ((1, 70000), 1, 10), ((2, 40000), 1, 300), ((3, 500, 37), 1, 7), ((2, 1000), 1, 600),
    ((300, 129), 1, 129), ((40, 300, 3), 1, 300),
])  # fmt: skip
def test_topk_of_long_and_neighbouring_lines(
    ops: Ops, shape: tuple[int, ...], axis: int, k: int, dtype: str, threads: int
) -> None:
    """Rising and falling lines are the worst case for thresholds, and few values for ties."""
    rng = np.random.default_rng(k)
    random = rng.integers(-30000, 30000, shape).astype(dtype)
    rising = np.sort(random, axis)
    few = rng.integers(-3, 3, shape).astype(dtype)
    for x in (random, rising, np.flip(rising, axis).copy(), few):
        if dtype.startswith("f"):
            x.flat[rng.integers(0, x.size, 9)] = [np.nan, np.inf, -np.inf, -0.0, 0.0, *[np.nan] * 4]
        for largest in (0, 1):
            keys = np.nan_to_num(x.astype(np.float64), nan=np.inf, posinf=1e300, neginf=-1e300)
            order = np.argsort(-keys if largest else keys, axis, kind="stable")
            order = np.take(order, np.arange(k), axis)
            values, indices = np.empty(order.shape, dtype), np.empty(order.shape, np.int64)
            ops("top_k", (x,), (values, indices), (axis, largest, 1), threads=threads)
            np.testing.assert_array_equal(indices, order)
            np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8", "u4", "u8"])
@pytest.mark.parametrize(("shape", "axis"), [
    ((7,), 0), ((13, 50), 1), ((9, 150), 0), ((2, 5, 3), 1), ((3, 4, 70), 1), ((0, 4), 1),
    ((3, 4, 4400), 1),
])  # fmt: skip
@pytest.mark.parametrize("threads", [0, 3])
def test_running_sums(
    ops: Ops, shape: tuple[int, ...], axis: int, dtype: str, threads: int
) -> None:
    x = np.random.default_rng(3).integers(1, 5, shape).astype(dtype)
    for exclusive, reverse, product in itertools.product((0, 1), repeat=3):
        along = np.flip(x, axis) if reverse else x
        combined = np.cumprod if product else np.cumsum
        reference = combined(along, axis, dtype=x.dtype)
        if exclusive and x.size:
            first = np.full_like(np.take(reference, [0], axis), product)
            reference = np.concatenate([first, np.delete(reference, -1, axis)], axis)
        reference = np.flip(reference, axis) if reverse else reference
        output = np.empty_like(x)
        ops("running", (x,), (output,), (axis, exclusive, reverse, product), threads=threads)
        rtol = 1e-6 if dtype == "f4" else 1e-14
        np.testing.assert_allclose(
            output, reference, rtol=rtol, atol=rtol
        )  # of numbers from 1 to 4


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u8"])
@pytest.mark.parametrize("lines", [2, 3, 7, 13, 24, 33, 63])
def test_running_sums_of_many_narrow_rows(ops: Ops, lines: int, dtype: str) -> None:
    """Blocks of rows that fit the nearest cache follow each other.  A NaN or an infinity stays in
    its line; integers wrap."""
    shape = (2, 40_000 // lines, lines)
    x = np.random.default_rng(lines).integers(-9, 9, shape).astype(dtype)
    signs = np.where(x > 0, 1, -1).astype(dtype)  # whose products are exact
    if dtype.startswith("f"):
        x[0, 5, 1], x[1, -3, 0], x[1, 7, lines - 1] = np.nan, np.inf, -np.inf
        signs[0, 9, 1], signs[1, 1, 0] = np.nan, np.inf
    for exclusive, reverse, product in itertools.product((0, 1), repeat=3):
        source = signs if product else x
        along = np.flip(source, 1) if reverse else source
        want = (np.cumprod if product else np.cumsum)(along, 1, dtype=x.dtype)
        if exclusive:
            want = np.concatenate([np.full_like(want[:, :1], product), want[:, :-1]], 1)
        got = np.empty_like(x)
        ops("running", (source,), (got,), (1, exclusive, reverse, product), threads=0)
        np.testing.assert_array_equal(got, np.flip(want, 1) if reverse else want)


@pytest.mark.parametrize("dtype", ["i4", "i8"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 24, 25, 26, 1001])
@pytest.mark.parametrize(("period", "number"), [(1, 0), (2, 1), (3, 0), (5, 4)])
def test_the_range_of_indices(ops: Ops, count: int, period: int, number: int, dtype: str) -> None:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(count)
    x = rng.integers(limits.min, limits.max, count, dtype, endpoint=True)
    least, largest = ops("index_range", (x,), (), (period, number, 0, -1), results=2)
    some = x[number::period]
    assert least == (some.min() if some.size else np.iinfo(np.int64).max)
    assert largest == (some.max() if some.size else np.iinfo(np.int64).min)


@pytest.mark.parametrize("dtype", ["i4", "i8"])
@pytest.mark.parametrize("size", [1, 1000, (1 << 30) - 1])
def test_a_range_says_whether_indices_are_inside(ops: Ops, size: int, dtype: str) -> None:
    """The bounds contain all indices; an index outside is reported at any position."""
    limits, rng = np.iinfo(dtype), np.random.default_rng(size)
    for count in (1, 64, 65, 200):
        x = rng.integers(-size, size, count).astype(dtype)
        least, largest = ops("index_range", (x,), (), (1, 0, -size, size - 1), results=2)
        assert -size <= least <= x.min()
        assert x.max() <= largest < size
        for wrong in (size, -size - 1, limits.min, limits.min + 1, limits.max, limits.max - 1):
            y = x.copy()
            y[rng.integers(0, count)] = wrong
            least, largest = ops("index_range", (y,), (), (1, 0, -size, size - 1), results=2)
            assert (least < -size) if wrong < 0 else (largest >= size)
            assert wrong in (least, largest)


@pytest.mark.parametrize("threads", [0, 3])
def test_the_range_of_many_parts(ops: Ops, threads: int) -> None:
    """Parts begin at counted elements; an index outside is reported in any part."""
    rng = np.random.default_rng(3)
    for count, period, number in (
        (70001, 1, 0),
        (900_000, 1, 0),
        (100_003, 7, 3),
        (70_000, 50_000, 9),
    ):
        x = rng.integers(0, 1000, count)
        for place in {number, number + (count - number - 1) // period * period, number + period}:
            y = x.copy()
            y[np.arange(count) % period != number] = -9
            y[place] = 5000
            ints = (period, number, -1000, 999)
            least, largest = ops("index_range", (y,), (), ints, results=2, threads=threads)
            assert -1000 <= least <= y[number::period].min()
            assert largest == 5000


@pytest.mark.parametrize("threads", [0, 3])
def test_nonzero_of_many_parts(ops: Ops, threads: int) -> None:
    rng = np.random.default_rng(1)
    for shape in ((70001,), (300, 301), (40000, 2), (50, 3, 700)):
        x = rng.integers(0, 3, shape).astype(np.float32) * np.float32(-1)
        reference = np.stack(np.nonzero(x))
        assert ops("non_zero_count", (x,), results=1, threads=threads) == [reference.shape[1]]
        output = np.empty_like(reference)
        ops("non_zero", (x,), (output,), threads=threads)
        np.testing.assert_array_equal(output, reference)


@pytest.mark.parametrize("reduction", range(5))
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scatter_elements_by_columns(ops: Ops, axis: int, reduction: int) -> None:
    """The indices may be shorter than x along the other axes."""
    rng = np.random.default_rng(axis)
    x = rng.integers(-9, 9, (5, 6, 200)).astype(np.float32)
    shape = [4, 5, 170]
    shape[axis] = 9
    indices = rng.integers(-x.shape[axis], x.shape[axis], shape)
    updates = rng.integers(-3, 4, shape).astype(np.float32)
    reference, combined = x.copy(), (None, np.add, np.multiply, np.maximum, np.minimum)[reduction]
    for place in np.ndindex(*shape):
        at = list(place)
        at[axis] = indices[place]
        old = reference[tuple(at)]
        reference[tuple(at)] = updates[place] if combined is None else combined(old, updates[place])
    output = np.empty_like(x)
    ops("scatter_elements", (x, indices, updates), (output,), (axis, reduction))
    np.testing.assert_array_equal(output, reference)


def _reduced(x: Array, target: Any, updates: Array, reduction: int) -> Array:
    """Returns `x` in float64, combined with the updates sequentially."""
    reference = x.astype(np.float64)
    (np.add, np.multiply, np.maximum, np.minimum)[reduction - 1].at(reference, target, updates)
    return reference


@pytest.mark.parametrize("reduction", [1, 2, 3, 4])
@pytest.mark.parametrize("width", [1, 3, 16, 200])
def test_scatters_are_equal_for_all_threads(ops: Ops, width: int, reduction: int) -> None:
    """Rows are skewed, equal or descending; NaN and infinities stay in the rows that they reach."""
    rng = np.random.default_rng([width, reduction])
    # enough elements of width 16 for a division among threads
    rows, count = 500, 70_000 if width == 16 else 6000
    x = rng.uniform(0.99, 1.01, (rows, width)).astype(np.float32)
    updates = rng.uniform(0.99, 1.01, (count, width)).astype(np.float32)
    updates[7], updates[11, 0], updates[13, -1] = np.nan, np.inf, -np.inf
    skewed = (rng.random(count) ** 4 * rows).astype(np.int64)
    for where in (skewed, np.full(count, -3), np.sort(skewed)[::-1].copy()):
        reference = _reduced(x, where, updates, reduction)
        outputs = []
        for threads in (0, 2, 3, 4):
            y = np.empty_like(x)
            ops("scatter_nd", (x, where[:, None], updates), (y,), (reduction,), threads=threads)
            outputs.append(y)
        assert all(y.tobytes() == outputs[0].tobytes() for y in outputs)
        scale = np.bincount(where % rows, minlength=rows)[:, None] + 1.0
        eps = np.finfo(np.float32).eps
        good = np.isfinite(reference)
        np.testing.assert_array_equal(np.isnan(outputs[0]), np.isnan(reference))
        atol = 2 * eps * (scale * np.where(good, np.abs(reference), 1.0))[good]
        assert np.all(np.abs(outputs[0][good] - reference[good]) <= atol)
        single, place = np.empty_like(x), np.repeat(where[:, None], width, axis=1)
        for threads in (0, 2, 4):
            ops("scatter_elements", (x, place, updates), (single,), (0, reduction), threads=threads)
            assert single.tobytes() == outputs[0].tobytes()


@pytest.mark.parametrize("reduction", [3, 4])
@pytest.mark.parametrize("width", [1, 6])
def test_the_first_nan_and_the_first_of_equal_values_stay(
    ops: Ops, width: int, reduction: int
) -> None:
    """The results are bit-exact for every number of threads; updates and x have NaN with different
    bits."""
    rng = np.random.default_rng([7, width, reduction])
    rows, count = 40, 5001
    x, updates = (
        np.where(rng.random((n, width)) < 0.5, 0.0, -0.0).astype(np.float32) for n in (rows, count)
    )
    bits = rng.integers(0x7FC00001, 0x7FFFFFFF, 30).astype(np.uint32).view(np.float32)
    updates[rng.integers(0, count, 28), rng.integers(0, width, 28)] = bits[:28]
    x[[3, 30], [0, -1]] = bits[28:]
    where = rng.integers(1, rows, count)
    where[-1], updates[-1] = 0, 5 if reduction == 3 else -5
    reference = x.copy()
    for row, update in zip(where, updates, strict=True):
        old = reference[row]
        beyond = update > old if reduction == 3 else update < old
        reference[row] = np.where(~np.isnan(old) & (np.isnan(update) | beyond), update, old)
    for threads in (0, 2, 3, 4):
        y = np.empty_like(x)
        ops("scatter_nd", (x, where[:, None], updates), (y,), (reduction,), threads=threads)
        assert y.tobytes() == reference.tobytes()
        x_too = x.copy()
        ops("scatter_nd", (x_too, where[:, None], updates), (x_too,), (reduction,),
            threads=threads)  # fmt: skip
        assert x_too.tobytes() == reference.tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "i4", "u1", "f2"])
def test_scatter_reads_rows_of_a_table(ops: Ops, dtype: str) -> None:
    rng = np.random.default_rng(3)
    x, table = (rng.integers(0, 5, shape).astype(dtype) for shape in ((40, 70), (30, 70)))
    where, ids = rng.integers(-40, 40, (90, 1)), rng.integers(-30, 30, 90).astype(np.int32)
    for reduction in range(1, 5):
        y, reference = np.empty_like(x), np.empty_like(x)
        ops("scatter_nd", (x, where, table[ids].copy()), (reference,), (reduction,))
        ops("scatter_nd", (x, where, table, ids), (y,), (reduction,), threads=2)
        assert y.tobytes() == reference.tobytes()
    for bad in (30, -31):
        ids[17] = bad
        with pytest.raises(ValueError, match=f"index {bad} of an axis of 30"):
            ops("scatter_nd", (x, where, table, ids), (y,), (1,))
