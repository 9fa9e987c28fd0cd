"""The order in which the candidates of a kernel are tried.

Cheap candidates come first, then the candidates beside the best measured candidate.
"""

from collections.abc import Mapping, Sequence

from tcc.tune.candidates import KernelCandidate, TunedKernel

# The cheapest candidates beside the analytic choice come first. After this many, the search moves
# to the candidates beside the best measured candidate.
_FIRST = 8
# A candidate is the best only if it is faster by more than this part: else noise moves the search.
_NOISE = 0.01
# Prices that differ by less are equal.
_EQUAL = 1e-6


class SiteSearch:
    """The search of one kernel; equal reports give equal candidates."""

    def __init__(self, kernel: TunedKernel) -> None:
        self.kernel = kernel
        self.ratios: dict[str, float] = {kernel.analytic: 1.0}  # analytic / candidate
        self._waves: list[dict[str, KernelCandidate]] = []
        self._centres: set[str] = set()

    def next(self) -> str | None:
        """Returns the text of the candidate to try next; None if there are no more."""
        if len(self.ratios) <= 1 or len(self.ratios) > _FIRST or self._wave() is None:
            self._look_beside(self.best)
        wave = self._wave()
        return None if wave is None else _cheapest_and_most_different(wave, self.ratios)

    def report(self, candidate: str, ratio: float) -> None:
        """Records the ratio analytic / candidate of a tried candidate; 0 for a failure."""
        self.ratios[candidate] = ratio

    @property
    def best(self) -> str:
        """Returns the best measured candidate, or the analytic one if none is faster."""
        best = max(self.ratios, key=self.ratios.__getitem__)
        return best if self.ratios[best] > 1 + _NOISE else self.kernel.analytic

    def challengers(self, minimum: float, count: int) -> list[str]:
        """Returns up to `count` candidates whose ratio is above `minimum`, the highest first."""
        fast = [text for text, ratio in self.ratios.items() if ratio > minimum]
        return sorted(fast, key=lambda text: (-self.ratios[text], text))[:count]

    def _look_beside(self, centre: str) -> None:
        if centre not in self._centres:
            self._centres.add(centre)
            self._waves.append({c.text: c for c in self.kernel.space.near(centre)})

    def _wave(self) -> list[KernelCandidate] | None:
        """Returns the candidates of a wave that were not tried: of the last wave that has some."""
        for wave in reversed(self._waves):
            untried = [c for text, c in wave.items() if text not in self.ratios]
            if untried:
                return untried
        return None


def _cheapest_and_most_different(
    candidates: Sequence[KernelCandidate], tried: Mapping[str, float]
) -> str:
    """Returns the text of the cheapest candidate.

    Among equal prices it is the candidate that differs most from all `tried` candidates. The
    difference of two texts is the number of parts that only one of them has. The most similar
    tried candidate counts.
    """
    limit = min(c.price for c in candidates) * (1 + _EQUAL)
    cheapest = sorted(c.text for c in candidates if c.price <= limit)
    earlier = [_parts(text) for text in tried]
    return max(cheapest, key=lambda text: min(len(_parts(text) ^ parts) for parts in earlier))


def _parts(text: str) -> frozenset[str]:
    return frozenset(text.split(", "))
