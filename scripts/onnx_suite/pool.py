"""Runs cases in processes that may crash or hang; every case ends with a row."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, get_context
from typing import Any

from tcc.runtime.children import end_with_parent, ending

from onnx_suite.cases import SuiteCase, category
from onnx_suite.judge import SuiteRow

_CASES_PER_PROCESS = 150  # limits the memory for loaded artifacts, which a process never frees
_FORK = get_context("fork")  # forked processes have the cases, which only this process makes


class _Worker:
    """A process that judges cases, which it gets as indices.

    `number` is the index of its current case, `started` and `deadline` are times of this case
    (`time.monotonic`), and `count` is how many cases it got.
    """

    def __init__(self, judge_number: Callable[[int], SuiteRow]) -> None:
        self.pipe, worker_pipe = _FORK.Pipe()
        self.process = _FORK.Process(
            target=_serve, args=(worker_pipe, self.pipe, judge_number), daemon=True
        )
        self.process.start()
        worker_pipe.close()
        self.number, self.deadline, self.count, self.started = -1, 0.0, 0, 0.0

    def give(self, number: int, limit: float) -> None:
        self.number, self.started = number, time.monotonic()
        self.deadline = self.started + limit
        self.count += 1
        self.pipe.send(number)

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


def _serve(pipe: Any, parents: Any, judge_number: Callable[[int], SuiteRow]) -> None:
    parents.close()
    end_with_parent(pipe.fileno())
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        pipe.send(judge_number(number))


def rows(
    cases: Sequence[SuiteCase], judge_case: Callable[[SuiteCase], SuiteRow], jobs: int, limit: float
) -> Iterator[SuiteRow]:
    """Judges cases in `jobs` processes; yields the row of each case as soon as there is one.

    A case may take `limit` seconds. If a process dies or takes longer, its case gets the outcome
    "crash" or "hang", and a new process gets the next case.
    """
    pending = deque(range(len(cases)))
    workers: list[_Worker] = []
    try:
        while pending or workers:
            while pending and len(workers) < jobs:
                workers.append(_Worker(lambda number: judge_case(cases[number])))
                workers[-1].give(pending.popleft(), limit)
            first = min(worker.deadline for worker in workers)
            ready = connection.wait(
                [worker.pipe for worker in workers], max(first - time.monotonic(), 0)
            )
            for worker in list(workers):
                row = _row(worker, cases, worker.pipe in ready)
                if row is None:
                    continue
                yield row
                ended = row.outcome in ("crash", "hang") or worker.count >= _CASES_PER_PROCESS
                if ended or not pending:
                    worker.end()
                    workers.remove(worker)
                else:
                    worker.give(pending.popleft(), limit)
    finally:
        for worker in workers:
            worker.end()


def _row(worker: _Worker, cases: Sequence[SuiteCase], ready: bool) -> SuiteRow | None:
    """Returns the row of the worker's case, or None if it is still busy and has time left.

    `ready` is True if the worker's pipe has data or is closed.
    """
    if ready:
        try:
            row: SuiteRow = worker.pipe.recv()
            return row
        except (EOFError, ConnectionResetError):
            worker.process.join()
            return _lost(worker, cases, "crash", ending(worker.process.exitcode or 0))
    if time.monotonic() < worker.deadline:
        return None
    return _lost(worker, cases, "hang", "over the time limit")


def _lost(worker: _Worker, cases: Sequence[SuiteCase], outcome: str, why: str) -> SuiteRow:
    case = cases[worker.number]
    seconds = time.monotonic() - worker.started
    return SuiteRow(case.name, category(case, case.load()[0]), outcome, seconds, why)
