"""Benchmark rounds: peers take turns, so that drift of the machine affects all of them equally.

Two ratios compare tcc with its peers; above 1 tcc is faster.

`paired_ratio` is the median over rounds of (time of the fastest peer) / (time of tcc) in the same
round. A slow minute of the machine slows both runtimes, so their ratio changes little.
`best_ratio` is the time of the fastest peer's best round divided by the time of tcc's best round.
It shows the speeds on a machine on which nothing else runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

# Idle workers of a runtime spin for tens of milliseconds before they sleep; until then they would
# take a processor from the next peer.
REST = 0.15
# A round was disturbed if it took more than this many times as long as the best round. Rounds on a
# machine that does nothing else differ less.
_SCATTER = 10 / 9

# A function that runs a peer and returns the seconds of its runs.
Turn = Callable[[], Sequence[float]]


class TimedPeer(Protocol):
    """A runtime that runs a model."""

    @property
    def kind(self) -> str:
        """Returns the name of the peer."""

    def seconds(self, count: int) -> list[float]:
        """Returns the wall seconds of each of `count` runs."""


@dataclass(frozen=True, slots=True)
class Times:
    """The wall seconds of a peer's runs.

    `least` is the shortest run, and `median` the median of all runs. `rounds` has the median of the
    runs in each round, and `runs` is the number of all runs.
    """

    least: float
    median: float
    rounds: tuple[float, ...]
    runs: int

    @property
    def best(self) -> float:
        """Returns the median of the best round: the peer's time on an undisturbed machine."""
        return min(self.rounds)

    @property
    def scattered(self) -> int:
        """Returns the number of rounds that took over a ninth longer than the best round."""
        return sum(value > _SCATTER * self.best for value in self.rounds)


def paired_ratio(tcc: Sequence[float], peers: Sequence[Sequence[float]]) -> float:
    """Returns the median over rounds of a ratio: the fastest peer's seconds, divided by tcc's in
    the same round.

    `tcc` and each of `peers`, at least one, hold the seconds of each round. Raises ValueError if
    their numbers of rounds differ.
    """
    fastest = map(min, zip(*peers, strict=True))
    return float(
        statistics.median(other / seconds for seconds, other in zip(tcc, fastest, strict=True))
    )


def best_ratio(tcc: Sequence[float], peers: Sequence[Sequence[float]]) -> float:
    """Returns the seconds of the fastest peer's best round, divided by those of tcc's best round.

    `tcc` and each of `peers`, at least one, hold the seconds of each round.
    """
    return min(map(min, peers)) / min(tcc)


def rested(kind: str, turn: Turn) -> Sequence[float]:
    """Waits for `REST` seconds, then runs `turn` and returns its seconds; ignores `kind`."""
    time.sleep(REST)
    return turn()


def interleaved(
    peers: Sequence[TimedPeer],
    rounds: int,
    budget: float,
    between: Callable[[int], None] = lambda number: None,
    take: Callable[[str, Turn], Sequence[float]] = rested,
) -> Mapping[str, Times]:
    """Measures each peer: in each round each peer runs in turn for about `budget` seconds.

    In its turn a peer runs once unmeasured, which wakes its threads.  Each round starts with the
    next peer, so that no peer always runs first.  `between(n)` is called before round n, counted
    from 0.  `take(kind, turn)` calls `turn`, once or several times, and returns the seconds of the
    runs that count; `kind` is the peer's kind.  Returns the times by kind of peer.
    """
    counts = {peer.kind: max(1, round(budget / _typical(peer))) for peer in peers}
    turns: dict[str, list[Sequence[float]]] = {peer.kind: [] for peer in peers}
    for number in range(rounds):
        between(number)
        first = number % len(peers)
        for peer in (*peers[first:], *peers[:first]):
            turn = partial(_turn, peer, counts[peer.kind])
            turns[peer.kind].append(take(peer.kind, turn))
    return {kind: _times(values) for kind, values in turns.items()}


def _turn(peer: TimedPeer, count: int) -> Sequence[float]:
    peer.seconds(1)
    return peer.seconds(count)


def _times(turns: Sequence[Sequence[float]]) -> Times:
    runs = [value for turn in turns for value in turn]
    medians = tuple(map(statistics.median, turns))
    return Times(min(runs), statistics.median(runs), medians, len(runs))


def _typical(peer: TimedPeer) -> float:
    """Returns a rough time of a run in seconds: the shortest of three, as the first is slow."""
    return max(min(peer.seconds(3)), 1e-7)
