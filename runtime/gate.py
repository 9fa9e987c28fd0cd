"""Decides from measured rounds and from facts of two artifacts: is the new one worse than the base?

The ratio of a round is the new artifact's seconds divided by the base's seconds in the same round.
The interval of the ratio holds the median of the ratios with 95 % confidence. It comes from order
statistics (Conover, Practical Nonparametric Statistics, 3.2), which assume nothing about the
distribution of disturbed rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tcc.runtime.gate_facts import Fact

CONFIDENCE = 0.95
# Rounds of a process, and the width of an interval that needs no more rounds.
_IN_A_PROCESS, _NARROW = 41, 0.02


@dataclass(frozen=True, slots=True)
class PairedRounds:
    """The seconds of a run in each round, with both artifacts. Both have equally many rounds."""

    base: tuple[float, ...]
    new: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Returns the ratio new / base of each round."""
        return [new / base for base, new in zip(self.base, self.new, strict=True)]

    @property
    def median(self) -> float:
        """Returns the median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """Returns the bounds that hold the median of the ratios with 95 % confidence.

        They are infinite for fewer than six rounds.
        """
        side = (1 + CONFIDENCE) / 2
        return lower_bound(self.ratios, side), -lower_bound([-r for r in self.ratios], side)


def lower_bound(values: Sequence[float], confidence: float = CONFIDENCE) -> float:
    """Returns the largest of `values` that lies below their distribution's median with
    `confidence`.

    The k-th smallest of n values lies below the median with probability 1 - P(at most k - 1 of n
    fair coins are heads). Returns minus infinity if there are too few values for a bound.
    """
    ordered, count = sorted(values), len(values)
    bound, below = -math.inf, 0.0
    for number, value in enumerate(ordered):
        below += math.comb(count, number) / 2**count
        if below > 1 - confidence:
            break
        bound = value
    return bound


def until_decided(
    more: Callable[[int], PairedRounds], gate: float | None, limit: int
) -> PairedRounds:
    """Measures until the interval decides, and returns all rounds, `limit` at most.

    `more(count)` measures `count` rounds in new processes, because a process may run some percent
    slower than its twin for all its life.  The number of rounds doubles between two looks at the
    interval, so that few looks raise the risk of a wrong decision little.
    """
    rounds, goal = PairedRounds((), ()), min(_IN_A_PROCESS, limit)
    while len(rounds.base) < goal:
        block = more(min(_IN_A_PROCESS, goal - len(rounds.base)))
        rounds = PairedRounds(rounds.base + block.base, rounds.new + block.new)
        if len(rounds.base) == goal and not is_decided(rounds, gate):
            goal = min(2 * goal, limit)
    return rounds


def measured(measure: Callable[[], PairedRounds], gate: float | None) -> Iterator[PairedRounds]:
    """Yields the rounds of a first measurement, and of a second if the first is slower.

    Without a `gate` there is no second measurement.
    """
    first = measure()
    yield first
    if gate is not None and is_slower(first, gate):
        yield measure()


def is_decided(rounds: PairedRounds, gate: float | None) -> bool:
    """Returns True if `gate` lies outside of the interval.

    Without a gate it returns True if the interval is narrow.
    """
    low, high = rounds.interval
    return high - low <= _NARROW if gate is None else not low <= gate <= high


def is_slower(rounds: PairedRounds, gate: float) -> bool:
    """Returns True if the lower bound of the ratio is over `gate`."""
    return rounds.interval[0] > gate


def fails(measurements: Sequence[PairedRounds], gate: float) -> bool:
    """Returns True if two measurements say that the new artifact is slower than `gate` allows."""
    return len(measurements) > 1 and all(is_slower(rounds, gate) for rounds in measurements)


@dataclass(frozen=True, slots=True)
class ArtifactComparison:
    """The facts of two artifacts, and the rounds of their measurements in order.

    `allowed` has the names of facts that may grow.  Without a `gate` nothing fails.
    """

    facts: tuple[Fact, ...]
    measurements: tuple[PairedRounds, ...] = ()
    gate: float | None = None
    allowed: frozenset[str] = frozenset()

    @property
    def failures(self) -> list[str]:
        """Returns a sentence for each reason why the gate fails."""
        if self.gate is None:
            return []
        reasons = [
            f"{fact.label} grows from {fact.base:,g} to {fact.new:,g}"
            for fact in self.facts
            if fact.grows and fact.name not in self.allowed
        ]
        if fails(self.measurements, self.gate):
            bounds = " and ".join(f"{rounds.interval[0]:.3f}" for rounds in self.measurements)
            reasons.append(f"a run takes at least {bounds} times as long, in two measurements")
        return reasons
