"""Worker processes between two compiles."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TypeAlias

from tcc.backends.workers import WorkerPool

_SECONDS = 10.0
_Held: TypeAlias = tuple[tuple[object, ...], WorkerPool]


class Resting:
    """Holds the pool that the last compile has left, for one like it that comes soon: each of its
    processes took a second to start."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Holds none; the one held before is not ended."""
        self._lock = threading.Lock()
        self._held: _Held | None = None

    def leave(self, key: tuple[object, ...], pool: WorkerPool) -> None:
        """Holds a pool for some seconds, in place of another; one that cannot go on is ended."""
        if not pool.forget():
            pool.abandon()
            return
        self.end()
        held = key, pool
        with self._lock:
            self._held = held
        clock = threading.Timer(self._seconds, self.end, (held,))
        clock.daemon = True
        clock.start()

    def take(self, key: tuple[object, ...]) -> WorkerPool | None:
        """The pool that was left under an equal key, if its processes are still there."""
        with self._lock:
            if self._held is None or self._held[0] != key:
                return None
            (_, pool), self._held = self._held, None
        if pool.forget():
            return pool
        pool.abandon()
        return None

    def end(self, only: _Held | None = None) -> None:
        """Ends the pool that is held, or that of `only` where it is held since then."""
        with self._lock:
            if self._held is None or (only is not None and only is not self._held):
                return
            (_, pool), self._held = self._held, None
        pool.abandon()


RESTING = Resting()
atexit.register(RESTING.end)
# A child has no threads that drive the processes: these stay with its parent.
os.register_at_fork(after_in_child=RESTING.reset)
