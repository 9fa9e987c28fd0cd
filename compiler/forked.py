"""Independent tasks, shared between this process and forks of it."""

import gc
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any, TypeVar

_T = TypeVar("_T")
_WIDTH = 4  # bytes of a task's number in a pipe: a read gives all of them or none
_MOST = 1 << 12  # numbers that fit into a pipe which nobody reads yet


def run_tasks(tasks: Sequence[Callable[[], _T]], jobs: int) -> list[_T]:
    """What the tasks return, in order, by up to `jobs` processes, each of which takes the next task
    when it has finished one.

    A fork holds what this process does; its results come back as pickles, and what else its tasks
    change is lost.  None is made where this process has other Python threads: a fork has their
    locks and not them.  A task that raises in a fork, or whose fork ends, is done again here.
    """
    jobs = min(jobs, len(tasks), len(os.sched_getaffinity(0)))
    if jobs < 2 or threading.active_count() > 1:
        return [task() for task in tasks]
    done: dict[int, _T] = {}
    with ExitStack() as ending:
        numbers = _pipe_of(range(min(len(tasks), _MOST)))
        ending.callback(os.close, numbers)
        forks: list[IO[bytes]] = []
        with suppress(OSError):  # no more processes are to be had: fewer do the work
            forks += (ending.enter_context(_fork(tasks, numbers)) for _ in range(jobs - 1))
        done.update((n, tasks[n]()) for n in _taken(numbers))
        for results in forks:
            with suppress(EOFError, pickle.UnpicklingError):  # the fork has ended
                done.update(pickle.load(results))
    return [done[n] if n in done else task() for n, task in enumerate(tasks)]


def _pipe_of(numbers: Sequence[int]) -> int:
    """A pipe to read the numbers from."""
    source, sink = os.pipe()
    with open(sink, "wb") as file:
        file.write(b"".join(n.to_bytes(_WIDTH, "little") for n in numbers))
    return source


def _taken(numbers: int) -> Iterator[int]:
    """Numbers that no other process takes."""
    while number := os.read(numbers, _WIDTH):
        yield int.from_bytes(number, "little")


@contextmanager
def _fork(tasks: Sequence[Callable[[], Any]], numbers: int) -> Iterator[IO[bytes]]:
    """What a fork writes, which does tasks and ends, at the latest with this context."""
    source, sink = os.pipe()
    with open(source, "rb") as results, open(sink, "wb") as file:
        with warnings.catch_warnings():  # of threads of libraries, which no task uses
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if not process:
            try:
                gc.disable()  # it would write to all memory that is shared
                pickle.dump(_results(tasks, numbers), file)
                file.flush()
            finally:
                os._exit(0)
        file.close()
        try:
            yield results
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _results(tasks: Sequence[Callable[[], Any]], numbers: int) -> dict[int, Any]:
    """Those of the tasks up to the first that raises."""
    done = {}
    with suppress(Exception):
        for n in _taken(numbers):
            done[n] = tasks[n]()
    return done
