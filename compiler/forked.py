"""Independent tasks, done by forks of this process."""

import gc
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import Any, TypeVar

_T = TypeVar("_T")
# In a fork, its tasks.
_TASKS: list[Callable[[], Any]] = []


def run_tasks(tasks: Sequence[Callable[[], _T]], jobs: int) -> list[_T]:
    """What the tasks return, in order, by up to `jobs` forks at once.

    A fork holds what this process does; its results come back as pickles, and what else its tasks
    change is lost.  There is none where this process has other Python threads: a fork has their
    locks and not them.  A task that raises in a fork, or whose fork ends, is done again here.
    """
    jobs = min(jobs, len(tasks), len(os.sched_getaffinity(0)))
    found: list[list[_T]] = [[] for _ in tasks]
    if jobs > 1 and threading.active_count() == 1:
        # Of OSError: no more processes are to be had.
        with (
            suppress(BrokenProcessPool, OSError),
            ProcessPoolExecutor(jobs, get_context("fork"), _begin, (tasks,)) as forks,
        ):
            found = list(forks.map(_tried, range(len(tasks))))
    return [own[0] if own else task() for own, task in zip(found, tasks, strict=True)]


def _begin(tasks: Sequence[Callable[[], Any]]) -> None:
    gc.disable()  # it would write to all memory that is shared
    _TASKS[:] = tasks


def _tried(number: int) -> list[Any]:
    """The result of a task; none where it raises."""
    with suppress(Exception):
        return [_TASKS[number]()]
    return []
