"""Folders for a moment, gone however the process that made them ends."""

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
    """A new folder in `parent`, or in that for temporary files; forks of its process leave it
    alone.

    Its name is known before it is made, and its removal is begun again after an interruption: a
    signal leaves nothing, whenever it comes.  Raises OSError where it cannot be made.
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
    """As `temporary_folder`, where killed processes may have left some of this prefix, which are
    removed first.

    A lock on each says that its process lives, also where a process has another number elsewhere.
    """
    for leftover in parent.glob(f"{prefix}*"):
        with _locked(leftover) as locked:
            if locked:
                shutil.rmtree(leftover, ignore_errors=True)
    while True:
        with temporary_folder(prefix, parent) as folder, _locked(folder) as locked:
            if locked is not False:  # else another process takes it for one that was left
                yield folder
                return


@contextmanager
def _locked(folder: Path) -> Iterator[bool | None]:
    """Whether this process alone has the folder, which is this user's, within the block; None where
    the disk has no locks."""
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
