"""Temporary folders that disappear however the process that made them ends."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex


@contextmanager
def temporary_folder(prefix: str = "tcc-", parent: Path | None = None) -> Iterator[Path]:
    """Yields a new folder in `parent` (default: the system's temporary folder), then removes it.

    Forks of the process do not remove it.  The name is known before the folder exists, and the
    removal starts again after an interruption, so a signal at any time leaves nothing.  Raises
    OSError where the folder cannot be made.
    """
    folder = Path(parent or tempfile.gettempdir(), f"{prefix}{token_hex(8)}")
    process = os.getpid()
    try:
        try:
            folder.mkdir(0o700)
            yield folder
        finally:
            _remove(folder, process)
    finally:
        _remove(folder, process)


@contextmanager
def locked_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """Yields a `temporary_folder`, after removing the leftovers of killed processes.

    Leftovers are the folders of this prefix that no process has locked: a lock says that the
    folder's process lives. Process ids would not tell this across containers.
    """
    for leftover in parent.glob(f"{prefix}*"):
        with _locked(leftover) as locked:
            if locked:
                shutil.rmtree(leftover, ignore_errors=True)
    while True:
        with temporary_folder(prefix, parent) as folder, _locked(folder) as locked:
            if locked is not False:  # if False, another process removes the folder
                yield folder
                return


@contextmanager
def _locked(folder: Path) -> Iterator[bool | None]:
    """Locks the folder within its block and yields whether that succeeded.

    Yields False where another process has the lock or another user owns the folder, and None where
    the file system has no locks.
    """
    with ExitStack() as closing:
        locked: bool | None = False
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(folder, flags)
            closing.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = os.fstat(descriptor).st_uid == os.geteuid() and folder.exists()
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:
            locked = None
        yield locked


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
