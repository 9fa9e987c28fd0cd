"""A bounded time, handed out step by step."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """`seconds` from now on, of which the last `reserve` are kept for writing results."""

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

    def grant(self, wanted: float, least: float) -> float | None:
        """Seconds that a step may take: `wanted` or what is left; None if that is below `least`."""
        left = self.left()
        return None if left < least else min(wanted, left)
