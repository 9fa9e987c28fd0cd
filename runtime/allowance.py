"""How far an artifact's outputs may lie from those of a reference that rounds as it does.

The reference runs on a fixed list of random inputs (draws), and again with perturbed weights and
inputs. The perturbations change results by more than an artifact's roundings do. The noise of an
output is the change that the perturbations cause. An output is right if each measure of its errors
is at most a multiple of the same measure of the noise. Only draws of equal shape and equal kind are
measured together; the caller numbers the kinds.

There are four measures. The first is the largest error, and the second is the root mean square of
all errors. The third and the fourth measure rows: the slices at each index of a long axis. They use
the mean error of each element over all draws. The third measure is the mean of a row's mean errors,
which grows if the row is shifted. The fourth is the root mean square of a row's mean errors, which
grows with other faults.

A row's errors are counted in units of the element's noise, each as at most two. So a rare large
error, from a number that is rounded the other way, does not move the mean. A fault moves the mean,
even if it is smaller than the noise of one draw.

The noise of rows is the largest of all rows and perturbed runs. If few rows have noise, or if all
rows move together, this is the largest of very few random numbers, and may be far too small. So the
noise of rows is at least the expected largest of many rows (see `_expected_largest`). It follows
from the spread of a row's mean between draws, which shows how far the elements of a row move
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tcc.runtime.arrays import Array

# The names of the measures, and the multiples of the noise that they may reach.
_NAMES = (
    "largest error",
    "root mean square error",
    "mean error of a row, by its noise,",
    "mean errors of a row's elements, by their noise,",
)
_FACTORS = (6.0, 3.0, 2.0, 1.6)
# An error and a mean of errors that are always allowed, relative to the largest value. Elementwise
# functions of two libraries differ by some roundings.
_LEAST, _LEAST_MEAN = 2.0**-15, 2.0**-18
# `_MOST` is the limit to which errors are cut before their mean is taken. Errors at this limit in
# `_OUTLIERS` draws or fewer are no fault.
_MOST, _OUTLIERS = 2.0, 1.5
# Errors are measured by rows only along axes with at least this many elements. The errors of fewer
# rows do not show how large the errors of other rows may be.
_ROWS = 16
# The expected largest magnitude of 2 * _ROWS normal random numbers with a variance of 1. A noise of
# rows that is the largest of two perturbed runs with `_ROWS` rows has this size.
_LARGEST = 2.35

# (shape of an output, kind of its draw): draws with equal pairs are measured together.
_Group = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Noise:
    """The noise of an output over a group of draws.

    `sizes` has the magnitude of each element's noise: its root mean square over all runs.
    `measures` has the largest value of each measure (see `_NAMES`) over the perturbed runs. Those
    of rows are at least as large as they are expected to be for many rows.
    """

    sizes: Array
    measures: Array


@dataclass(frozen=True, slots=True)
class Allowance:
    """The errors that an output may have; `noises` has its noise in each group of draws.

    `scale` is the largest magnitude of the output. `floors` are two errors relative to `scale` that
    are always allowed: a single error, and a mean of errors.
    """

    noises: Mapping[_Group, _Noise]
    scale: float
    floors: tuple[float, float]

    @property
    def share(self) -> float:
        """Returns the largest error allowed in any group, relative to `scale`."""
        return max((self.most(group, 1)[0] for group in self.noises), default=self.floors[0])

    def most(self, group: _Group, draws: int) -> Array:
        """Returns the bound of each measure over `draws` draws of `group`; the first two are
        relative to `scale`.

        A group has few draws, and errors may be larger in draws that were not made. So the bounds
        of the first two measures also count the noise of all groups.
        """
        widest = np.max([n.measures[:2] for n in self.noises.values()], 0, initial=0)
        if group not in self.noises:
            return np.asarray(widest * _FACTORS[:2] / self.scale + self.floors[0])
        noise = self.noises[group]
        single = np.sqrt(noise.measures[:2] * widest) * _FACTORS[:2] / self.scale + self.floors[0]
        shape = noise.sizes.shape
        sizes = np.array([n for n in shape if n >= _ROWS])
        # Outliers of a row have random signs, so their mean falls with the root of their number.
        outliers = np.append(np.sqrt(sizes / np.prod(shape)), np.ones(sizes.size))
        rows = noise.measures[2:] * np.repeat(_FACTORS[2:], sizes.size)
        return np.append(single, np.maximum(rows, _OUTLIERS * _MOST / draws * outliers))


def allowance(
    outputs: Sequence[Array], noisy: Iterable[Sequence[Array]], kinds: Sequence[float], floor: float
) -> Allowance:
    """Returns the errors that an output may have.

    `outputs` has the output's reference values, an array for each draw of inputs. `kinds` has a
    number for each draw; draws with equal numbers are measured together. Each entry of `noisy` has
    the output's values in the same draws, from a run with perturbed weights and inputs. An error of
    `floor`, relative to the largest value, is always allowed.
    """
    floats = outputs[0].dtype.kind == "f"
    floors = (max(floor, _LEAST), max(floor, _LEAST_MEAN)) if floats else (0.0, 0.0)
    empty = Allowance({}, _scale(outputs), floors)
    runs = [_grouped(results, outputs, kinds) for results in noisy]
    noises = {}
    for group in runs[0]:
        errors = [groups[group] for groups in runs if group in groups]
        sizes = _sizes(errors)
        # The artifact is no part of `sizes`, so each run is measured by the sizes of the others.
        measures = [
            _measures(run, _sizes([*errors[:n], *errors[n + 1 :]] or errors), empty)
            for n, run in enumerate(errors)
        ]
        rows = _expected_largest(errors, sizes, empty)
        measures.append(np.concatenate([[0, 0], rows, rows]))
        noises[group] = _Noise(sizes, np.max(measures, 0))
    return Allowance(noises, empty.scale, floors)


def _sizes(runs: Sequence[Sequence[Array]]) -> Array:
    """Returns the root mean square of each element's errors over all draws of all runs."""
    squares = [np.square(error) for run in runs for error in run]
    return np.asarray(np.sqrt(sum(squares) / len(squares)))


def judged(
    results: Sequence[Array], expected: Sequence[Array], kinds: Sequence[float], allowed: Allowance
) -> tuple[float, str]:
    """Returns the largest error of an output, relative to its largest value, and a text.

    The text names the measure that exceeds `allowed` most; it is empty if no measure does.
    `results`, `expected` and `kinds` have an entry for each draw.
    """
    scale = max(_scale(expected), allowed.scale)
    worst, error, why = 1.0, 0.0, ""
    for group, errors in _grouped(results, expected, kinds).items():
        noise = allowed.noises.get(group)
        values = _measures(errors, None if noise is None else noise.sizes, allowed)
        values[:2] /= scale
        limits = allowed.most(group, len(errors))
        error = max(error, float(values[0]))
        ratios = values / np.maximum(limits, np.finfo(float).tiny)
        index = int(np.argmax(ratios))
        if ratios[index] > worst:
            worst = ratios[index]
            name = _NAMES[index if index < 2 else 2 + (index - 2) // (values.size // 2 - 1)]
            why = f"{name} {values[index]:.1e}, {limits[index]:.1e} allowed"
    return error, why


def _scale(arrays: Sequence[Array]) -> float:
    """Returns the largest finite magnitude; 1 for zeros and for types other than floats."""
    if arrays[0].dtype.kind != "f":
        return 1.0
    return max(float(np.max(np.abs(a), initial=0, where=np.isfinite(a))) for a in arrays) or 1.0


def _grouped(
    results: Sequence[Array], expected: Sequence[Array], kinds: Sequence[float]
) -> dict[_Group, list[Array]]:
    """Returns the errors of each group, an array for each draw.

    A draw is left out if `results` and `expected` have unequal shapes.
    """
    groups: dict[_Group, list[Array]] = {}
    for got, want, kind in zip(results, expected, kinds, strict=True):
        if got.shape == want.shape and want.size:
            groups.setdefault((want.shape, kind), []).append(_errors(got, want))
    return groups


def _measures(errors: Sequence[Array], sizes: Array | None, allowed: Allowance) -> Array:
    """Returns the measures of the errors in a group of draws.

    `sizes` is the noise of each element; if None, only the first two measures are returned. After
    them come the third measure of each long axis, and then the fourth measure of each long axis,
    each for the worst row of the axis.
    """
    first = [max(np.max(np.abs(error)) for error in errors)]
    first += [np.sqrt(np.mean([np.mean(np.square(error)) for error in errors]))]
    if sizes is None:
        return np.array(first)
    mean = np.zeros(sizes.shape)
    for error in errors:
        mean += _units(error, sizes, allowed) / len(errors)
    means = [np.max(np.abs(np.mean(mean, axes))) for axes in _other_axes(mean)]
    spreads = [np.sqrt(np.max(np.mean(np.square(mean), axes))) for axes in _other_axes(mean)]
    return np.array([*first, *means, *spreads])


def _expected_largest(runs: Sequence[Sequence[Array]], sizes: Array, allowed: Allowance) -> Array:
    """Returns the expected largest mean error of `_ROWS` rows, for each long axis.

    `runs` has the errors of each perturbed run in a group of draws. A row has a mean error in each
    draw. The variance of this mean (about zero) includes the correlations between the row's
    elements. Draws are independent, so the mean over all draws has this variance divided by the
    number of draws. The variance is estimated from all draws of all runs, even for one row.

    Rows may have no noise: an output may consist of an input and one new row. So the variance is
    averaged over rows with itself as the weight. With n normal samples for each row, this makes the
    average too large by a factor of 1 + 2 / n, the ratio of the moments of a chi-squared
    distribution.
    """
    axes = _other_axes(sizes)
    variances = [np.zeros(()) for _ in axes]
    samples = sum(map(len, runs))
    for error in (error for errors in runs for error in errors):
        units = _units(error, sizes, allowed)
        for n, other in enumerate(axes):
            variances[n] = variances[n] + np.square(np.mean(units, other)) / samples
    averages = [np.sum(v * v) / max(np.sum(v), np.finfo(float).tiny) for v in variances]
    return _LARGEST * np.sqrt(np.array(averages) / (1 + 2 / samples) * len(runs) / samples)


def _units(error: Array, sizes: Array, allowed: Allowance) -> Array:
    """Returns the errors of a draw in units of each element's noise `sizes`, cut at `_MOST`."""
    floor = allowed.floors[1] * allowed.scale
    noise = np.maximum(np.hypot(sizes, floor), np.finfo(float).tiny)
    beyond = np.copysign(np.maximum(np.abs(error) - floor, 0), error)
    return np.asarray(np.clip(beyond / noise, -_MOST, _MOST))


def _other_axes(array: Array) -> list[tuple[int, ...]]:
    """Returns, for each axis that is long enough for rows, all other axes."""
    sizes = enumerate(array.shape)
    return [tuple({*range(array.ndim)} - {n}) for n, size in sizes if size >= _ROWS]


def _errors(got: Array, want: Array) -> Array:
    """Returns differences in f64; 0 where one of the values is not finite.

    For types other than floats a difference is 0 or 1.
    """
    if want.dtype.kind != "f":
        return np.asarray(got != want, np.float64)
    with np.errstate(invalid="ignore"):
        difference = got.astype(np.float64) - want
    return np.where(np.isfinite(difference), difference, 0)
