"""A search tries cheap candidates first, different candidates among equal prices, then candidates
near the best."""

from __future__ import annotations

from tcc.tune.candidates import KernelCandidate, TunedKernel
from tcc.tune.search import SiteSearch

from .worlds import ANALYTIC, Lattice, numbers, text


def search() -> SiteSearch:
    return SiteSearch(TunedKernel("00", "op", ANALYTIC, Lattice()))


def tried(site: SiteSearch, count: int) -> list[tuple[int, int]]:
    """Returns the next `count` candidates, and reports each as slower than the analytic choice."""
    candidates = []
    for _ in range(count):
        candidate = site.next()
        assert candidate is not None
        site.report(candidate, 0.9)
        candidates.append(numbers(candidate))
    return candidates


def test_the_cheapest_candidates_come_first() -> None:
    candidates = tried(search(), 16)
    prices = [a + b for a, b in candidates]
    assert prices == sorted(prices)
    assert len({*candidates}) == 16
    assert (4, 4) not in candidates


def test_a_search_without_gains_ends_after_the_candidates_beside_the_analytic_one() -> None:
    site = search()
    tried(site, 16)
    assert site.next() is None


class Square:
    """All pairs of numbers from 0 to 4, at equal prices."""

    def near(self, candidate: str) -> list[KernelCandidate]:
        return [KernelCandidate(text(a, b), 1.0) for a in range(5) for b in range(5)]


def test_among_equal_prices_the_most_different_comes_first() -> None:
    """No other candidate, by brute force, differs more from its most similar predecessor."""
    site = SiteSearch(TunedKernel("00", "op", ANALYTIC, Square()))
    measured_texts = [ANALYTIC]
    distances = []
    for _ in range(10):
        remaining = {c.text for c in Square().near(ANALYTIC)} - {*measured_texts}
        farthest = max(min(_distance(one, other) for other in measured_texts) for one in remaining)
        candidate = site.next()
        assert candidate is not None
        distances.append(min(_distance(candidate, other) for other in measured_texts))
        assert distances[-1] == farthest
        site.report(candidate, 0.9)
        measured_texts.append(candidate)
    assert distances == sorted(distances, reverse=True)
    assert len({*distances}) == 2


def _distance(one: str, other: str) -> int:
    return 2 * sum(x != y for x, y in zip(numbers(one), numbers(other), strict=True))


def test_the_search_moves_to_the_best_measured_candidate() -> None:
    site = search()
    first = tried(site, 7)
    candidate = site.next()
    assert candidate is not None
    site.report(candidate, 1.5)
    best = numbers(candidate)
    for _ in range(5):
        other = site.next()
        assert other is not None
        differing = sum(x != y for x, y in zip(numbers(other), best, strict=True))
        assert differing == 1
        site.report(other, 0.9)
    assert site.best == candidate
    assert site.challengers(1.02, 3) == [candidate]
    assert best not in first


def test_a_gain_within_noise_does_not_move_the_search() -> None:
    site = search()
    for _ in range(8):
        candidate = site.next()
        assert candidate is not None
        site.report(candidate, 1.005)
    assert site.best == ANALYTIC


def test_failures_are_never_the_best() -> None:
    site = search()
    candidate = site.next()
    assert candidate == text(0, 4)
    site.report(candidate, 0.0)
    assert site.best == ANALYTIC
    assert site.challengers(0.5, 9) == [ANALYTIC]
