"""Runs the ranks of one job in lockstep in this process, one at a time.

A rank runs until it reaches a collective or its end; then the next rank runs. When all have
stopped, each collective that all its ranks have reached is computed, and its ranks go on. If there
is none, because ranks wait for ended ranks or for ranks in another collective, every rank ends with
`Stuck`. So no run hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from tcc.ir.op import Array
from tcc.ir.program import CollectiveKind
from tcc.ops.collective import CollectiveAttrs

from tests.lib.oracle.collectives import collected

T = TypeVar("T")
# Computes all ranks' results of a collective from all ranks' operands.
Collected = Callable[[Sequence[Any]], Sequence[Array]]
Counts = Sequence[int]


class Stuck(Exception):
    """A wait can never end."""


def block_counts(kind: CollectiveKind, ranks: int, counts: Counts) -> tuple[Counts, Counts]:
    """Returns the counts of the blocks that a rank sends and receives, like `Collective`'s."""
    sends, receives = (ranks if side else 1 for side in (kind.sends_blocks, kind.receives_blocks))
    if len(counts) == 1:
        return [*counts] * sends, [*counts] * receives
    assert len(counts) == sends + receives
    return counts[:sends], counts[sends:]


def exchanged(
    rank: Rank,
    kind: CollectiveKind,
    attrs: CollectiveAttrs,
    x: Array,
    counts: Counts = (),
    call: Hashable = None,
) -> Array:
    """Returns a rank's result of a collective of x.

    `counts` are the sizes of its blocks along axis 0. All ranks give an equal `call`. Raises
    `Stuck` if a rank sends a block of another size than expected.
    """
    ranks = next((group for group in attrs.members if rank.number in group), ())
    uneven = len(counts) > 1

    def results(all_: Sequence[tuple[Array, Counts]]) -> Sequence[Array]:
        xs, splits = zip(*all_, strict=True)
        if not uneven:
            return collected(kind, attrs, xs)
        block_counts_of = [block_counts(kind, len(xs), group) for group in splits]
        for a, (sent, _) in enumerate(block_counts_of):
            for b, (_, due) in enumerate(block_counts_of):
                count = sent[b % len(sent)]
                if count != due[a]:
                    raise Stuck(f"{a} sends {count} elements to {b}, which expects {due[a]}")
        return collected(kind, attrs, xs, [np.cumsum(sent[:-1]) for sent, _ in block_counts_of])

    shape = x.shape[1:] if uneven else x.shape
    name = (kind.name.lower(), replace(attrs, rows=()), x.dtype.name, shape, call)
    return rank.meet(name, (x, counts), results, ranks)


class Rank:
    """A rank's access to the job."""

    def __init__(self, job: _Job, number: int) -> None:
        self._job, self.number = job, number

    def meet(
        self, call: Hashable, operand: Any, collected: Collected, ranks: Sequence[int] = ()
    ) -> Array:
        """Returns this rank's result of the collective `call`.

        All of `ranks`, or of the job, issue it with an equal `call`. Operands and results are in
        the order of `ranks`.
        """
        return self._job.meet(self.number, _Call(call, tuple(ranks), operand, collected))


def in_lockstep(size: int, run: Callable[[Rank], T]) -> list[T]:
    """Returns the results of `run` on each of `size` ranks.

    Raises the first rank's error if a rank fails, and `Stuck` if a rank waits for ever.
    """
    return _Job(size).run(run)


@dataclass
class _Call:
    """A collective in which a rank waits."""

    name: Hashable
    ranks: tuple[int, ...]
    operand: Any
    collected: Collected


class _Job:
    def __init__(self, size: int) -> None:
        self._turn = [threading.Event() for _ in range(size)]
        self._calls: dict[int, _Call] = {}  # Waiting calls by rank.
        self._results: dict[int, Array] = {}
        self._ended: dict[int, Any] = {}  # Return values by rank.
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

    def meet(self, number: int, call: _Call) -> Array:
        call.ranks = call.ranks or tuple(range(len(self._turn)))
        self._calls[number] = call
        self._turn[number].clear()
        self._go_on(number)
        self._turn[number].wait()
        if self._error is not None:
            raise self._error
        return self._results.pop(number)

    def _go_on(self, number: int) -> None:
        """Passes the turn to the next rank that can run; behind the last rank all have stopped."""
        if len(self._ended) == len(self._turn):
            self._done.set()
            return
        idle = {*self._calls, *self._ended}
        later = [n for n in range(number + 1, len(self._turn)) if n not in idle]
        if not later:
            self._collect()
            idle = {*self._calls, *self._ended}
            later = [n for n in range(len(self._turn)) if n not in idle]
        self._turn[later[0]].set()

    def _collect(self) -> None:
        """Computes every collective in which all its ranks wait."""
        told = [f"rank {n} waits in {call.name}" for n, call in sorted(self._calls.items())]
        told += [f"rank {n} has ended" for n in self._ended]
        for call in list(self._calls.values()):
            met = [self._calls[n] for n in call.ranks if n in self._calls]
            if len({(m.name, m.ranks) for m in met}) == 1 and len(met) == len(call.ranks):
                results = call.collected([m.operand for m in met])
                self._results.update(zip(call.ranks, results, strict=True))
                for n in call.ranks:
                    del self._calls[n]
        if len(self._calls) + len(self._ended) == len(self._turn):
            raise Stuck("; ".join(told))
