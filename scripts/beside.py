"""Times an artifact with tcc, and with ONNX Runtime the ONNX file from which it was compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tcc.cli.peers.peer import CAP, Peer
from tcc.runtime.interleaved import Times, Turn, interleaved, rested

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How each model is measured; `seconds` is the time that a runtime gets in a round."""

    threads: int
    rounds: int
    seconds: float


def beside(
    artifact: Path,
    source: Path,
    feed: Arrays,
    plan: PairSettings,
    *,
    see: Callable[[Sequence[Arrays]], None],
    take: Callable[[str, Turn], Sequence[float]] = rested,
    cap: float = CAP,
) -> Mapping[str, Times]:
    """Returns the times of "tcc" and "ort", each in its own process, in interleaved rounds.

    Before the first round, `see` is called with the outputs of "tcc" and "ort"; an error that it
    raises ends the measurement. `take(kind, turn)` runs a turn and returns its times. A process may
    take `cap` seconds for an answer. Raises ToolError if a process fails.
    """
    with ExitStack() as stack:
        peers = [
            stack.enter_context(Peer(kind, file, feed, plan.threads, cap=cap))
            for kind, file in (("tcc", artifact), ("ort", source))
        ]
        see([peer.outputs() for peer in peers])
        return interleaved(peers, plan.rounds, plan.seconds, take=take)


def distance(ours: Mapping[str, NDArray[Any]], theirs: Mapping[str, NDArray[Any]]) -> float:
    """Returns the largest difference of results as a share of the largest value.

    It is infinite if shapes differ, or if only one of two values is NaN.
    """
    worst = 0.0
    for name, reference in theirs.items():
        output = ours[name]
        if output.shape != reference.shape or output.dtype != reference.dtype:
            return math.inf
        a, b = output.astype(np.float64), reference.astype(np.float64)
        if not np.array_equal(np.isnan(a), np.isnan(b)):
            return math.inf
        equal = (a == b) | np.isnan(b)
        scale = np.abs(b[np.isfinite(b)]).max(initial=0.0) or 1.0
        with np.errstate(invalid="ignore"):
            worst = max(worst, float(np.abs(a - b)[~equal].max(initial=0.0)) / scale)
    return worst
