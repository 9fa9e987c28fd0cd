"""Memory that there is, that processes take, and the most that this one gets."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_DATA, getrlimit, setrlimit

_PAGE = os.sysconf("SC_PAGE_SIZE")
# Where groups of version 2 and of version 1 are, and how they call their limit.
_GROUPS = ("sys/fs/cgroup", "memory.max"), ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
_LOCK = threading.Lock()
_LIMITS: list[int] = []  # in force, of all threads
_BEFORE: list[int] = []  # the soft and the hard limit before the first one

# Processes that work for this one, with the bytes that each had when it began: a fork has those of
# its parent, and they are there once.
HELPERS: dict[int, int] = {}


def memory_here(root: Path = Path("/")) -> int:
    """Bytes of memory of this machine, or of the process's control group where that has less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * _PAGE]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if {"", "memory"} & {*controllers.split(",")}:
            for folder, file in _GROUPS:
                # what is around a group limits it too; a container may not see all of the path
                place = root / folder / group.strip("/") / file
                texts = [_text(parent / file) for parent in place.parents]
                limits += [int(text) for text in texts if text.isdecimal()]
    return min(limits)


def taken(process: int | str = "self") -> int:
    """Bytes that a process takes and no file holds; 0 where it has ended."""
    text = _text(Path(f"/proc/{process}/statm")) or "0 0 0"
    _, resident, shared, *_ = map(int, text.split())
    return (resident - shared) * _PAGE


def taken_together() -> int:
    """Bytes that this process and its helpers take."""
    helpers = (max(taken(process) - before, 0) for process, before in list(HELPERS.items()))
    return taken() + sum(helpers)


def data() -> int:
    """Bytes of this process that `RLIMIT_DATA` counts: also those that it has not touched."""
    return int(_text(Path("/proc/self/status")).partition("VmData:")[2].split()[0]) << 10


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Inside, this process, and each that it starts, is refused memory beyond `limit` bytes of
    data.  Contexts of several threads may overlap; behind the last one all is as before."""
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
    """Whether a limit of `at_most` is what memory beyond is refused for."""
    return getrlimit(RLIMIT_DATA)[0] in _LIMITS


def _apply() -> None:
    finite = (limit for limit in (*_LIMITS, *_BEFORE) if limit != RLIM_INFINITY)
    setrlimit(RLIMIT_DATA, (min(finite, default=RLIM_INFINITY), _BEFORE[1]))


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return ""
