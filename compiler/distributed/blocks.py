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

Blocks that cover a loop with iterations behind its end are padded.  They read padded blocks of an
axis if both end at the same place:

    64*i + j        i over 10, 3 ranks, blocks of 4     256*r: blocks of 256 of an axis of 640

Neighbour ranks may have the same block:

    i // 4          i over 8, 4 ranks       r//2: ranks 0 and 1 read the first of two blocks
"""

from tcc.distributed.sharding import WHOLE, Sharding, Split
from tcc.frozen import frozen
from tcc.ir.expr import Stage, extent
from tcc.ir.index import Index, Var, as_int, free_vars, iterator, of_atom
from tcc.ir.index import substitute as substitute_index
from tcc.ir.region.affine import (
    Affine,
    Affines,
    Size,
    Sizes,
    affine_of,
    combine,
    digit,
    index_of,
    interval,
    is_inside,
    is_nonnegative,
    loops_of,
    plain,
    simplified,
    substitute,
    unit,
    units,
)


@frozen
class LoopBlock:
    """Loop `loop` of a stage in `groups` groups, each divided in blocks of `size` iterations.

    `copies` neighbour ranks of `ranks` have the same block.
    """

    loop: Var
    size: Size
    groups: int
    ranks: int
    copies: int = 1

    @property
    def local(self) -> Index:
        """The iterator of a rank's iterations, group by group."""
        return iterator(self.loop.name, self.size * self.groups)

    @property
    def parts(self) -> int:
        """The number of different blocks of a group."""
        return self.ranks // self.copies

    @property
    def is_padded(self) -> bool:
        """True if the last blocks have iterations behind the end of the loop."""
        return plain(extent(self.loop) - self.size * self.parts * self.groups) != 0

    @property
    def group(self) -> Size:
        """The iterations of a group."""
        return plain(extent(self.loop) // self.groups)

    @property
    def share(self) -> float:
        """The share of the loop's iterations that a rank runs, with padding."""
        iterations = as_int(extent(self.loop))
        if not isinstance(self.size, int) or not iterations:
            return 1 / self.parts
        return self.size * self.groups / iterations

    def split(self, axis: int) -> Split:
        """Returns the sharding of an axis along which the loop writes."""
        block = self.size if self.is_padded and isinstance(self.size, int) else 0
        return Split(axis, self.groups, block, self.copies)


def loop_block(loop: Var, ranks: int, split: Split) -> LoopBlock | None:
    """Returns the blocks of a loop that are those of `split`; None where they are not equal."""
    try:
        size = plain(split.length(extent(loop), ranks))
    except ValueError:
        return None
    return LoopBlock(loop, size, split.groups, ranks, split.copies)


def axis_split(
    index: Index, stage: Stage, block: LoopBlock | None, axis: int, size: Size
) -> Sharding | None:
    """Returns how the ranks divide axis `axis` of `size` elements that a stage reads at `index`.

    It is whole where all ranks read the same elements.  None where the ranks read in another way.
    """
    if block is None or block.loop not in free_vars(index):
        return WHOLE
    moved, extents = _moved(index, stage, block, block.parts)
    step = _step(moved)
    if moved is None or step is None:
        return None
    shift, copies = step
    if shift == 0:
        return WHOLE
    first = moved._replace(
        steps=(*moved.steps[:-1], 0),
        digits=tuple(d for d in moved.digits if len(extents) - 1 not in loops_of(d.of)),
    )
    if not isinstance(shift, int) or not isinstance(size, int):
        is_axis = plain(shift * block.parts - size) == 0 and copies == 1
        return Split(axis) if is_axis and is_inside(first, shift, extents) else None
    if shift < 0:
        return None
    split = _axis_blocks(block, axis, shift, copies, size)
    if split is None or not is_inside(first, size, extents):
        return None
    within = digit(first, 1, size // split.groups, extents)
    return split if is_inside(digit(within, shift, 0, extents), 1, extents) else None


def _axis_blocks(block: LoopBlock, axis: int, shift: int, copies: int, size: int) -> Split | None:
    """Returns the blocks of `shift` elements of an axis; they end where those of the loop do."""
    if block.is_padded:
        assert isinstance(block.size, int)
        assert isinstance(block.group, int)
        groups, remainder = divmod(size * block.size, shift * block.group)
        if copies != 1 or remainder or not groups or size % groups:
            return None
        return Split(axis, groups, shift, block.copies)
    groups, remainder = divmod(size, shift * (block.parts // copies))
    if remainder or not groups or block.parts % copies:
        return None
    return Split(axis, groups, 0, block.copies * copies)


def shift_of(index: Index, stage: Stage, block: LoopBlock | None) -> "Size | None":
    """Returns the distance between the values that `index` has in neighbour blocks; None where it
    depends on the iteration."""
    if block is None or block.loop not in free_vars(index):
        return 0
    step = _step(_moved(index, stage, block, block.parts)[0])
    if step is None:
        return None
    shift, copies = step
    return shift if copies == 1 else None


def _moved(
    index: Index, stage: Stage, block: LoopBlock, *parts: int
) -> tuple[Affine | None, Sizes]:
    """Returns `index` as a form of the loops of `_maps`, and their extents; None for an index that
    is no form of loops."""
    form = affine_of(index, {loop: n for n, loop in enumerate(stage.loops)})
    maps, extents = _maps(stage, block, *parts)
    return form and simplified(substitute(form, maps, extents), extents), extents


def _step(moved: Affine | None) -> "tuple[Size, int] | None":
    """Returns the step s and the divisor d of a form whose values have the distance s on ranks r
    and r + d; None for a form that depends on the last loop r in another way than s * (r // d)."""
    if moved is None:
        return None
    last = len(moved.steps) - 1
    digits = [d for d in moved.digits if last in loops_of(d.of)]
    match digits:
        case []:
            return moved.steps[last], 1
        case [single] if moved.steps[last] == 0 and single.of == unit(last, last + 1):
            return None if single.mod else (single.step, single.div)
    return None


def _maps(stage: Stage, block: LoopBlock, *parts: int) -> tuple[Affines, Sizes]:
    """Returns the loops of a stage as forms of the local loops, and the extents of these.

    With `parts`, the block's number is one more loop behind them; without, it is 0.
    """
    sizes = {loop: plain(extent(loop)) for loop in stage.loops}
    sizes[block.loop] = plain(block.size * block.groups)
    extents = (*sizes.values(), *parts)
    loops = units(len(extents))
    position = stage.loops.index(block.loop)
    local = loops[position]
    forms = [(block.size, loops[-1]) for _ in parts]
    if block.groups == 1:
        forms.append((1, local))
    else:
        assert isinstance(block.size, int)
        forms.append((block.group, digit(local, block.size, 0, extents)))
        forms.append((1, digit(local, 1, block.size, extents)))
    maps = list(loops[: len(stage.loops)])
    maps[position] = combine(forms, extents)
    return tuple(maps), extents


def local_index(
    index: Index, stage: Stage, block: LoopBlock, size: Index, sharding: Sharding
) -> Index:
    """Returns the element of a rank's array at which its iterations read, instead of `index` of the
    whole array.

    `sharding` is that of the axis, and `size` its length.
    """
    first, extents = _moved(index, stage, block)
    assert first is not None
    if isinstance(sharding, Split) and sharding.groups > 1:
        group = (as_int(size) or 0) // sharding.groups
        inner = plain(sharding.length(size, block.ranks))
        place = digit(first, group, 0, extents)
        first = combine([(inner, place), (1, digit(first, 1, group, extents))], extents)
    return index_of(first, [block.local if v is block.loop else of_atom(v) for v in stage.loops])


def can_be_placed(index: Index, block: LoopBlock) -> bool:
    """True if `placed_index` is inside the axis that `index` reads, on every rank."""
    return block.groups == 1 and not block.is_padded and block.loop in free_vars(index)


def placed_index(index: Index, block: LoopBlock, number: Index) -> Index:
    """Returns the element of a whole axis that the iterations of block `number` read, instead of
    `index` of the whole loop."""
    return substitute_index(index, {block.loop: block.local + number * block.size})


def ends_with(index: Index, stage: Stage, block: LoopBlock) -> bool:
    """True if `index` is certain to lie behind the end of its axis in every iteration behind the
    end of the divided loop.

    It is certain where the loop has one group, and each iteration reads behind all elements of
    earlier iterations.
    """
    moved, extents = _moved(index, stage, block, block.parts)
    if moved is None or block.groups > 1 or moved.digits or not isinstance(block.size, int):
        return False
    position, shift = stage.loops.index(block.loop), moved.steps[-1]
    if not isinstance(shift, int) or shift % block.size:
        return False
    steps = list(moved.steps)
    steps[-1], steps[position] = 0, plain(steps[position] - shift // block.size)
    low, _ = interval(moved._replace(steps=tuple(steps)), extents)
    return low is not None and is_nonnegative(low)
