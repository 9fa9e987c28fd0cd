"""Memory of the machine, memory that processes take, and limits on this process."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_DATA, getrlimit, setrlimit

_PAGE = os.sysconf("SC_PAGE_SIZE")
# The folder and the limit file of control groups, of version 2 and of version 1.
_GROUPS = ("sys/fs/cgroup", "memory.max"), ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
_LOCK = threading.Lock()
_LIMITS: list[int] = []  # the limits that contexts of `at_most` in all threads ask for
_BEFORE: list[int] = []  # the process's soft and hard limit before the first `at_most`

# Processes that work for this one, with the bytes that each had when it began.  A fork shares those
# bytes with its parent, so they are not counted again.
HELPERS: dict[int, int] = {}


def memory_here(root: Path = Path("/")) -> int:
    """Returns the machine's bytes of memory, or the control group's limit where that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * _PAGE]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if {"", "memory"} & {*controllers.split(",")}:
            for folder, file in _GROUPS:
                # Limits of the enclosing groups apply too; a container may not see all of the path.
                place = root / folder / group.strip("/") / file
                texts = [_text(parent / file) for parent in place.parents]
                limits += [int(text) for text in texts if text.isdecimal()]
    return min(limits)


def taken(process: int | str = "self") -> int:
    """Returns the resident bytes of a process that are not pages of files; 0 if the process has
    ended."""
    text = _text(Path(f"/proc/{process}/statm")) or "0 0 0"
    _, resident, shared, *_ = map(int, text.split())
    return (resident - shared) * _PAGE


def taken_together() -> int:
    """Returns the bytes that this process and its helpers take."""
    helpers = (max(taken(process) - before, 0) for process, before in list(HELPERS.items()))
    return taken() + sum(helpers)


def data() -> int:
    """Returns the bytes of this process that `RLIMIT_DATA` counts, pages that were never touched
    included."""
    return int(_text(Path("/proc/self/status")).partition("VmData:")[2].split()[0]) << 10


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Limits this process, and each process that it starts, to `limit` bytes of data in its block.

    Contexts of several threads may overlap; the end of the last one restores the old limit.
    """
    with _LOCK:
        if not _LIMITS:
            _BEFORE[:] = getrlimit(RLIMIT_DATA)
        _LIMITS.append(limit)
        _apply()
    try:
        yield
    finally:
        with _LOCK:
            _LIMITS.remove(limit)
            _apply()


def is_limited() -> bool:
    """True where a limit of `at_most` is the limit in force."""
    return getrlimit(RLIMIT_DATA)[0] in _LIMITS


def _apply() -> None:
    finite = (limit for limit in (*_LIMITS, *_BEFORE) if limit != RLIM_INFINITY)
    setrlimit(RLIMIT_DATA, (min(finite, default=RLIM_INFINITY), _BEFORE[1]))


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return ""
