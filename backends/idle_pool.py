"""Worker processes between two compiles."""

import atexit
import os
import threading
from typing import TypeAlias

from tcc.backends.workers import WorkerPool

_SECONDS = 10.0
_Key: TypeAlias = tuple[object, ...]


class Resting:
    """Holds the pools that compiles have left, for others like them that come soon: processes take
    a part of a second, or more, to start."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Holds none; those held before are not ended."""
        self._lock = threading.Lock()
        self._held: dict[_Key, tuple[WorkerPool, threading.Timer]] = {}

    def leave(self, key: _Key, pool: WorkerPool) -> None:
        """Holds a pool for some seconds, in place of another; one that cannot go on is ended."""
        if not pool.forget():
            pool.abandon()
            return
        clock = threading.Timer(self._seconds, self._end, (key, pool))
        clock.daemon = True
        with self._lock:
            other = self._pop(key)
            self._held[key] = pool, clock
            clock.start()
        if other is not None:
            other.abandon()

    def take(self, key: _Key) -> WorkerPool | None:
        """The pool that was left under an equal key, if its processes are still there."""
        with self._lock:
            pool = self._pop(key)
        if pool is None or pool.forget():
            return pool
        pool.abandon()
        return None

    def end(self) -> None:
        """Ends all pools that are held."""
        with self._lock:
            pools = [self._pop(key) for key in list(self._held)]
        for pool in pools:
            assert pool is not None
            pool.abandon()

    def _pop(self, key: _Key) -> WorkerPool | None:
        pool, clock = self._held.pop(key, (None, None))
        if clock is not None:
            clock.cancel()
        return pool

    def _end(self, key: _Key, pool: WorkerPool) -> None:
        with self._lock:
            held, clock = self._held.get(key, (None, None))
            # One that was cancelled as it went off finds another in its place, or none.
            if held is not pool or clock is not threading.current_thread():
                return
            del self._held[key]
        pool.abandon()


RESTING = Resting()
atexit.register(RESTING.end)
# A child has no threads that drive the processes: these stay with its parent.
os.register_at_fork(after_in_child=RESTING.reset)
