"""Chooses an alternative for each of several places of a graph, so that the sum of costs is low.

A place is a part of the graph that can be computed in several ways, its alternatives.

    costs of alternatives      A: a 5, b 4     B: a 5, b 4
    a link between A and B     b and b: 3 more
    each place by itself       b, b: 4 + 4 + 3 = 11
    chosen together            a, b: 5 + 4 = 9

The cost of a choice may depend on earlier choices: a link has the additional cost of each pair of
alternatives at two places.  If there are few combinations, the search tries all.  Otherwise it
extends the cheapest partial choices (beam search).  A greedy search takes the alternatives that
save most for each byte first; the result costs at most as much as the greedy result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

from tcc.schedule.alternatives import Alternative, Seconds, number, preferred

# The search keeps at most WIDTH partial choices. If there are at most EXACT combinations, it tries
# all of them.
WIDTH = 8
EXACT = 256


# Returns the additional cost of a pair of choices, at an earlier and at a later place. The
# arguments are the indices of the two alternatives.
Link: TypeAlias = Callable[[int, int], Seconds]
# A sequence of alternatives for each place.
Places: TypeAlias = Sequence[Sequence[Alternative[Any]]]
Picks: TypeAlias = tuple[int, ...]


def choose_together(
    places: Places,
    links: Mapping[tuple[int, int], Link],
    room: float,
    forced: Mapping[int, int] = MappingProxyType({}),
) -> Picks:
    """Returns the index of the chosen alternative for each place.

    The sum of costs is the lowest that the search finds within `room` bytes.  The first alternative
    of each place takes no bytes.  `links` maps pairs (earlier place, later place) to links.
    `forced` maps a place to the index of its forced alternative.  Forced alternatives may take more
    than `room` bytes; other places get the bytes that they leave.  Equal arguments give equal
    results.  Among equal sums, lower indices win.
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
        """Returns the cheapest choices of a beam search that keeps `width` partial choices."""
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
        """Returns the cheapest alternative of each place, without regard to links.

        Places whose alternative saves most time for each byte come first.  If the alternative needs
        more bytes than are left of the allowed bytes, the place gets its first alternative, which
        takes no bytes.
        """
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
        """Returns the cost that alternative `pick` of the next place adds to the choices `picks`.

        The cost includes the links between the next place and earlier places.
        """
        place = len(picks)
        price = self._places[place][pick].price
        links = (number(link(picks[before], pick)) for before, link in self._links[place])
        return number(price) + sum(links)
