"""Benchmark rounds: peers take turns, so that drift of the machine meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tcc.cli.peer import Peer

# Idle workers of a runtime spin for tens of milliseconds before they sleep; until then they would
# take a processor from the next peer.
REST = 0.15


@dataclass(frozen=True, slots=True)
class Times:
    """Wall seconds of one peer's runs over all rounds."""

    least: float
    median: float
    runs: int


def interleaved(
    peers: Sequence[Peer], rounds: int, budget: float, rest: float = REST
) -> Mapping[str, Times]:
    """Times of each peer: in each round each peer runs in turn for about `budget` seconds.

    Before its turn a peer rests for `rest` seconds and runs once unmeasured, which wakes its
    threads.
    """
    counts = {peer.kind: max(1, round(budget / max(peer.seconds(1)[0], 1e-7))) for peer in peers}
    seconds: dict[str, list[float]] = {peer.kind: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            time.sleep(rest)
            peer.seconds(1)
            seconds[peer.kind] += peer.seconds(counts[peer.kind])
    return {
        kind: Times(min(values), statistics.median(values), len(values))
        for kind, values in seconds.items()
    }
