"""Benchmark rounds: peers take turns, so that drift of the machine affects all of them equally.

Two ratios compare tcc with its peers; above 1 tcc is faster.

`paired_ratio` divides in each round the time of the fastest peer by tcc's, and takes the median
over rounds. A slow minute of the machine slows both. `best_ratio` divides the best round of the
fastest peer by tcc's best round. It tells how the machine is when nothing else runs.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tcc.cli.peers.peer import Peer
from tcc.frozen import frozen

# Idle workers of a runtime spin for tens of milliseconds before they sleep; until then they would
# take a processor from the next peer.
REST = 0.15
# A round that takes longer than the best one by more than this factor was disturbed: rounds of a
# machine that does nothing else lie closer together.
_SCATTER = 10 / 9

# A function that runs a peer and returns the seconds of its runs.
Turn = Callable[[], Sequence[float]]


@frozen
class Times:
    """Wall seconds of one peer: of its shortest run, the median of all runs, and the median of each
    round."""

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

    The arguments are those of `paired_ratio`.
    """
    return min(map(min, peers)) / min(tcc)


def rested(kind: str, turn: Turn) -> Sequence[float]:
    """Takes a turn after a rest."""
    time.sleep(REST)
    return turn()


def interleaved(
    peers: Sequence[Peer],
    rounds: int,
    budget: float,
    between: Callable[[int], None] = lambda number: None,
    take: Callable[[str, Turn], Sequence[float]] = rested,
) -> Mapping[str, Times]:
    """Measures each peer: in each round each peer runs in turn for about `budget` seconds.

    In its turn a peer runs once unmeasured, which wakes its threads.  Each round starts with the
    next peer, so that no peer always runs first.  `between` is called with each round's number,
    from 0, before the round begins.  `take` is called with a peer's kind and turn and returns the
    seconds; it may take the turn several times.
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


def _turn(peer: Peer, count: int) -> Sequence[float]:
    peer.seconds(1)
    return peer.seconds(count)


def _times(turns: Sequence[Sequence[float]]) -> Times:
    runs = [value for turn in turns for value in turn]
    medians = tuple(map(statistics.median, turns))
    return Times(min(runs), statistics.median(runs), medians, len(runs))


def _typical(peer: Peer) -> float:
    """Returns a rough time of a run in seconds: the shortest of three, as the first is slow."""
    return max(min(peer.seconds(3)), 1e-7)
