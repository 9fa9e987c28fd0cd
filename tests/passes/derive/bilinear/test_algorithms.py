"""Bilinear algorithms are exact identities, share sums, and amplify rounding within bounds."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tcc.ir.index import const
from tcc.passes.derive.bilinear.algorithms import MOST_PRODUCTS, Matrix, toom_cook
from tcc.passes.derive.bilinear.conv_forms import amplification, forms_of, roundings
from tcc.passes.derive.bilinear.shared_sums import Arithmetic, shared_sums
from tcc.passes.derive.bilinear.tiled_conv import AxisForm, Conv, ConvAxis, Form

from tests.passes.derive.bilinear.bilinear_maps import computes, correlation

Array = np.ndarray[Any, np.dtype[Any]]

SIZES = [(m, t) for t in range(1, 8) for m in range(1, 9) if m + t - 1 <= MOST_PRODUCTS]


@pytest.mark.parametrize(("results", "taps"), SIZES)
def test_an_algorithm_computes_its_correlation_exactly(results: int, taps: int) -> None:
    found = toom_cook(results, taps)
    assert found.products == results + taps - 1
    assert computes(found, correlation(results, taps))
    assert all(x.denominator == 1 for row in (*found.inputs, *found.results) for x in row)


@pytest.mark.parametrize("factor", ["inputs", "weights", "results"])
def test_the_proof_sees_every_wrong_number(factor: str) -> None:
    found, target = toom_cook(4, 3), correlation(4, 3)
    matrix: Matrix = getattr(found, factor)
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            changed = (*row[:j], value + Fraction(1, 1000), *row[j + 1 :])
            wrong = replace(found, **{factor: (*matrix[:i], changed, *matrix[i + 1 :])})
            assert not computes(wrong, target)


def test_reversed_weights_compute_another_map() -> None:
    found = toom_cook(2, 3)
    assert not computes(replace(found, weights=found.weights[::-1]), correlation(2, 3))


# ---- sums ---------------------------------------------------------------------------------------

EXACT: Arithmetic[Any] = Arithmetic(operator.add, operator.sub, operator.mul)


def matrices() -> Iterator[Matrix]:
    for results, taps in SIZES:
        yield from (toom_cook(results, taps).inputs, toom_cook(results, taps).results)
    rng = np.random.default_rng(3)
    for shape in ((1, 1), (2, 5), (7, 3), (6, 6)):
        drawn = rng.integers(-6, 7, shape)
        drawn[:, 0] += drawn[:, 0] >= 0  # no row is zero
        yield tuple(tuple(map(Fraction, row)) for row in drawn.tolist())


def test_shared_sums_are_the_rows_of_the_matrix() -> None:
    for matrix in matrices():
        units = np.eye(len(matrix[0]), dtype=np.int64)
        rows = shared_sums(matrix).of(list(units), EXACT)
        np.testing.assert_array_equal(np.array(rows), np.array(matrix, np.int64))


def test_nothing_cancels_between_shared_sums() -> None:
    """With absolute factors, the shared sums equal the sums of the absolute matrix, so their errors
    do too."""
    absolute: Arithmetic[Any] = Arithmetic(operator.add, operator.add, lambda n, x: abs(n) * x)
    for matrix in matrices():
        units = np.eye(len(matrix[0]), dtype=np.int64)
        rows = shared_sums(matrix).of(list(units), absolute)
        np.testing.assert_array_equal(np.array(rows), np.abs(np.array(matrix, np.int64)))


@pytest.mark.parametrize(
    ("results", "inward", "outward"), [(2, (4, 0), (4, 0)), (4, (12, 5), (10, 3))]
)
def test_as_few_operations_as_sums_written_by_hand(
    results: int, inward: tuple[int, int], outward: tuple[int, int]
) -> None:
    """The expected numbers are those of F(2, 3) and F(4, 3) with Lavin and Gray's factors and
    shared sums."""
    found = toom_cook(results, 3)
    for matrix, (additions, factors) in ((found.inputs, inward), (found.results, outward)):
        count = shared_sums(matrix).operations
        assert (count["+"], count["*"]) == (additions, factors)


# ---- rounding -----------------------------------------------------------------------------------


def conv(*taps: int, channels: int = 16, side: int = 24) -> Conv:
    axes = tuple(ConvAxis(t, const(side), const(0), 1, 1, 1, None) for t in taps)
    return Conv(const(1), channels, 8, 1, axes)


def test_amplification_is_that_of_the_factors() -> None:
    def nested(tile: int, taps: int) -> float:
        found = toom_cook(tile, taps)
        a, b, c = (np.array(m, float) for m in (found.inputs, found.weights, found.results))
        a, b, c = (np.kron(m, m) for m in (a, b, c))
        return float((np.abs(c) @ (np.abs(a).sum(1) * np.abs(b).sum(1))).max()) / taps**2

    for tile, taps in ((2, 3), (4, 3), (3, 2), (4, 5)):
        form = (AxisForm(tile, taps),) * 2
        assert amplification(conv(taps, taps), form) == pytest.approx(nested(tile, taps))
    assert amplification(conv(3, 3), (AxisForm(4, 3),) * 2) == 256
    assert amplification(conv(5), (AxisForm(4, 3),)) == pytest.approx(16 * 6 / 5)  # two pieces


def test_forms_that_round_too_much_are_not_allowed() -> None:
    def allowed(wanted: Form, channels: int = 16) -> bool:
        return wanted in list(forms_of(conv(*(f.taps for f in wanted), channels=channels)))

    assert allowed((AxisForm(4, 3),) * 2)
    assert allowed((AxisForm(6, 3),))
    assert not allowed((AxisForm(6, 3),) * 2)  # one rounding could grow to 3e-5
    # Transforms may not round more often than the terms of a direct sum are many.
    assert roundings(conv(3, 3, channels=1), (AxisForm(4, 3),) * 2) == 12
    assert not allowed((AxisForm(4, 3),) * 2, channels=1)
    assert allowed((AxisForm(4, 3),) * 2, channels=2)


def blocked(values: Array, tile: int, reach: int) -> Array:
    """Returns the largest |value| in the square of `reach` elements that each tile reads, [c,
    tiles...]."""
    windows = np.lib.stride_tricks.sliding_window_view(np.abs(values), (reach, reach), (1, 2))
    return windows[:, ::tile, ::tile].max(axis=(3, 4))


@pytest.mark.parametrize(("tile", "taps"), [(2, 3), (4, 3), (3, 2), (2, 5), (4, 5)])
@pytest.mark.parametrize("outlier", [1e0, 1e2, 1e4, 1e6])
def test_results_keep_the_stated_bound_beside_outliers(
    tile: int, taps: int, outlier: float
) -> None:
    """The test computes in f32, with rounded transforms, weights and sums, and compares with f64;
    one pixel is an outlier."""
    channels, tiles, rng = 12, 4, np.random.default_rng(9)
    side, shape = tile * tiles + taps - 1, conv(taps, taps, channels=12)
    x = rng.standard_normal((channels, side, side)).astype(np.float32)
    x[:, tile + 2, tile + 2] = outlier
    w = rng.standard_normal((channels, taps, taps)).astype(np.float32)
    actual = transformed(x, w, tile, taps)
    exact = direct(x.astype(np.float64), w.astype(np.float64))
    form = (AxisForm(tile, taps),) * 2
    n = roundings(shape, form)
    gamma = n * 2.0**-24 / (1 - n * 2.0**-24)
    largest = (blocked(x, tile, tile + taps - 1) * np.abs(w).max((1, 2))[:, None, None]).sum(0)
    bound = gamma * amplification(shape, form) * taps**2 * largest
    whole = bound.repeat(tile, 0).repeat(tile, 1)
    assert np.all(np.abs(actual - exact) <= whole)
    if outlier >= 1e4 and tile > 2:  # exceeds a bound by the operands of each result alone
        own = direct(np.abs(x).astype(np.float64), np.abs(w).astype(np.float64))
        terms = channels * taps**2 * 2.0**-24
        assert np.any(np.abs(actual - exact) > terms * own)


def direct(x: Array, w: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[1:], (1, 2))
    found: Array = np.einsum("cyxij,cij->yx", windows, w)
    return found


def transformed(x: Array, w: Array, tile: int, taps: int) -> Array:
    """Returns the sum over channels by F(tile, taps) along both axes, in f32."""
    found, reach = toom_cook(tile, taps), tile + taps - 1
    b = np.array(found.weights, np.float64)
    u = np.einsum("pi,qj,cij->pqc", b, b, w.astype(np.float64)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), (1, 2))
    v = windows[:, ::tile, ::tile]  # [c, tiles, tiles, reach, reach]
    inward, outward = shared_sums(found.inputs), shared_sums(found.results)
    v = np.stack(inward.of(list(np.moveaxis(v, 3, 0)), EXACT))
    v = np.stack(inward.of(list(np.moveaxis(v, 4, 0)), EXACT))  # [q, p, c, tiles, tiles]
    m = np.zeros((reach, reach, *v.shape[3:]), np.float32)
    for c in range(len(x)):
        m += v[:, :, c].transpose(1, 0, 2, 3) * u[:, :, c, None, None]
    y = np.stack(outward.of(list(m), EXACT))
    y = np.stack(outward.of(list(np.moveaxis(y, 1, 0)), EXACT))  # [b, a, tiles, tiles]
    side = tile * y.shape[2]
    assert y.dtype == np.float32
    return y.transpose(2, 1, 3, 0).reshape(side, side)
