"""The traffic of a cache: bytes that it loads from or stores to the next level while a loop nest
runs.

Take the outermost loop whose body touches no more bytes than the cache holds. One run of this loop
fetches each byte that it touches once. Each iteration of a loop around it evicts bytes that the
next iteration fetches again. (Li et al., "Analytical Characterization and Design Space Exploration
for Optimization of CNNs", 2021.)
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tcc.frozen import entity
from tcc.ir.expr.scalar import StageRef
from tcc.ir.index import Var
from tcc.schedule.cpu.machine import SHARE
from tcc.schedule.footprint import Touch
from tcc.zipped import zip_equal


@entity
class LoopOver:
    """A loop of `trips` steps; `steps` maps each variable that the loop changes to the elements
    that one step covers."""

    trips: int
    steps: Mapping[Var, int]


@entity
class NestLoops:
    """The loops of one loop nest of a kernel, outermost first.

    The first `shared` loops enclose all nests of the kernel. `touches` are the nest's memory
    accesses. `spans[d][n]` is the number of bytes that `touches[n]` covers in one run of the loops
    from depth d inwards. `scratch` are the sources that lie in scratch memory, at the same
    addresses in all steps of the `shared` loops. `ahead` is True if constants are prefetched; the
    cache then also holds the constants of the next step.
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
    extents: Mapping[Var, int],
    scratch: frozenset[int | StageRef],
    *,
    ahead: bool,
) -> NestLoops:
    """Returns the loops of one nest; `extents` has the number of elements along each variable.

    The other arguments are explained at `NestLoops`.
    """
    inside = [dict(extents)]
    for loop in loops:
        inside.append({**inside[-1], **loop.steps})
    spans = []
    for depth, elements in enumerate(inside):
        in_place = inside[max(depth, shared)]  # scratch is at one address in all shared steps
        reached = [t.reach(in_place if t.source in scratch else elements) for t in touches]
        spans.append(tuple(reached))
    return NestLoops(tuple(loops), shared, touches, tuple(spans), scratch, ahead)


@dataclass(slots=True)
class CacheTraffic:
    """The bytes that a cache exchanges with the next level.

    `by_source` maps (source, True for a store or False for a read) to bytes.
    """

    by_source: dict[tuple[int | StageRef, bool], float]

    def total(self, *, store: bool) -> float:
        """Returns the bytes of all stores if `store`, else of all reads."""
        return sum(b for (_, is_store), b in self.by_source.items() if is_store is store)

    def seconds(self, read_rate: float, write_rate: float) -> float:
        """Returns the seconds for all bytes, with both rates in bytes a second."""
        return self.total(store=False) / read_rate + self.total(store=True) / write_rate

    def lose(
        self,
        read_share: float,
        store_share: float,
        constant_share: float,
        constants: Collection[int],
    ) -> None:
        """Multiplies the traffic by the fractions of bytes that the cache has lost since the last
        kernel.

        The cache has lost `read_share` of computed operands, `store_share` of results and
        `constant_share` of `constants`.
        """
        for source, store in self.by_source:
            share = store_share if store else read_share
            self.by_source[source, store] *= constant_share if source in constants else share


def traffic_of(nests: Sequence[NestLoops], capacity: float) -> CacheTraffic:
    """Returns the traffic of all nests between a cache of `capacity` bytes and the next level."""
    room = capacity * SHARE
    for depth in range(nests[0].shared + 1):
        if _resident(nests, depth) <= room:
            # The cache still holds what earlier nests of the same tile have touched.
            return CacheTraffic(_largest(nests, depth))
    by_source: dict[tuple[int | StageRef, bool], float] = {}
    for nest in nests:
        depth = next(
            (d for d in range(nest.shared + 1, len(nest.spans)) if _resident([nest], d) <= room),
            len(nest.spans) - 1,
        )
        for key, count in _largest([nest], depth).items():
            by_source[key] = by_source.get(key, 0) + count
    return CacheTraffic(by_source)


def _resident(nests: Sequence[NestLoops], depth: int) -> float:
    """Returns the bytes that the loops from `depth` inwards touch or prefetch; each source counts
    once."""
    by_source: dict[int | StageRef, float] = {}
    for nest in nests:
        for touch, span in zip_equal(nest.touches, nest.spans[depth]):
            resident = min(touch.buffer_bytes, 2 * span) if nest.ahead and touch.constant else span
            if resident > by_source.get(touch.source, 0):
                by_source[touch.source] = resident
    return sum(by_source.values())


def _largest(nests: Sequence[NestLoops], depth: int) -> dict[tuple[int | StageRef, bool], float]:
    """Returns the bytes fetched for each source if the cache holds what the loops from `depth`
    inwards touch.

    A key is (source, True for a store). If several nests touch a source, only the nest that fetches
    most of it counts.
    """
    by_key: dict[tuple[int | StageRef, bool], float] = {}
    for nest in nests:
        for number, touch in enumerate(nest.touches):
            key = touch.source, touch.store
            by_key[key] = max(by_key.get(key, 0), _fetched(nest, number, depth))
    return by_key


def _fetched(nest: NestLoops, number: int, depth: int) -> float:
    """Returns the bytes that the cache fetches for access `number` of the nest, if it holds all
    that the loops from `depth` inwards touch."""
    bytes_, touch = nest.spans[depth][number], nest.touches[number]
    forgotten = False
    for level in range(depth - 1, -1, -1):
        loop = nest.loops[level]
        rewritten = level < nest.shared and touch.source in nest.scratch
        if not rewritten and not touch.loops.isdisjoint(loop.steps):
            inner = nest.spans[level + 1][number]
            # As long as the cache has lost nothing, the elements that two neighbouring steps of the
            # loop both read are fetched once.
            if forgotten:
                bytes_ *= loop.trips
            elif inner:  # 0 for reads that never leave the padding
                bytes_ *= nest.spans[level][number] / inner
            forgotten = forgotten or loop.trips > 1
        elif forgotten:
            bytes_ *= loop.trips
    return bytes_


def computed(nests: Sequence[NestLoops]) -> float:
    """Returns the bytes of all operands and results that are no constants."""
    spans: dict[int, float] = {}
    for nest in nests:
        for touch, span in zip_equal(nest.touches, nest.spans[0]):
            if isinstance(touch.source, int) and not touch.constant:
                spans[touch.source] = max(spans.get(touch.source, 0), span)
    return sum(spans.values())
