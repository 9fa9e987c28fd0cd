"""Allows one measurement at a time on a machine: a lock file of the user, across processes."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tcc.errors import file_errors


@contextmanager
def measuring_alone(path: Path, waits: Callable[[], None]) -> Iterator[None]:
    """Waits until no other process is in this context with the lock file `path`.

    `waits` is called once before a wait. A process that ends, however it ends, leaves the context.
    Raises UserError if the file cannot be opened or locked.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with file_errors("the lock of measurements cannot be used", path):
        descriptor = os.open(path, flags, 0o600)
    try:
        with file_errors("the lock of measurements cannot be used", path):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waits()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
