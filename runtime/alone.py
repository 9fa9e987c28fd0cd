"""Allows one measurement at a time on a machine: a lock file of the user, across processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def measuring_alone(path: Path, waits: Callable[[], None]) -> Iterator[None]:
    """Waits until no other process is in this context with the lock file `path`.

    `waits` is called once before a wait. A process that ends, however it ends, leaves the context.
    Raises OSError if the file cannot be opened or locked.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
