"""Schedule: what may be decided about a tile group; small, frozen, storable."""

from functools import lru_cache

from tcc.record import record


@record
class Vectors:
    """How blocks along a loop of open size end: `lanes` elements lie in a vector; where `masked`,
    a vector may reach behind the end.  Along the loop `rows`, which runs inside it, blocks of one
    vector have as many more rows as a whole block has vectors."""

    lanes: int
    masked: bool
    rows: str | None = None


@record
class Nest:
    """The loops of consecutive stages inside a tile; values between these stages stay in registers.

    Iterators are given by name.
    `order`: the loops over register blocks, outermost first.  The other loops follow in the order
    of the stages, reductions last.
    `blocks`: elements of a register block along an iterator; 1 for iterators without an entry.
    `vector`: the iterator along the lanes of vector registers, the last axis of every block.
    `k_blocks`: elements of a K-block along a reduction of `order`.  Partial sums wait in the tile's
    scratch from one K-block to the next.
    `ahead`: the next panel of the vector operand, or the next row of a first pass, is prefetched
    to the cache of this level; 0: nothing is.
    `packed`: a computed vector operand of a contraction is stored in scratch, one K-block at a
    time, and all rows of the tile read it there.
    `along`: pointwise stages made point by point along the reduction that is the first of `stages`,
    which is then the only walk over them.
    `vectors`: what remains of a `vector` loop of open size is cut into these; None where its size
    is known.
    """

    stages: tuple[int, ...]
    order: tuple[str, ...] = ()
    blocks: tuple[tuple[str, int], ...] = ()
    vector: str | None = None
    k_blocks: tuple[tuple[str, int], ...] = ()
    ahead: int = 0
    packed: bool = False
    along: tuple[int, ...] = ()
    vectors: Vectors | None = None

    @property
    def all_stages(self) -> tuple[int, ...]:
        """The stages in the order in which a block of them is made."""
        return (*self.along, *self.stages)

    def block(self, name: str) -> int:
        return dict(self.blocks).get(name, 1)

    def block_beside(self, name: str, lanes: int) -> int:
        """The block along a loop in which the block of the vector loop has so many `lanes`."""
        vectors, block = self.vectors, self.block(name)
        if vectors is None or name != vectors.rows or lanes > vectors.lanes:
            return block
        return block * (self.block(self.vector or "") // vectors.lanes)

    def vectors_along(self, name: str) -> Vectors | None:
        """The vectors that a loop's remainder is cut into, where it is the vector loop."""
        return self.vectors if name == self.vector else None


@record
class Schedule:
    """How a group's loops are cut.

    `parallel`: the common loops that make up the launch grid, outermost first.
    `units`: elements of a tile along these loops; 1 for loops without an entry.  A tile covers the
    whole range of every other common loop.
    `nests` run one after the other, each over the whole tile.  Values between different nests lie
    in the tile's scratch.
    `stream_block`: elements of the group's streaming loop that the nests take at a time.
    `skips`: the nests leave out the blocks of the streaming loop whose terms change no total of the
    tile, whatever is masked there (`tcc.schedule.masked_terms`).
    """

    units: tuple[tuple[str, int], ...]
    parallel: tuple[str, ...]
    nests: tuple[Nest, ...]
    stream_block: int = 0
    skips: bool = False

    def unit(self, name: str) -> int:
        return dict(self.units).get(name, 1)

    def nest(self, stage: int) -> Nest:
        """The nest of a stage."""
        return next(n for n in self.nests if stage in n.all_stages)


@lru_cache(1 << 14)
def even(size: int, block: int, whole: bool) -> tuple[tuple[int, int], ...]:
    """How `size` is cut into blocks: (elements, count) of at most two kinds, the larger first.

    `whole` blocks first and then what is left (lanes of vectors), else sizes that differ by at
    most one: 49 by 6 gives (6, 4), (5, 5).  A size of 0 has no blocks, whatever `block` is.
    """
    if size == 0:
        return ()
    if whole:
        parts = (block, size // block), (size % block, 1)
    else:
        count = -(-size // block)
        rest, more = divmod(size, count)
        parts = (rest + 1, more), (rest, count - more)
    return tuple((elements, count) for elements, count in parts if elements and count)
