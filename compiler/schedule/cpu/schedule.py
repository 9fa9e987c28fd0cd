"""Schedule: the decisions about a tile group, as a small frozen object that can be stored."""

from collections.abc import Mapping
from functools import lru_cache

from tcc.frozen import frozen
from tcc.ir.index import Var


@frozen
class TailVectors:
    """How the last blocks along a vector loop of symbolic size are cut into vectors.

    A vector has `lanes` elements. If `masked`, the last vector may reach beyond the end of the
    loop. `rows` is a loop inside the vector loop, or None. If a full block has n vectors and m
    elements along `rows`, a block that is one vector wide has n * m elements along `rows`, so that
    it uses as many registers.
    """

    lanes: int
    masked: bool
    rows: str | None = None


@frozen
class Nest:
    """The loop nest of consecutive stages inside a tile; the stages exchange values in registers.

    `stages` are the numbers of the stages. Iterators are given by name. `order`: the loops over
    register blocks, outermost first. All other loops come after them in the order of the stages,
    reductions last. `blocks`: pairs of an iterator and the elements of a register block along it;
    an iterator without an entry has 1. `vector`: the iterator along the lanes of vector registers,
    the last axis of every block.

    `k_blocks`: pairs of a reduction in `order` and the elements of a K-block along it. Partial sums
    stay in the tile's scratch from one K-block to the next.

    `ahead`: the cache level to which the nest prefetches, or 0 if it does not. A contraction
    prefetches the next panel of its vector operand; other nests prefetch a row of the next tile.

    `packed`: the vector operand of a contraction is computed or copied in scratch, one K-block at a
    time, and all rows of the tile read it there.

    `along`: the numbers of pointwise stages that are computed inside the loops of the reduction
    that reads them, the first of `stages`. They have no loops of their own.

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
        """Returns the numbers of all stages, in the order in which their blocks are computed."""
        return (*self.along, *self.stages)

    def block(self, name: str) -> int:
        """Returns the elements of a register block along the iterator `name`."""
        return dict(self.blocks).get(name, 1)

    def block_beside(self, name: str, lanes: int) -> int:
        """Returns the elements of a register block along the loop `name`, if the block has `lanes`
        elements along the vector loop."""
        vectors, block = self.vectors, self.block(name)
        if vectors is None or name != vectors.rows or lanes > vectors.lanes:
            return block
        return block * (self.block(self.vector or "") // vectors.lanes)

    def vectors_along(self, name: str) -> TailVectors | None:
        """Returns the vectors of the loop's remainder if `name` is the vector loop, else None."""
        return self.vectors if name == self.vector else None


@frozen
class Schedule:
    """How a group's loops are cut into tiles and blocks.

    `parallel`: the common loops of the launch grid, outermost first. `tile_sizes`: pairs of a loop
    of the grid and the elements of a tile along it; a loop without an entry has 1. A tile covers
    the whole range of every other common loop. `nests` run one after the other, each over the whole
    tile. Values that one nest passes to another lie in the tile's scratch.

    `stream_block`: elements in a block of the group's streaming loop. `skips`: a tile leaves out
    blocks of the streaming loop that a mask hides, even if the masked elements hold NaN or
    infinities (`tcc.schedule.masked_terms`).
    """

    tile_sizes: tuple[tuple[str, int], ...]
    parallel: tuple[str, ...]
    nests: tuple[Nest, ...]
    stream_block: int = 0
    skips: bool = False

    def tile_size(self, name: str) -> int:
        """Returns the elements of a tile along the loop `name` of the grid."""
        return dict(self.tile_sizes).get(name, 1)

    def nest(self, stage: int) -> Nest:
        """Returns the nest that computes the stage with number `stage`."""
        return next(n for n in self.nests if stage in n.all_stages)


def named(sizes: Mapping[Var, int]) -> tuple[tuple[str, int], ...]:
    """Returns the sizes above one, by the names of their loops."""
    return tuple((v.name, n) for v, n in sizes.items() if n > 1)


@lru_cache(1 << 14)
def even(size: int, block: int, full_blocks: bool) -> tuple[tuple[int, int], ...]:
    """Returns the blocks into which `size` elements are cut: pairs (elements, count), the larger
    first.

    `full_blocks`: all blocks are full but the last, as vectors need them. Else their sizes differ
    by at most one: 49 in blocks of at most 6 gives (6, 4), (5, 5). A size of 0 has no blocks.
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
