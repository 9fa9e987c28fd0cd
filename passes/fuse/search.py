"""Prices ways to cut the kernels that `partition` joined, and keeps the cheapest.

    { matmul, add, layer_norm }      one kernel: each core walks all weights, for half of the rows
    { matmul, add } { layer_norm }   two: cores share the weights, and the sums go through a cache

A region is a group of several anchors.  It can be cut behind a member through whose results alone
the rest sees what is before it.  Few places are tried in all combinations, of more a beam keeps the
cheapest so far, place by place in order.  Prices are of whole kernels: what one stores and the
next one loads, weights and the launch are in them.  The joined group is kept where it costs as much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from tcc.ir.graph import Graph, Node, Value
from tcc.passes.fuse.partition import Group

# Places up to which all combinations are priced.
EXACT = 4
# States that a beam keeps.
WIDTH = 8
# The part of a region's price that a cut must save: about the error of prices of unlike kernels.
MARGIN = 0.15

Price = Callable[[Group], float | None]


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A region in parts, in an order in which they can run, and the seconds they take."""

    parts: tuple[Group, ...]
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Searched:
    """The groups of a graph after the search, and how many ways it has priced."""

    groups: tuple[Group, ...]
    priced: int


def search(graph: Graph, groups: Sequence[Group], price: Price) -> Searched:
    """`groups` with those cut that cost less in parts.  `price` gives the seconds of a group, None
    where it cannot lower one."""
    users = graph.users()
    found: list[Group] = []
    priced = 0
    for group in groups:
        ways = _Ways(group, users, price)
        best = ways.cheapest()
        priced += ways.priced
        found += best
    return Searched(tuple(found), priced)


class _Ways:
    """The ways to cut one group."""

    def __init__(self, group: Group, users: dict[Value, list[Node]], price: Price) -> None:
        self.group, self.users, self.price = group, users, price
        self.priced = 0

    def cheapest(self) -> tuple[Group, ...]:
        """The parts of the cheapest way; the whole where nothing saves enough."""
        whole = (self.group,)
        places = self._places() if len(self.group.anchors) > 1 and self.group.join is None else []
        if not places:
            return whole
        seed = self._cut(())
        if seed is None:
            return whole
        best = min(
            (cut for cut in self._cuts(places) if cut is not None),
            key=lambda cut: cut.seconds,
            default=seed,
        )
        return best.parts if best.seconds < (1 - MARGIN) * seed.seconds else whole

    def _cuts(self, places: list[Node]) -> list[Cut | None]:
        if len(places) <= EXACT:
            counts = range(1, len(places) + 1)
            return [self._cut(chosen) for n in counts for chosen in combinations(places, n)]
        states: list[tuple[Node, ...]] = [()]
        found: list[Cut | None] = []
        for place in places:
            longer = [(state, self._cut(state)) for state in [(*s, place) for s in states]]
            found += [cut for _, cut in longer]
            known = [(cut.seconds, state) for state, cut in longer if cut is not None]
            ranked = [s for _, s in sorted(known, key=lambda pair: pair[0])]
            states = [(), *(states[1:] + ranked)[: WIDTH - 1]]
        return found

    def _places(self) -> list[Node]:
        """Members, in order, behind which the group can be cut: an anchor on either side."""
        found = []
        for member in self.group.members[:-1]:
            before = self._before(member)
            anchors = [a for a in self.group.anchors if a in before]
            if not anchors or len(anchors) == len(self.group.anchors):
                continue
            inner = {v for n in before if n is not member for v in n.outputs}
            rest = [n for n in self.group.members if n not in before]
            if not any(v in inner for n in rest for v in n.inputs if v is not None):
                found.append(member)
        return found

    def _before(self, member: Node) -> set[Node]:
        """A member and the members that it needs."""
        made = {v: n for n in self.group.members for v in n.outputs}
        found = {member}
        waiting = [member]
        while waiting:
            for value in waiting.pop().inputs:
                source = None if value is None else made.get(value)
                if source is not None and source not in found:
                    found.add(source)
                    waiting.append(source)
        return found

    def _cut(self, places: tuple[Node, ...]) -> Cut | None:
        """The group cut behind `places`, priced; None where a part cannot be lowered."""
        self.priced += 1
        parts = []
        left = self.group.members
        for place in places:
            before = self._before(place)
            parts.append(self._part(place, [n for n in left if n in before]))
            left = [n for n in left if n not in before]
        parts.append(self._part(self.group.sink, left))
        seconds = [self.price(part) for part in parts]
        known = [s for s in seconds if s is not None]
        return Cut(tuple(parts), sum(known)) if len(known) == len(parts) else None

    def _part(self, sink: Node, members: list[Node]) -> Group:
        inside = set(members)
        made = {v for n in members if n is not sink for v in n.outputs}
        anchors = [a for a in self.group.anchors if a in inside]
        return Group(sink, members, anchors, None, [v for v in self.group.extra if v in made])
