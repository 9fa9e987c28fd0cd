"""Bytes that cross a cache's border while a nest of loops runs.

Of each border: the outermost loop whose body touches no more than the cache holds reads all of it
once; loops around it read again what they make the cache forget.  (Li et al., "Analytical
Characterization and Design Space Exploration for Optimization of CNNs", 2021.)
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tcc.ir.expr.scalar import StageRef
from tcc.ir.index import Var
from tcc.record import entity
from tcc.schedule.cpu.machine import SHARE
from tcc.schedule.footprint import Touch


@entity
class LoopOver:
    """`trips` steps: what is inside runs over so many elements along each variable of `steps`."""

    trips: int
    steps: Mapping[Var, int]


@entity
class NestLoops:
    """One nest's loops, outermost first, of which the first `shared` are around all nests.

    `spans[d][n]` are the bytes that touch n reaches inside the loops from d on; `scratch` are the
    sources that lie at the same place for all steps of the `shared` loops; `ahead`: constants come
    before they are needed, and lie beside those in use.
    """

    loops: tuple[LoopOver, ...]
    shared: int
    touches: tuple[Touch, ...]
    spans: tuple[tuple[float, ...], ...]
    scratch: frozenset[int | StageRef]
    ahead: bool = False


def nest_loops(
    loops: Sequence[LoopOver],
    shared: int,
    touches: tuple[Touch, ...],
    whole: Mapping[Var, int],
    scratch: frozenset[int | StageRef],
    *,
    ahead: bool,
) -> NestLoops:
    """The streaming loop of one nest; `whole` are the elements along each of its variables in
    all."""
    inside = [dict(whole)]
    for loop in loops:
        inside.append({**inside[-1], **loop.steps})
    spans = tuple(
        tuple([t.reach(inside[max(n, shared)] if t.source in scratch else own) for t in touches])
        for n, own in enumerate(inside)
    )
    return NestLoops(tuple(loops), shared, touches, spans, scratch, ahead)


@dataclass(slots=True)
class CacheTraffic:
    """Bytes read and written across one border, by touch's source and whether it is a store."""

    by_source: dict[tuple[int | StageRef, bool], float]

    def total(self, *, store: bool) -> float:
        return sum(b for (_, is_store), b in self.by_source.items() if is_store is store)

    def seconds(self, read: float, write: float) -> float:
        """The time of all bytes at so many a second."""
        return self.total(store=False) / read + self.total(store=True) / write

    def lose(self, read: float, stored: float, packed: float, constants: Collection[int]) -> None:
        """Leaves what the cache has lost since the kernel before: the parts `read` and `stored` of
        what was computed and of where results go, and the part `packed` of `constants`."""
        for source, store in self.by_source:
            computed = stored if store else read
            self.by_source[source, store] *= packed if source in constants else computed


def moved(nests: Sequence[NestLoops], capacity: float) -> CacheTraffic:
    """What crosses the border of a cache of `capacity` bytes while all nests run."""
    room = capacity * SHARE
    for depth in range(nests[0].shared + 1):
        if _resident(nests, depth) <= room:
            # Nests of one unit find what the earlier ones left.
            return CacheTraffic(_largest(nests, depth))
    found: dict[tuple[int | StageRef, bool], float] = {}
    for nest in nests:
        depth = next(
            (d for d in range(nest.shared + 1, len(nest.spans)) if _resident([nest], d) <= room),
            len(nest.spans) - 1,
        )
        for key, count in _largest([nest], depth).items():
            found[key] = found.get(key, 0) + count
    return CacheTraffic(found)


def _resident(nests: Sequence[NestLoops], depth: int) -> float:
    """Bytes touched inside the loops from `depth` on, and fetched ahead; a source counts once."""
    most: dict[int | StageRef, float] = {}
    for nest in nests:
        for touch, span in zip(nest.touches, nest.spans[depth], strict=True):
            resident = min(touch.most, 2 * span) if nest.ahead and touch.constant else span
            if resident > most.get(touch.source, 0):
                most[touch.source] = resident
    return sum(most.values())


def _largest(nests: Sequence[NestLoops], depth: int) -> dict[tuple[int | StageRef, bool], float]:
    found: dict[tuple[int | StageRef, bool], float] = {}
    for nest in nests:
        for number, touch in enumerate(nest.touches):
            key = touch.source, touch.store
            found[key] = max(found.get(key, 0), _fetched(nest, number, depth))
    return found


def _fetched(nest: NestLoops, number: int, depth: int) -> float:
    """Bytes of one touch that come in, where the cache holds all that is inside `depth`."""
    total, touch = nest.spans[depth][number], nest.touches[number]
    forgotten = False
    for at in range(depth - 1, -1, -1):
        loop = nest.loops[at]
        again = at < nest.shared and touch.source in nest.scratch
        if not again and not touch.loops.isdisjoint(loop.steps):
            inner = nest.spans[at + 1][number]
            # Neighbouring steps may overlap, and what they share is still there.
            if forgotten:
                total *= loop.trips
            elif inner:  # reads that never leave the padding span nothing
                total *= nest.spans[at][number] / inner
            forgotten = forgotten or loop.trips > 1
        elif forgotten:
            total *= loop.trips
    return total


def computed(nests: Sequence[NestLoops]) -> float:
    """Bytes of all operands and results that are computed at run time."""
    found: dict[int, float] = {}
    for nest in nests:
        for touch, span in zip(nest.touches, nest.spans[0], strict=True):
            if isinstance(touch.source, int) and not touch.constant:
                found[touch.source] = max(found.get(touch.source, 0), span)
    return sum(found.values())
