"""Bootstrap bounds of a median, with a fixed stream of random numbers: equal data, equal bounds.

B. Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7 (1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random

import numpy as np
from numpy.typing import NDArray

_SAMPLES = 1000
_LEAST_ROUNDS = 5  # fewer rounds say nothing about the spread of the rounds


def median_bound(ratios: Sequence[float], confidence: float, *, lower: bool = True) -> float:
    """Returns a bound of the median of `ratios`, which holds with the probability `confidence`.

    It is a quantile of the medians of samples that are drawn from the rounds with replacement. With
    fewer than five rounds there is no bound: the result is 0, or infinity for an upper bound.
    """
    if len(ratios) < _LEAST_ROUNDS:
        return 0.0 if lower else float("inf")
    medians = np.sort(np.median(np.asarray(ratios)[_draws(len(ratios))], axis=1))
    place = int((1 - confidence) * _SAMPLES)
    return float(medians[place if lower else _SAMPLES - 1 - place])


@lru_cache(maxsize=64)
def _draws(count: int) -> NDArray[np.intp]:
    """Returns the indices of the samples, of shape [samples, count].

    Python guarantees that `Random.random` gives the same numbers in all versions.
    """
    random = Random(count).random
    draws = [int(random() * count) for _ in range(_SAMPLES * count)]
    return np.array(draws, np.intp).reshape(_SAMPLES, count)
