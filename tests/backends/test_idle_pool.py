"""Tests of idle worker pools between two compiles, with workers that return their process id."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tcc.backends import workers
from tcc.backends.idle_pool import Resting
from tcc.backends.workers import WorkerFailedError, WorkerPool

NUMBER = """
import os
from tcc.backends.workers import serve

def main():
    serve(answer)

def answer(request):
    os.write(2, request.encode())
    return (os.getpid(), request), "it was told to" if request == "fail" else ""
"""
KEY = ("number_worker", 1)


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    (tmp_path / "number_worker.py").write_text(NUMBER)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    worker_pool = WorkerPool("number_worker", 1)
    yield worker_pool
    worker_pool.abandon()


def asked(pool: WorkerPool, word: str = "a long word") -> int:
    """Returns the id of the answering process, which writes the word to its standard error."""
    ((number, _),) = pool.answers([pool.submit(word)])
    assert isinstance(number, int)
    return number


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_next_compile_has_the_same_process_and_nothing_of_the_last(pool: WorkerPool) -> None:
    resting, process = Resting(), asked(pool)
    resting.leave(KEY, pool)
    assert resting.take(("number_worker", 2)) is None
    assert resting.take(KEY) is pool
    assert resting.take(KEY) is None
    assert pool.submit("again") == 0
    assert pool.answers([0]) == [(process, "again")]
    with pytest.raises(WorkerFailedError) as error:
        asked(pool, "fail")
    assert error.value.why == "it was told to\nagainfail"


def test_an_idle_process_ends_after_its_timeout_which_each_use_restarts(pool: WorkerPool) -> None:
    resting, process = Resting(0.2), asked(pool)
    resting.leave(KEY, pool)
    assert resting.take(KEY) is pool
    time.sleep(0.3)
    assert asked(pool) == process
    resting.leave(KEY, pool)
    for _ in range(200):
        if not is_running(process):
            break
        time.sleep(0.02)
    assert not is_running(process)
    assert resting.take(KEY) is None


def test_a_failed_pool_is_not_kept_idle(pool: WorkerPool) -> None:
    resting, process = Resting(), asked(pool)
    with pytest.raises(WorkerFailedError):
        asked(pool, "fail")
    resting.leave(KEY, pool)
    assert resting.take(KEY) is None
    assert not is_running(process)


def test_a_process_that_died_while_idle_is_not_reused(pool: WorkerPool) -> None:
    resting, process = Resting(), asked(pool)
    resting.leave(KEY, pool)
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert resting.take(KEY) is None


def test_pools_of_several_kinds_are_idle_at_once(pool: WorkerPool) -> None:
    resting, other = Resting(), WorkerPool("number_worker", 0)
    other.wake(1)
    first, second = asked(pool), asked(other)
    resting.leave(KEY, pool)
    resting.leave(("another", 1), other)
    assert resting.take(KEY) is pool
    assert resting.take(("another", 1)) is other
    assert asked(pool) == first
    resting.leave(KEY, other)
    resting.end()
    assert not is_running(second)
    assert is_running(first)


def test_processes_that_have_served_much_end(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_MOST_SERVED", 2)
    resting, process = Resting(), asked(pool)
    resting.leave(KEY, pool)
    assert resting.take(KEY) is pool
    assert asked(pool) == process
    asked(pool)
    resting.leave(KEY, pool)
    assert not is_running(process)
