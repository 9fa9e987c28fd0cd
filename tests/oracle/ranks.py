"""Runs the ranks of one job in lockstep in this process, one at a time.

A rank goes on until it reaches a collective or its end; then the next one does.  When all ranks
wait in a collective it is computed for all.  Where one waits that no other will meet, because that
one has ended or is in another collective, every rank ends with `Stuck`: so nothing ever hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from tcc.ir.op import Array

T = TypeVar("T")
# All ranks' results of a collective, from all ranks' operands.
Collected = Callable[[Sequence[Array]], Sequence[Array]]


class Stuck(Exception):
    """A wait that can never end."""


class Rank:
    """What one rank sees of the job."""

    def __init__(self, job: _Job, number: int) -> None:
        self._job, self.number = job, number

    def meet(self, call: Hashable, operand: Array, collected: Collected) -> Array:
        """This rank's result of the collective `call`, which all ranks issue with equal `call`s."""
        return self._job.meet(self.number, call, operand, collected)


def in_lockstep(size: int, run: Callable[[Rank], T]) -> list[T]:
    """What `run` returns on each of `size` ranks.

    Raises the first rank's error where one fails, and `Stuck` where one waits for ever.
    """
    return _Job(size).run(run)


class _Job:
    def __init__(self, size: int) -> None:
        self._turn = [threading.Event() for _ in range(size)]
        self._calls: list[tuple[Hashable, Array, Collected] | None] = [None] * size
        self._results: list[Array | None] = [None] * size
        self._ended: dict[int, Any] = {}  # what ranks returned
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self, run: Callable[[Rank], T]) -> list[T]:
        threads = [
            threading.Thread(target=self._one, args=(run, number), daemon=True)
            for number in range(len(self._turn))
        ]
        for thread in threads:
            thread.start()
        self._turn[0].set()
        self._done.wait()
        for turn in self._turn:
            turn.set()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return [self._ended[number] for number in range(len(threads))]

    def _one(self, run: Callable[[Rank], Any], number: int) -> None:
        self._turn[number].wait()
        try:
            if self._error is None:
                self._ended[number] = run(Rank(self, number))
                self._go_on(number)
        except BaseException as error:
            self._error = self._error or error
            self._done.set()

    def meet(self, number: int, call: Hashable, operand: Array, collected: Collected) -> Array:
        self._calls[number] = call, operand, collected
        self._turn[number].clear()
        self._go_on(number)
        self._turn[number].wait()
        if self._error is not None:
            raise self._error
        found, self._results[number] = self._results[number], None
        assert found is not None
        return found

    def _go_on(self, number: int) -> None:
        """The turn is the next rank's; behind the last one all of them have stopped."""
        last = number == len(self._turn) - 1
        if last and len(self._ended) == len(self._turn):
            self._done.set()
            return
        if last:
            self._collect()
        self._turn[(number + 1) % len(self._turn)].set()

    def _collect(self) -> None:
        waiting = {n: call[0] for n, call in enumerate(self._calls) if call is not None}
        told = [f"rank {n} waits in {call}" for n, call in waiting.items()]
        told += [f"rank {n} has ended" for n in self._ended]
        if self._ended or len(set(waiting.values())) > 1:
            raise Stuck("; ".join(told))
        operands = [call[1] for call in self._calls if call is not None]
        first = self._calls[0]
        assert first is not None
        self._results = list(first[2](operands))
        self._calls = [None] * len(self._calls)
