"""Tasks shared with forks give what they give one after another."""

import os
import signal
from functools import partial

import pytest
from tcc.forked import run_tasks


@pytest.fixture(autouse=True)
def _three_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that other tests left do not count."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr("tcc.forked.threads", lambda: 1)


def _square(n: int, here: int) -> tuple[int, bool]:
    return n * n, os.getpid() == here


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_results_are_in_order_and_forks_share_the_work(count: int) -> None:
    tasks = [partial(_square, n, os.getpid()) for n in range(count)]
    assert [value for value, _ in run_tasks(tasks, 3)] == [n * n for n in range(count)]


def test_a_fork_takes_what_this_process_has_not_begun() -> None:
    started, here = os.pipe(), os.getpid()

    def wait() -> bool:
        """Ends here when the fork has begun the other task, and there has begun it."""
        if os.getpid() == here:
            return os.read(started[0], 1) == b"x"
        return os.write(started[1], b"x") == 1

    assert run_tasks([wait, wait], 2) == [True, True]
    for end in started:
        os.close(end)


def test_one_job_and_other_threads_make_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [partial(_square, n, os.getpid()) for n in range(9)]
    assert all(here for _, here in run_tasks(tasks, 1))
    monkeypatch.setattr("tcc.forked.threads", lambda: 2)
    assert all(here for _, here in run_tasks(tasks, 2))


def _only_here(n: int, here: int, end: bool) -> int:
    if os.getpid() != here:
        if end:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("not here")
    return n


@pytest.mark.parametrize("end", [False, True])
def test_what_a_fork_leaves_undone_is_done_here(end: bool) -> None:
    tasks = [partial(_only_here, n, os.getpid(), end) for n in range(50)]
    assert run_tasks(tasks, 3) == list(range(50))


def _fails(n: int) -> int:
    if n == 3:
        raise ValueError("task 3")
    return n


def test_a_task_that_fails_everywhere_raises_and_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forks, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(fork()) or forks[-1])
    with pytest.raises(ValueError, match="task 3"):
        run_tasks([partial(_fails, n) for n in range(8)], 2)
    assert len(forks) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(forks[0], 0)


def test_no_file_stays_open() -> None:
    before = os.listdir("/proc/self/fd")
    run_tasks([partial(_square, n, 0) for n in range(8)], 3)
    assert len(os.listdir("/proc/self/fd")) == len(before)
