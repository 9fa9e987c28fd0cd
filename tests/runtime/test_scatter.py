"""Scatters and unpooling, against NumPy and over every half."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from . import test_ops

Array = np.ndarray[Any, Any]
ops = test_ops.ops

REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
NUMBERS = {"none": 0, "add": 1, "mul": 2, "max": 3, "min": 4}


def combined(reduction: str, old: Array, new: Array) -> Array:
    return new if reduction == "none" else np.asarray(REDUCTIONS[reduction](old, new))


@pytest.mark.parametrize("reduction", NUMBERS)
@pytest.mark.parametrize("dtype", test_ops.DTYPES)
def test_scatter_elements(ops: test_ops.Ops, dtype: str, reduction: str) -> None:
    rng = np.random.default_rng(5)
    for axis, index_type in ((0, np.int64), (1, np.int32), (2, np.int64)):
        y, updates = test_ops.sample(dtype, (4, 3, 5), 1), test_ops.sample(dtype, (3, 2, 4), 2)
        places = rng.integers(-y.shape[axis], y.shape[axis], updates.shape).astype(index_type)
        want = y.copy()
        with np.errstate(all="ignore"):
            for at in np.ndindex(*updates.shape):
                spot = (*at[:axis], int(places[at]), *at[axis + 1 :])
                want[spot] = combined(reduction, want[spot], updates[at])
        ops("scatter_elements", [places, updates], [y], [axis, NUMBERS[reduction]])
        np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("reduction", NUMBERS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_nd(ops: test_ops.Ops, depth: int, reduction: str) -> None:
    rng = np.random.default_rng(6)
    y = test_ops.sample("f4", (4, 3, 5), 1)
    places = rng.integers(-3, 3, (6, depth))
    updates = test_ops.sample("f4", (6, *y.shape[depth:]), 2)
    want = y.copy()
    with np.errstate(all="ignore"):
        for row, update in zip(places, updates, strict=True):
            want[tuple(row)] = combined(reduction, want[tuple(row)], update)
    ops("scatter_nd", [places, updates], [y], [NUMBERS[reduction]])
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("other", [0.0, -0.0, 1.0, 1.5, -(2.0**-24), 65504.0, np.inf, np.nan])
def test_every_half_is_rounded_to_even(ops: test_ops.Ops, reduction: str, other: float) -> None:
    halves = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    y, updates = halves.copy(), np.full(1 << 16, other, np.float16)
    places = np.arange(1 << 16).reshape(-1, 1)
    ops("scatter_nd", [places, updates], [y], [NUMBERS[reduction]])
    with np.errstate(all="ignore"):
        want = combined(reduction, halves, updates)
    np.testing.assert_array_equal(y, want)
    if reduction in ("add", "mul"):
        np.testing.assert_array_equal(np.signbit(y)[want == 0], np.signbit(want)[want == 0])


def test_brain_floats_are_rounded_to_even(ops: test_ops.Ops) -> None:
    rng = np.random.default_rng(8)
    bits = rng.integers(0, 1 << 16, (2, 4096)).astype(np.uint16)
    left, right = (b.astype(np.uint32) << 16 for b in bits)
    for reduction in ("add", "mul"):
        y = bits[0].copy()
        places = np.arange(4096).reshape(-1, 1)
        ops("scatter_nd", [places, bits[1]], [y], [NUMBERS[reduction]], code=4)
        with np.errstate(all="ignore"):
            sums = combined(reduction, left.view(np.float32), right.view(np.float32))
        raw = sums.view(np.uint32)
        want = (raw + 0x7FFF + (raw >> 16 & 1)) >> 16
        finite = ~np.isnan(sums)
        np.testing.assert_array_equal(y[finite], want.astype(np.uint16)[finite])


def test_max_unpool(ops: test_ops.Ops) -> None:
    x, places = np.array([1, 2, 3], np.float32), np.array([7, 0, 4])
    y = np.full((2, 4), 9, np.float32)
    ops("max_unpool", [x, places], [y])
    np.testing.assert_array_equal(y, [[2, 0, 0, 0], [3, 0, 0, 1]])


@pytest.mark.parametrize(
    ("name", "places", "updates", "ints"),
    [
        ("scatter_elements", [[4]], [[1.0]], [0, 0]),
        ("scatter_elements", [[-5]], [[1.0]], [0, 0]),
        ("scatter_elements", [[0, 0, 0]], [[1.0, 1.0, 1.0]], [0, 0]),
        ("scatter_nd", [[0, 2]], [1.0], [0]),
        ("scatter_nd", [[-5]], [[1.0, 1.0]], [1]),
        ("max_unpool", [8], [1.0], []),
        ("max_unpool", [-1], [1.0], []),
    ],
)
def test_nothing_is_written_outside(
    ops: test_ops.Ops, name: str, places: list[object], updates: list[object], ints: list[int]
) -> None:
    operands = [np.array(places, np.int64), np.array(updates, np.float32)]
    y = np.zeros((4, 2), np.float32)
    with pytest.raises(ValueError, match=r"outside|larger than"):
        ops(name, operands if name != "max_unpool" else operands[::-1], [y], ints)
