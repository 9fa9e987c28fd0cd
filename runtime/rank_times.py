"""The times of a model that several ranks run together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from tcc.runtime.interleaved import Times
from tcc.runtime.module import Module

if TYPE_CHECKING:
    from tcc.runtime.comm import Comm


def rank_times(
    module: Module, comm: Comm, arrays: Mapping[str, Any], rounds: int, seconds: float
) -> Times:
    """Returns the times of this rank's runs of `module` in `rounds` rounds of some `seconds`.

    All ranks call this together. They agree on the number of runs of a round, and each round starts
    when all ranks are there.
    """
    module.run(arrays)
    count = _agreed(comm, max(1, round(seconds / _seconds(module, arrays))))
    all_times = []
    for _ in range(rounds):
        comm.barrier()
        all_times.append([_seconds(module, arrays) for _ in range(count)])
    runs = [t for times in all_times for t in times]
    medians = tuple(statistics.median(times) for times in all_times)
    return Times(min(runs), statistics.median(runs), medians, len(runs))


def _seconds(module: Module, arrays: Mapping[str, Any]) -> float:
    start = time.perf_counter()
    module.run(arrays)
    return time.perf_counter() - start


def _agreed(comm: Comm, count: int) -> int:
    """Returns the least `count` of all ranks."""
    return int(comm.all_reduce(np.array([count], np.int64), "min")[0])
