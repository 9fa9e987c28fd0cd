"""Benchmark rounds: peers take turns, so that drift of the machine meets all of them alike; turns
that a disturbance of the machine fell into can be taken again, whosever they are."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from tcc.cli.peers.peer import Peer
from tcc.record import record

# Idle workers of a runtime spin for tens of milliseconds before they sleep; until then they would
# take a processor from the next peer.
REST = 0.15
# A round that takes longer than the best one by more than this factor was disturbed: rounds of a
# machine that does nothing else lie closer together.
_SCATTER = 10 / 9


T = TypeVar("T")


class Watch(Protocol):
    """Looks at what else the machine is doing."""

    def calm(self) -> bool:
        """Whether the machine gives this process at this moment what it can give."""

    def patient(self) -> bool:
        """Whether there is time to wait for a calmer moment."""


@record
class Times:
    """Wall seconds of one peer's runs: the shortest run, the median of all runs, the median of
    each round; in `disturbed` rounds the machine was not at its best."""

    least: float
    median: float
    rounds: tuple[float, ...]
    runs: int
    disturbed: int = 0

    @property
    def best(self) -> float:
        """The median of the best round: what the peer does while the machine is at its best."""
        return min(self.rounds)

    @property
    def scattered(self) -> int:
        """The rounds that took over a ninth longer than the best one."""
        return sum(value > _SCATTER * self.best for value in self.rounds)


def interleaved(
    peers: Sequence[Peer],
    rounds: int,
    budget: float,
    rest: float = REST,
    between: Callable[[int], None] = lambda number: None,
    watch: Watch | None = None,
) -> Mapping[str, Times]:
    """Times of each peer: in each round each peer runs in turn for about `budget` seconds.

    Before its turn a peer rests for `rest` seconds and runs once unmeasured, which wakes its
    threads.  Each round starts with another peer, so that none always follows the same one.
    `between` is called with each round's number, from 0, before it begins.  With a `watch` every
    peer's turn is taken again while the machine is disturbed, as long as its patience lasts.
    """
    counts = {peer.kind: max(1, round(budget / _typical(peer))) for peer in peers}
    turns: dict[str, list[_Turn]] = {peer.kind: [] for peer in peers}
    for number in range(rounds):
        between(number)
        first = number % len(peers)
        for peer in (*peers[first:], *peers[:first]):
            turns[peer.kind].append(_turn(peer, counts[peer.kind], rest, watch))
    return {kind: _times(values) for kind, values in turns.items()}


@record
class _Turn:
    seconds: Sequence[float]
    calm: bool


def undisturbed(run: Callable[[], T], watch: Watch, rest: float = 0.0) -> tuple[T, bool]:
    """What `run` returns, and whether the machine was calm on both sides of it: else it is the last
    run that there was patience for.  Rests for `rest` seconds before each look."""
    while True:
        time.sleep(rest)
        before = watch.calm()
        if before or not watch.patient():
            found = run()
            time.sleep(rest)
            calm = watch.calm() and before
            if calm or not watch.patient():
                return found, calm


def _turn(peer: Peer, count: int, rest: float, watch: Watch | None) -> _Turn:
    def run() -> Sequence[float]:
        peer.seconds(1)
        return peer.seconds(count)

    if watch is not None:
        return _Turn(*undisturbed(run, watch, rest))
    time.sleep(rest)
    return _Turn(run(), True)


def _times(turns: Sequence[_Turn]) -> Times:
    runs = [value for turn in turns for value in turn.seconds]
    medians = tuple(statistics.median(turn.seconds) for turn in turns)
    disturbed = sum(not turn.calm for turn in turns)
    return Times(min(runs), statistics.median(runs), medians, len(runs), disturbed)


def _typical(peer: Peer) -> float:
    """Seconds of a run, roughly: the first ones after loading are slow."""
    return max(min(peer.seconds(3)), 1e-7)
