"""Runs of a module with stamps: when each thread began and ended its part of each step.

The stamps lie in a ring (`instance_set_stamps` of tcc.h). A full ring loses its oldest stamps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from tcc.runtime import abi
from tcc.runtime.module import Module

# The most stamps of a ring: 32 bytes each.
MOST_STAMPS = 1 << 22
# The step of a run's own stamp, which is its last.
RUN = -1


@dataclass(frozen=True, slots=True)
class StampedRun:
    """The stamps of a run, and the number of older ones that the ring lost.

    `stamps` is an array [n] of `abi.STAMP` in the order in which threads finished their parts; its
    last row is the run itself. Times are nanoseconds of the system's monotonic clock.
    """

    stamps: np.ndarray[Any, Any]
    lost: int

    @property
    def seconds(self) -> float:
        """Returns the duration of the run."""
        return float(self.stamps["end"][-1] - self.stamps["begin"][-1]) * 1e-9

    @property
    def parts(self) -> np.ndarray[Any, Any]:
        """Returns the stamps of steps, without that of the run."""
        parts: np.ndarray[Any, Any] = self.stamps[self.stamps["step"] != RUN]
        return parts


class Ring:
    """A ring of at least `room` stamps, for a module that no other thread runs meanwhile."""

    def __init__(self, module: Module, room: int) -> None:
        self._module = module
        self._count = ctypes.c_uint64()
        self._stamps = np.zeros(max(room, abi.LEAST_STAMPS), abi.STAMP)

    @property
    def room(self) -> int:
        """Returns the number of stamps that the ring holds."""
        return len(self._stamps)

    def run(self, inputs: Mapping[str, Any]) -> StampedRun:
        """Runs the module on arrays by input name, and returns the stamps of this run.

        Raises the module's error if the artifact is older than stamps, and whatever `Module.run`
        raises.
        """
        with self.stamping():
            self._module.run(inputs)
        count, room = self._count.value, self.room
        first = count % room if count > room else 0
        stamps = np.roll(self._stamps, -first)[: min(count, room)]
        return StampedRun(stamps.copy(), max(0, count - room))

    @contextmanager
    def stamping(self) -> Iterator[None]:
        """Gives the ring to the runs of the module while the context is open."""
        self._set(self._stamps.ctypes.data)
        try:
            yield
        finally:
            self._set(None)

    def _set(self, stamps: int | None) -> None:
        module = self._module
        if not module._api.instance_set_stamps:
            raise module._error(
                "the artifact has no profile",
                where=str(module._path),
                why="it was compiled before artifacts had stamps",
                hint="compile the model again",
            )
        # the last idle instance is the one that the next run takes
        with module._instance() as instance:
            count = ctypes.byref(self._count)
            module._check(module._api.instance_set_stamps(instance, stamps, self.room, count))


def stamped_runs(
    module: Module, inputs: Mapping[str, Any], runs: int, room: int | None
) -> tuple[list[StampedRun], list[float]]:
    """Runs the module `runs` times with stamps, and as often without them, in pairs.

    The first run of a pair is without stamps, then with stamps, and so on in turns.

    `room` is the number of stamps of the ring; with None, it grows until a run loses none, to at
    most `MOST_STAMPS`. Returns the runs with stamps, and the seconds of the runs without. Raises
    what `Ring.run` raises.
    """
    ring = Ring(module, room or abi.LEAST_STAMPS)
    while room is None and ring.room < MOST_STAMPS and ring.run(inputs).lost:
        ring = Ring(module, 4 * ring.room)
    stamped, plain_seconds = [], []
    for turn in range(runs):
        # a run that follows the reading of a ring finds workers asleep, so each kind follows it
        # equally often
        if turn % 2 == 0:
            plain_seconds.append(seconds_of(lambda: module.run(inputs)))
        stamped.append(ring.run(inputs))
        if turn % 2:
            plain_seconds.append(seconds_of(lambda: module.run(inputs)))
    return stamped, plain_seconds


def seconds_of(work: Callable[[], Any]) -> float:
    """Returns the seconds that a call of `work` takes."""
    begin = perf_counter()
    work()
    return perf_counter() - begin
