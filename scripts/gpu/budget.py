"""Divides a time limit between steps."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """A time limit of `seconds` from now on; the last `reserve` seconds are for writing results."""

    def __init__(
        self, seconds: float, reserve: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._begin = clock()
        self._end = self._begin + seconds - reserve

    def spent(self) -> float:
        return self._clock() - self._begin

    def left(self) -> float:
        return max(0.0, self._end - self._clock())

    def grant(self, requested: float, minimum: float) -> float | None:
        """Returns the seconds that a step gets: at most `requested`, and at most the time left.

        Returns None if less than `minimum` is left.
        """
        remaining = self.left()
        return None if remaining < minimum else min(requested, remaining)
