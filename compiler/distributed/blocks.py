"""How an index moves from one rank's block of a loop to the next rank's.

Rank r of n runs over block r of a divided loop, so the loop is `local + size * r`.  An index of the
loops then is a form of the local loops plus a multiple of r:

    64*i + j        i over 12, 2 ranks      384*r: blocks of an axis of 768
    i // 64         i over 768, 2 ranks     6*r: blocks of an axis of 12
    i % 64          i over 768, 2 ranks     0: every rank reads the same
    i % 64          i over 768, 8 ranks     no multiple of r: a block of 96 cuts the axis

A loop or an axis may consist of equal groups, each of which the ranks divide: queries, keys and
values side by side, say.

    i + 768         i over 768, 2 ranks     384*r: an axis of 2304 has 3 groups of 2 blocks
"""

from tcc.frozen import frozen
from tcc.ir.expr import Stage, extent
from tcc.ir.index import Index, Var, free_vars, iterator, of_atom
from tcc.ir.region.affine import (
    Affine,
    Affines,
    Size,
    Sizes,
    affine_of,
    combine,
    constant,
    digit,
    index_of,
    is_inside,
    loops_of,
    plain,
    simplified,
    substitute,
    units,
)


@frozen
class LoopBlock:
    """Loop `loop` of a stage in `groups` groups, each divided in `ranks` blocks of `size`
    iterations."""

    loop: Var
    size: int
    groups: int
    ranks: int

    @property
    def local(self) -> Index:
        """The iterator of a rank's iterations, group by group."""
        return iterator(self.loop.name, self.size * self.groups)


def loop_block(loop: Var, ranks: int, groups: int = 1) -> LoopBlock | None:
    """Returns the blocks of a loop; None where they are not equal or the extent is symbolic or
    0."""
    size = plain(extent(loop))
    if not isinstance(size, int) or not size or size % (ranks * groups):
        return None
    return LoopBlock(loop, size // ranks // groups, groups, ranks)


def groups_of(index: Index, stage: Stage, block: LoopBlock | None, size: Size) -> int | None:
    """Returns in how many groups the ranks divide an axis of `size` that a stage reads at `index`.

    It is 0 where all ranks read the same elements.  None where the ranks read in another way.
    """
    if block is None or block.loop not in free_vars(index):
        return 0
    moved, extents = _moved(index, stage, block)
    shift = None if moved is None else _shift(moved)
    if moved is None or not isinstance(shift, int) or not isinstance(size, int) or shift < 0:
        return None
    if shift == 0:
        return 0
    groups, remainder = divmod(size, shift * block.ranks)
    if remainder or not groups:
        return None
    first = moved._replace(steps=(*moved.steps[:-1], 0))
    place = digit(first, shift, block.ranks, extents)  # of a block in its group
    is_first = place == constant(0, len(extents)) and is_inside(first, size, extents)
    return groups if is_first else None


def shift_of(index: Index, stage: Stage, block: LoopBlock | None) -> int | None:
    """Returns the distance between the values that `index` has on neighbour ranks; None where it
    depends on the iteration."""
    if block is None or block.loop not in free_vars(index):
        return 0
    moved, _ = _moved(index, stage, block)
    shift = None if moved is None else _shift(moved)
    return shift if isinstance(shift, int) else None


def _moved(index: Index, stage: Stage, block: LoopBlock) -> tuple[Affine | None, Sizes]:
    """Returns `index` as a form of the local loops and the rank's number, the last loop, and their
    extents; None for an index that is no form of loops."""
    form = affine_of(index, {loop: n for n, loop in enumerate(stage.loops)})
    maps, extents = _maps(stage, block, block.ranks)
    return form and simplified(substitute(form, maps, extents), extents), extents


def _shift(moved: Affine) -> "Size | None":
    """Returns the coefficient of the last loop; None if digits depend on it too."""
    last = len(moved.steps) - 1
    return None if any(last in loops_of(d.of) for d in moved.digits) else moved.steps[last]


def _maps(stage: Stage, block: LoopBlock, *ranks: int) -> tuple[Affines, Sizes]:
    """Returns the loops of a stage as forms of the local loops, and the extents of these.

    With `ranks`, the rank's number is one more loop behind them; without, it is 0.
    """
    sizes = {loop: plain(extent(loop)) for loop in stage.loops}
    sizes[block.loop] = block.size * block.groups
    extents = (*sizes.values(), *ranks)
    loops = units(len(extents))
    position = stage.loops.index(block.loop)
    parts = [
        (block.size * block.ranks, digit(loops[position], block.size, 0, extents)),
        (1, digit(loops[position], 1, block.size, extents)),
        *((block.size, loops[-1]) for _ in ranks),
    ]
    maps = list(loops[: len(stage.loops)])
    maps[position] = combine(parts, extents)
    return tuple(maps), extents


def local_index(index: Index, stage: Stage, block: LoopBlock, size: int, groups: int) -> Index:
    """Returns the element of a rank's array at which its iterations read, instead of `index` of the
    whole array.

    The axis of `size` is divided in `groups` groups; it is whole if `groups` is 0.
    """
    form = affine_of(index, {loop: n for n, loop in enumerate(stage.loops)})
    assert form is not None
    maps, extents = _maps(stage, block)
    first = simplified(substitute(form, maps, extents), extents)
    if groups > 1:
        inner = size // groups // block.ranks
        group = digit(first, inner * block.ranks, 0, extents)
        first = combine([(inner, group), (1, digit(first, 1, inner, extents))], extents)
    return index_of(first, [block.local if v is block.loop else of_atom(v) for v in stage.loops])
