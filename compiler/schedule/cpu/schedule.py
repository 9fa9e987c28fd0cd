"""Schedule: the decisions about a tile group, as a small frozen object that can be stored."""

from functools import lru_cache

from tcc.frozen import frozen


@frozen
class TailVectors:
    """How the last blocks along a loop of symbolic size are cut into vectors.

    A vector has `lanes` elements. If `masked`, it may reach beyond the end of the loop. `rows` is a
    loop inside. A block of one vector has more elements along it: as many times more as a whole
    block has vectors.
    """

    lanes: int
    masked: bool
    rows: str | None = None


@frozen
class Nest:
    """The loops of consecutive stages inside a tile; values between these stages stay in registers.

    `stages` are the numbers of the stages. Iterators are given by name. `order`: the loops over
    register blocks, outermost first. The other loops follow in the order of the stages, reductions
    last. `blocks`: elements of a register block along an iterator; 1 for iterators without an
    entry. `vector`: the iterator along the lanes of vector registers, the last axis of every block.

    `k_blocks`: elements of a K-block along a reduction of `order`. Partial sums stay in the tile's
    scratch from one K-block to the next.

    `ahead`: the level of the cache to which operands are prefetched; 0: none are. They are the next
    panel of the vector operand, or the row that the next tile reads first.

    `packed`: a computed vector operand of a contraction is stored in scratch, one K-block at a
    time, and all rows of the tile read it there.

    `along`: pointwise stages that are computed inside the loops of the first of `stages`, a
    reduction that reads them. No other loop runs over them.

    `vectors`: how the remainder of a `vector` loop of symbolic size is cut; None for a known size.
    """

    stages: tuple[int, ...]
    order: tuple[str, ...] = ()
    blocks: tuple[tuple[str, int], ...] = ()
    vector: str | None = None
    k_blocks: tuple[tuple[str, int], ...] = ()
    ahead: int = 0
    packed: bool = False
    along: tuple[int, ...] = ()
    vectors: TailVectors | None = None

    @property
    def all_stages(self) -> tuple[int, ...]:
        """Returns the stages in the order in which a block of them is computed."""
        return (*self.along, *self.stages)

    def block(self, name: str) -> int:
        """Returns the elements of a register block along an iterator."""
        return dict(self.blocks).get(name, 1)

    def block_beside(self, name: str, lanes: int) -> int:
        """Returns the block along the loop `name` in a block whose vector loop has `lanes`
        lanes."""
        vectors, block = self.vectors, self.block(name)
        if vectors is None or name != vectors.rows or lanes > vectors.lanes:
            return block
        return block * (self.block(self.vector or "") // vectors.lanes)

    def vectors_along(self, name: str) -> TailVectors | None:
        """Returns the vectors into which a loop's remainder is cut if it is the vector loop, else
        None."""
        return self.vectors if name == self.vector else None


@frozen
class Schedule:
    """How a group's loops are cut.

    `parallel`: the common loops that make up the launch grid, outermost first. `tile_sizes`:
    elements of a tile along these loops; 1 for loops without an entry. A tile covers the whole
    range of every other common loop. `nests` run one after the other, each over the whole tile.
    Values between different nests lie in the tile's scratch. `stream_block`: elements in a block of
    the group's streaming loop. `skips`: the nests leave out the blocks of the streaming loop whose
    terms change no accumulator of the tile, whatever is masked there (`tcc.schedule.masked_terms`).
    """

    tile_sizes: tuple[tuple[str, int], ...]
    parallel: tuple[str, ...]
    nests: tuple[Nest, ...]
    stream_block: int = 0
    skips: bool = False

    def tile_size(self, name: str) -> int:
        """Returns the elements of a tile along a loop."""
        return dict(self.tile_sizes).get(name, 1)

    def nest(self, stage: int) -> Nest:
        """Returns the nest of a stage."""
        return next(n for n in self.nests if stage in n.all_stages)


@lru_cache(1 << 14)
def even(size: int, block: int, full_blocks: bool) -> tuple[tuple[int, int], ...]:
    """Returns how `size` is cut into blocks: pairs (elements, count) of at most two kinds, the
    larger kind first.

    `full_blocks`: full blocks, then the remainder, as vectors need it. Else the sizes differ by at
    most one: 49 in blocks of 6 gives (6, 4), (5, 5). A size of 0 has no blocks, whatever `block`
    is.
    """
    if size == 0:
        return ()
    if full_blocks:
        parts = (block, size // block), (size % block, 1)
    else:
        count = -(-size // block)
        shorter, longer = divmod(size, count)
        parts = (shorter + 1, longer), (shorter, count - longer)
    return tuple((elements, count) for elements, count in parts if elements and count)
