"""Chooses one alternative for each of several places of a graph, by the sum of their costs.

    costs of places     A: a 5, b 4     B: a 5, b 4     together, b and a: 3 more
    one after another   b, b: 8         the lowest sum of both

The cost of a choice may depend on earlier choices: a link adds what two choices cost together. The
search tries all combinations if there are few; else it extends the cheapest partial choices. The
result is never dearer than greedily choosing, at each place, the alternative that saves most for
each byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

from tcc.schedule.alternatives import Alternative, Seconds, number, preferred

# Partial choices that are extended, and the most combinations of which all are.
WIDTH = 8
EXACT = 256


# The cost of the choices of an earlier and a later place, by their numbers, beyond their own costs.
Link: TypeAlias = Callable[[int, int], Seconds]
# The alternatives of each place.
Places: TypeAlias = Sequence[Sequence[Alternative[Any]]]
Picks: TypeAlias = tuple[int, ...]


def choose_together(
    places: Places,
    links: Mapping[tuple[int, int], Link],
    room: float,
    forced: Mapping[int, int] = MappingProxyType({}),
) -> Picks:
    """Returns the number of the alternative for each place, with the lowest sum found within `room`
    bytes.

    Each place's first alternative takes no bytes. `links` has pairs of places, the earlier one
    first. `forced` has the numbers of the places without a choice, which may take more than `room`
    and leave less of it to the others.
    Equal arguments give equal results; of equal sums the lower numbers win.
    """
    search = _Search(places, links, room, forced)
    exhaustive = prod(map(len, places)) <= EXACT
    choices = [search.greedy(), search.beam(EXACT if exhaustive else WIDTH)]
    return min(choices, key=lambda picks: (search.total(picks), picks))


class _Search:
    """The search over the alternatives of all places."""

    def __init__(
        self,
        places: Places,
        links: Mapping[tuple[int, int], Link],
        room: float,
        forced: Mapping[int, int],
    ) -> None:
        self._places, self._forced = places, forced
        self._room = max(0, room - sum(places[p][pick].bytes for p, pick in forced.items()))
        self._links: list[list[tuple[int, Link]]] = [[] for _ in places]
        for (before, after), link in links.items():
            self._links[after].append((before, link))

    def total(self, picks: Picks) -> float:
        """Returns the cost of all choices, links included."""
        return sum(self._step(picks[:n], pick) for n, pick in enumerate(picks))

    def beam(self, width: int) -> Picks:
        """Returns the cheapest choices after extending at most `width` partial ones place by
        place."""
        states: list[tuple[float, int, Picks]] = [(0.0, 0, ())]
        for place, alternatives in enumerate(self._places):
            options = [(n, option.bytes) for n, option in enumerate(alternatives)]
            if place in self._forced:
                options = [(self._forced[place], 0)]
            longer = [
                (cost + self._step(picks, n), bytes_ + size, (*picks, n))
                for (cost, bytes_, picks), (n, size) in product(states, options)
                if bytes_ + size <= self._room
            ]
            states = sorted(longer, key=lambda s: (s[0], s[2]))[:width]
        return states[0][2]

    def greedy(self) -> Picks:
        """Returns each place's cheapest alternative by itself, those that save most for each byte
        first."""
        best = [preferred(first, more) for first, *more in self._places]

        def gain(place: int) -> float:
            saved = number(self._places[place][0].price - best[place].price)
            return saved / max(best[place].bytes, 1)

        picks, room = [0] * len(best), self._room
        for place in sorted(range(len(best)), key=lambda p: -gain(p)):
            if place in self._forced:
                picks[place] = self._forced[place]
            elif best[place].bytes <= room:
                picks[place] = self._places[place].index(best[place])
                room -= best[place].bytes
        return tuple(picks)

    def _step(self, picks: Picks, pick: int) -> float:
        """Returns what the choice `pick` at the next place adds."""
        place = len(picks)
        price = self._places[place][pick].price
        links = (number(link(picks[before], pick)) for before, link in self._links[place])
        return number(price) + sum(links)
