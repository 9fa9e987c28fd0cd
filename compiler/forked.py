"""Independent tasks, shared between this process and forks of it."""

import gc
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TypeVar

import numpy as np
from tcc.memory import HELPERS, taken
from tcc.watch import threads

_T = TypeVar("_T")


def run_tasks(tasks: Sequence[Callable[[], _T]], jobs: int) -> list[_T]:
    """What the tasks return, in order, by up to `jobs` processes, each of which takes the next task
    when it has finished one.

    A fork holds what this process does; its results come back as pickles, and what else its tasks
    change is lost.  None is made where this process has other Python threads: a fork has their
    locks and not them.  What looks after this one holds no lock that a task takes.  A task that
    raises in a fork, or whose fork ends, is done again here.
    """
    jobs = min(jobs, len(tasks), len(os.sched_getaffinity(0)))
    if jobs < 2 or threads() > 1:
        return [task() for task in tasks]
    done: dict[int, _T] = {}
    with _shared_file() as numbers, ExitStack() as ending:
        numbers.write(np.arange(len(tasks), dtype=np.uint32).tobytes())
        numbers.seek(0)
        forks: list[tuple[int, IO[bytes]]] = []
        with suppress(OSError):  # no more processes are to be had: fewer do the work
            for _ in range(1, jobs):
                forks.append(ending.enter_context(_fork(tasks, numbers)))
        done.update(_results(tasks, numbers))
        for process, results in forks:
            while not os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                time.sleep(1e-3)  # a wait outside of Python could not be ended
            results.seek(0)
            with suppress(EOFError, pickle.UnpicklingError):
                while True:
                    done.update([pickle.load(results)])
    return [done[n] if n in done else task() for n, task in enumerate(tasks)]


def _shared_file() -> IO[bytes]:
    """A file in memory; processes that hold it read and write at one place, which all move on."""
    return open(os.memfd_create("tcc"), "r+b", buffering=0)


def _results(tasks: Sequence[Callable[[], _T]], numbers: IO[bytes]) -> Iterator[tuple[int, _T]]:
    """Those of tasks whose numbers no other process has taken."""
    while number := numbers.read(4):
        n = int.from_bytes(number, sys.byteorder)
        yield n, tasks[n]()


@contextmanager
def _fork(
    tasks: Sequence[Callable[[], object]], numbers: IO[bytes]
) -> Iterator[tuple[int, IO[bytes]]]:
    """A fork that does tasks and ends, at the latest with this context, and what it writes."""
    with _shared_file() as results:
        process = os.fork()
        if not process:
            try:
                gc.disable()  # it would write to all memory that is shared
                for result in _results(tasks, numbers):
                    pickle.dump(result, results)
            finally:
                os._exit(0)
        HELPERS[process] = taken()
        try:
            yield process, results
        finally:
            del HELPERS[process]
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
