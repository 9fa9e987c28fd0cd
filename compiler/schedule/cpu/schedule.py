"""Schedule: what may be decided about a tile group; small, frozen, storable."""

from __future__ import annotations

from functools import lru_cache

from tcc.record import record


@record
class Nest:
    """The loops of consecutive stages inside a unit; what those stages exchange is in registers.

    Iterators go by name.  `order`: loops over blocks, outermost first; the other loops of the
    stages follow as the stages list them, reductions last.  A reduction in `order` walks `k_blocks`
    of so many elements at that depth, and its sums wait in the unit's scratch from run to run.
    `blocks`: elements of a block along an iterator; one where it is not named.  `vector`: the
    iterator whose lanes fill vector registers, the last axis of every block.  `ahead`: what comes
    after the vector operand's panel, or after the row of a first pass, is prefetched meanwhile.
    `packed`: the vector operand of a sum of products, which is computed, is made for a run in the
    unit's scratch, and the rows that come after it in the order multiply it from there.
    """

    stages: tuple[int, ...]
    order: tuple[str, ...] = ()
    blocks: tuple[tuple[str, int], ...] = ()
    vector: str | None = None
    k_blocks: tuple[tuple[str, int], ...] = ()
    ahead: bool = False
    packed: bool = False

    def block(self, name: str) -> int:
        return dict(self.blocks).get(name, 1)


@record
class Schedule:
    """How a group's loops are cut.

    `parallel`: common loops that make up the launch grid, outermost first, and `units` the elements
    of each that one unit covers (one where it is not named); of other loops a unit covers all.
    Within a unit the `nests` run in order, each over the whole of what the unit covers.  What
    stages of different nests exchange lies in the unit's scratch, of the size of a unit.
    `stream_block`: elements of a group's streaming loop that its nests take at a time.
    """

    units: tuple[tuple[str, int], ...]
    parallel: tuple[str, ...]
    nests: tuple[Nest, ...]
    stream_block: int = 0

    def unit(self, name: str) -> int:
        return dict(self.units).get(name, 1)

    def nest(self, stage: int) -> Nest:
        """The nest of a stage."""
        return next(n for n in self.nests if stage in n.stages)


@lru_cache(1 << 14)
def even(size: int, block: int, whole: bool) -> tuple[tuple[int, int], ...]:
    """How `size` is cut into blocks: (elements, count) of at most two kinds, the larger first.

    `whole` blocks first and then what is left (lanes of vectors), else sizes that differ by at
    most one: 49 by 6 gives (6, 4), (5, 5).
    """
    if whole:
        parts = (block, size // block), (size % block, 1)
    else:
        count = max(1, -(-size // block))
        rest, more = divmod(size, count)
        parts = (rest + 1, more), (rest, count - more)
    return tuple((elements, count) for elements, count in parts if elements and count)
