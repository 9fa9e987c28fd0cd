"""How an index moves from one rank's block of a loop to the next rank's.

Rank r of n runs over block r of a divided loop, so the loop is `local + r * block`.  An index form
of the loops then is a form of the local loops plus `shift * r`:

    64*i + j        i over 12, 2 ranks      shift 384: blocks of an axis of 768
    i // 64         i over 768, 2 ranks     shift 6: blocks of an axis of 12
    i % 64          i over 768, 2 ranks     shift 0: every rank reads the same
    i % 64          i over 768, 8 ranks     no shift: a block of 96 cuts the axis
"""

from collections.abc import Mapping

from tcc.frozen import frozen
from tcc.ir.expr import Stage, extent
from tcc.ir.index import Index, Var, free_vars
from tcc.ir.region.affine import (
    Affine,
    Size,
    Sizes,
    affine_of,
    is_inside,
    loops_of,
    plain,
    simplified,
    substitute,
    units,
)


@frozen
class LoopBlock:
    """Loop `loop` of a stage, divided in `ranks` blocks of `size` iterations."""

    loop: Var
    size: int
    ranks: int


def loop_block(loop: Var, ranks: int) -> LoopBlock | None:
    """Returns the blocks of a loop; None where `ranks` does not divide it or its extent is
    symbolic or 0."""
    size = plain(extent(loop))
    if not isinstance(size, int) or not size or size % ranks:
        return None
    return LoopBlock(loop, size // ranks, ranks)


def shift_of(index: Index, stage: Stage, block: LoopBlock | None, size: Size) -> int | None:
    """Returns the distance between the elements that neighbour ranks read along an axis of `size`.

    It is 0 where all ranks read the same elements, and `size / ranks` where each rank reads its own
    block of the axis, and nothing else.  None for another way to read.
    """
    if block is None or block.loop not in free_vars(index):
        return 0
    positions = {loop: n for n, loop in enumerate(stage.loops)}
    form = affine_of(index, positions)
    if form is None:
        return None
    moved, extents = _with_rank(form, positions, stage, block)
    rank = len(stage.loops)
    shift = moved.steps[rank]
    if any(rank in loops_of(digit.of) for digit in moved.digits) or not isinstance(shift, int):
        return None
    if shift == 0:
        return 0
    local = moved._replace(steps=(*moved.steps[:rank], 0))
    if shift * block.ranks != size or not is_inside(local, shift, extents):
        return None
    return shift


def _with_rank(
    form: Affine, positions: Mapping[Var, int], stage: Stage, block: LoopBlock
) -> tuple[Affine, Sizes]:
    """Returns `form` as a form of the local loops and of the rank's number, the last loop; and
    their extents."""
    position = positions[block.loop]
    extents: list[Size] = [plain(extent(loop)) for loop in stage.loops]
    extents[position] = block.size
    extents.append(block.ranks)
    maps = list(units(len(extents)))[:-1]
    steps = [0] * len(extents)
    steps[position], steps[-1] = 1, block.size
    maps[position] = Affine(tuple(steps))
    sizes = tuple(extents)
    return simplified(substitute(form, maps, sizes), sizes), sizes
