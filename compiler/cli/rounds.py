"""Benchmark rounds: peers take turns, so that drift of the machine meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tcc.cli.peer import Peer

# Idle workers of a runtime spin for tens of milliseconds before they sleep; until then they would
# take a processor from the next peer.
REST = 0.15


@dataclass(frozen=True, slots=True)
class Times:
    """Wall seconds of one peer's runs: the shortest run, the median of all runs, the median of
    each round."""

    least: float
    median: float
    rounds: tuple[float, ...]
    runs: int

    @property
    def best(self) -> float:
        """The median of the best round: what the peer does while the machine is at its best."""
        return min(self.rounds)


def interleaved(
    peers: Sequence[Peer],
    rounds: int,
    budget: float,
    rest: float = REST,
    between: Callable[[int], None] = lambda number: None,
) -> Mapping[str, Times]:
    """Times of each peer: in each round each peer runs in turn for about `budget` seconds.

    Before its turn a peer rests for `rest` seconds and runs once unmeasured, which wakes its
    threads.  Each round starts with another peer, so that none always follows the same one.
    `between` is called with each round's number, from 0, before it begins.
    """
    counts = {peer.kind: max(1, round(budget / _typical(peer))) for peer in peers}
    seconds: dict[str, list[list[float]]] = {peer.kind: [] for peer in peers}
    for number in range(rounds):
        between(number)
        first = number % len(peers)
        for peer in (*peers[first:], *peers[:first]):
            time.sleep(rest)
            peer.seconds(1)
            seconds[peer.kind].append(peer.seconds(counts[peer.kind]))
    return {kind: _times(values) for kind, values in seconds.items()}


def _times(rounds: Sequence[Sequence[float]]) -> Times:
    runs = [value for values in rounds for value in values]
    medians = tuple(statistics.median(values) for values in rounds)
    return Times(min(runs), statistics.median(runs), medians, len(runs))


def _typical(peer: Peer) -> float:
    """Seconds of a run, roughly: the first ones after loading are slow."""
    return max(min(peer.seconds(3)), 1e-7)
