"""Benchmark rounds: peers take turns, so that drift of the machine meets all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tcc.cli.peer import Peer


@dataclass(frozen=True, slots=True)
class Times:
    """Wall seconds of one peer's runs over all rounds."""

    least: float
    median: float
    runs: int


def interleaved(peers: Sequence[Peer], rounds: int, budget: float) -> Mapping[str, Times]:
    """Times of each peer: in each round each peer runs in turn for about `budget` seconds."""
    counts = {peer.kind: max(1, round(budget / max(peer.seconds(1)[0], 1e-7))) for peer in peers}
    seconds: dict[str, list[float]] = {peer.kind: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            seconds[peer.kind] += peer.seconds(counts[peer.kind])
    return {
        kind: Times(min(values), statistics.median(values), len(values))
        for kind, values in seconds.items()
    }
