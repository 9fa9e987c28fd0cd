"""Chooses one alternative for each of several places of a graph, by the total of what they cost.

    costs of places     A: a 5, b 4     B: a 5, b 4     together, b and a: 3 more
    one after another   b, b: 8         the least total of both

A place's cost may depend on what earlier places were given: a link adds to the sum what two choices
cost together.  Every combination is looked at where they are few; else the cheapest beginnings are
carried on.  The result is never dearer than taking, place by place, what saves most for a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, TypeAlias

from tcc.schedule.alternatives import Alternative, preferred

# Beginnings that are carried on, and combinations up to which all of them are.
WIDTH = 8
EXACT = 256


# What the choices of an earlier and a later place, by their numbers, cost beyond their own.
Link: TypeAlias = Callable[[int, int], float]
# The alternatives of each place.
Places: TypeAlias = Sequence[Sequence[Alternative[Any, Any]]]
Picks: TypeAlias = tuple[int, ...]


def choose_together(places: Places, links: Mapping[tuple[int, int], Link], room: float) -> Picks:
    """The number of the alternative to take at each place, of the least total found within `room`
    bytes.

    Each place's first takes no bytes.  `links` has pairs of places, the earlier one first.
    The same for equal arguments; of equal totals, the lower numbers.
    """
    search = _Search(places, links, room)
    few = prod(map(len, places)) <= EXACT
    found = [search.greedy(), search.beam(EXACT if few else WIDTH)]
    return min(found, key=lambda picks: (search.total(picks), picks))


class _Search:
    def __init__(self, places: Places, links: Mapping[tuple[int, int], Link], room: float) -> None:
        self._places, self._room = places, room
        self._links: list[list[tuple[int, Link]]] = [[] for _ in places]
        for (before, after), link in links.items():
            self._links[after].append((before, link))

    def total(self, picks: Picks) -> float:
        return sum(self._step(picks[:n], pick) for n, pick in enumerate(picks))

    def beam(self, width: int) -> Picks:
        """The cheapest of the beginnings that are left when all places are seen."""
        states: list[tuple[float, int, Picks]] = [(0.0, 0, ())]
        for options in self._places:
            longer = [
                (cost + self._step(picks, n), bytes_ + option.bytes, (*picks, n))
                for (cost, bytes_, picks), (n, option) in product(states, enumerate(options))
                if bytes_ + option.bytes <= self._room
            ]
            states = sorted(longer, key=lambda s: (s[0], s[2]))[:width]
        return states[0][2]

    def greedy(self) -> Picks:
        """Each place's cheapest alternative by itself, the most saved for a byte first."""
        best = [preferred(first, rest) for first, *rest in self._places]

        def gain(place: int) -> float:
            return (self._places[place][0].price - best[place].price) / max(best[place].bytes, 1)

        picks, room = [0] * len(best), self._room
        for place in sorted(range(len(best)), key=lambda p: -gain(p)):
            if best[place].bytes <= room:
                picks[place] = self._places[place].index(best[place])
                room -= best[place].bytes
        return tuple(picks)

    def _step(self, picks: Picks, pick: int) -> float:
        """What the next place adds."""
        place = len(picks)
        own = self._places[place][pick].price
        return own + sum(link(picks[before], pick) for before, link in self._links[place])
