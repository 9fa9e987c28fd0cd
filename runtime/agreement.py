"""How far the results of two models agree: errors, and the classes that they choose.

agreement = Agreement()
for sample in samples:
    agreement.add(quantised.run(sample), original.run(sample))
print(agreement.scores().top1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from tcc.runtime.arrays import Array
from tcc.runtime.compare import compare
from tcc.runtime.ranking import Ranking

_CLASSES = 5
_RANKING = Ranking(_CLASSES)


@dataclass(frozen=True, slots=True)
class Scores:
    """The agreement of results with expected results, over several runs.

    The error of a run is the largest difference of an output, divided by the largest magnitude that
    is expected of it (`compare`). `error` is the largest error of a run, and `mean_error` the mean
    over runs.

    `top1` is the share of rows in which the largest value has the expected index. `top5` is the
    share of rows in which the index of the largest expected value is among those of the five
    largest values. A row is a slice along the last axis of the first output whose last axis has
    several entries. `rows` counts rows. Without such an output both shares are None, and
    `top5` is None if there are at most five classes.
    """

    error: float
    mean_error: float
    top1: float | None = None
    top5: float | None = None
    rows: int = 0


@dataclass(slots=True)
class Agreement:
    """Adds up `Scores` run by run."""

    _errors: list[float] = field(default_factory=list)
    _ranks: list[Array] = field(default_factory=list)
    _classes: int = 0

    def add(self, got: Mapping[str, Array], want: Mapping[str, Array]) -> None:
        """Adds the outputs of a run, and those that are expected of it, by name."""
        differences = [compare(name, got[name], want[name], 0.0) for name in want]
        self._errors.append(max((item.error for item in differences), default=0.0))
        ranked = next((name for name in want if _RANKING.fits(want[name])), None)
        if ranked is not None and got[ranked].shape == want[ranked].shape:
            self._classes = want[ranked].shape[-1]
            self._ranks.append(ranks(got[ranked], want[ranked]))

    def scores(self) -> Scores:
        """Returns the scores of the runs so far; without a run the errors are 0."""
        errors = self._errors or [0.0]
        error, mean = max(errors), float(np.mean(errors))
        if not self._ranks:
            return Scores(error, mean)
        places = np.concatenate(self._ranks)
        top5 = float(np.mean(places < _CLASSES)) if self._classes > _CLASSES else None
        return Scores(error, mean, float(np.mean(places == 0)), top5, len(places))


def class_shares(got: Sequence[Array], want: Sequence[Array]) -> tuple[float | None, float | None]:
    """Returns `top1` and `top5` of `Scores` for an output, with one array for each run.

    Further arrays of the longer sequence are left out.
    """
    agreement = Agreement()
    for result, expected in zip(got, want, strict=False):
        agreement.add({"": result}, {"": expected})
    scores = agreement.scores()
    return scores.top1, scores.top5


def ranks(got: Array, want: Array) -> Array:
    """Returns for each row of `got` the rank of the index where the row of `want` is largest.

    Rank 0 is the largest value of the row. The first of equal values counts as the larger, and a
    NaN as the smallest value. Both arrays have the shape [..., classes].
    """
    rows, expected = (
        np.where(np.isnan(a), -np.inf, a).reshape(-1, a.shape[-1]) for a in (got, want)
    )
    classes = expected.argmax(axis=1)[:, None]
    values = np.take_along_axis(rows, classes, axis=1)
    before = np.arange(rows.shape[1]) < classes
    places: Array = np.sum((rows > values) | ((rows == values) & before), axis=1)
    return places
