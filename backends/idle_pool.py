"""Keeps worker processes alive between two compiles."""

import atexit
import os
import threading
from typing import TypeAlias

from tcc.backends.workers import WorkerPool

_SECONDS = 10.0
_Key: TypeAlias = tuple[object, ...]


class Resting:
    """Keeps the pools of finished compiles for some seconds, for compiles with the same key.

    Starting processes takes a considerable part of a second, or more.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Forgets all pools without ending their processes."""
        self._lock = threading.Lock()
        self._held: dict[_Key, tuple[WorkerPool, threading.Timer]] = {}

    def leave(self, key: _Key, pool: WorkerPool) -> None:
        """Keeps a pool for some seconds and drops any other pool with this key.

        A pool that cannot serve another compile is ended.
        """
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
        """Returns the pool that was left under an equal key if its processes still run, else
        None."""
        with self._lock:
            pool = self._pop(key)
        if pool is None or pool.forget():
            return pool
        pool.abandon()
        return None

    def end(self) -> None:
        """Ends all pools."""
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
            current, clock = self._held.get(key, (None, None))
            # A timer may be cancelled when it has already fired. Then the key has another pool, the
            # pool with another timer, or none, and nothing is ended here.
            if current is not pool or clock is not threading.current_thread():
                return
            del self._held[key]
        pool.abandon()


RESTING = Resting()
atexit.register(RESTING.end)
# A forked child lacks the threads that serve the processes, so these stay with the parent.
os.register_at_fork(after_in_child=RESTING.reset)
