"""Chooses a block schedule for a tile group from its strides and sizes."""

from __future__ import annotations

from tcc.ir.group import TileGroup
from tcc.ir.index import Var
from tcc.schedule.block_axes import Blocks, most_positions, own_axis, power, reduced_axis
from tcc.schedule.block_products import choose_product, main_product
from tcc.schedule.blocks import TYPICAL_DEVICE, BlockProfile, BlockSchedule
from tcc.schedule.nest import anchor, points, stride, trips

# Elements of a block that a unit computes at once where nothing is reduced.
_LINEAR = 1024
# The longest row that one block holds.
_ROW = 1 << 13
# Elements of a block of short rows.
_ROWS = 1 << 12
# Steps of a sum so short that its elements are taken one by one.
_WINDOW = 64


def choose_blocks(group: TileGroup, profile: BlockProfile = TYPICAL_DEVICE) -> BlockSchedule:
    """A schedule for `group`.  Raises `NotBlocks` where none is worth having."""
    main = main_product(group)
    if main is not None:
        return choose_product(group, main, profile)
    if any(s.reduce for s in group.stages):
        return _reduction(group, profile)
    return _pointwise(group, profile)


def _warps(elements: int) -> int:
    """Warps of a unit: about 64 elements a thread of the largest block."""
    return min(16, max(4, power(elements // 2048)))


# ---- pointwise ----------------------------------------------------------------------------------


def _pointwise(group: TileGroup, profile: BlockProfile) -> BlockSchedule:
    """All loops as one axis in the order of storage; a square where reads and writes disagree."""
    blocks = Blocks()
    turned = _turned(group)
    common = list(group.common)
    if turned is not None:
        fast, slow = turned
        rest = [v for v in common if v not in turned]
        blocks.add([slow], 32)
        blocks.add([fast], 64)
        return blocks.schedule([rest, [slow], [fast]], 4, 2)
    block = _linear(points(group.common), profile)
    blocks.add(common, block)
    for stage in group.stages:
        blocks.add(own_axis(group, stage), block)
    return blocks.schedule([common], 4, 2)


def _linear(count: int, profile: BlockProfile) -> int:
    """Positions of a block: fewer where there are not enough for all processors."""
    block = _LINEAR
    while block > 128 and count < block * profile.processors:
        block //= 2
    return block


def _turned(group: TileGroup) -> tuple[Var, Var] | None:
    """The loop that runs along what is written and the one that runs along what is read, where
    both are long and differ."""
    stores = [a for s in group.stages for t in s.stores for a in t]
    reads = [a for s in group.stages for n, a in s.accesses.items() if isinstance(n.source, int)]
    written = [v for v in group.common if stores and stride(stores[0], v) == 1]
    if len(written) != 1 or trips(written[0]) < 16:
        return None
    (fast,) = written
    for access in reads:
        far = stride(access, fast)
        if far is None or far < 16:
            continue
        for slow in group.common:
            if slow is not fast and stride(access, slow) == 1 and trips(slow) >= 16:
                return fast, slow
    return None


# ---- reductions ---------------------------------------------------------------------------------


def _reduction(group: TileGroup, profile: BlockProfile) -> BlockSchedule:
    """Rows and what they are reduced along: short rows whole, several to a block; long ones in
    pieces; columns and windows element by element, side by side."""
    blocks = Blocks()
    common = list(group.common)
    if _side_by_side(group):
        return _columns(group, profile)
    along = [reduced_axis(group, s) for s in group.stages]
    owned = [own_axis(group, s) for s in group.stages]
    walk = [] if group.walk is None else [group.walk.loop]
    every = [loops for loops in (*along, *owned, walk) if loops]
    limits = [most_positions(loops) for loops in every]
    longest = max((n for n in limits if n is not None), default=1)
    open_ = any(n is None for n in limits)
    whole = longest <= _ROW
    widest = power(longest) if whole else _LINEAR
    if open_ or not whole:
        widest = max(_LINEAR, min(widest, _ROW))
    rows = max(1, _ROWS // widest) if not open_ and whole else 1
    while rows > 1 and points(group.common) < rows * profile.processors:
        rows //= 2
    blocks.add(common, rows)
    for loops in every:
        size = most_positions(loops)
        fits = size is not None and size <= _ROW
        blocks.add(loops, power(size) if fits and size is not None else _LINEAR)
    return blocks.schedule([common], _warps(rows * widest), 2)


def _side_by_side(group: TileGroup) -> bool:
    """Whether neighbours in storage are different rows: what is reduced lies across, or is short
    and lies in windows."""
    if group.walk is not None or any(own_axis(group, s) for s in group.stages):
        return False
    stage = anchor(group)
    reads = [a for n, a in stage.accesses.items() if isinstance(n.source, int)]
    if not stage.reduce or not reads:
        return False
    loops = (*stage.iters, *stage.reduce)
    widest = max(reads, key=lambda a: points(tuple(v for v in loops if stride(a, v) != 0)))
    if any(stride(widest, v) == 1 for v in group.common if trips(v) >= 16):
        return True
    last = most_positions(stage.reduce)
    return last is not None and last <= 16 and points(group.common) >= 256


def _columns(group: TileGroup, profile: BlockProfile) -> BlockSchedule:
    blocks = Blocks()
    common = list(group.common)
    stage = anchor(group)
    size = most_positions(stage.reduce)
    if size is not None and size <= _WINDOW:
        blocks.add(common, min(256, _linear(points(group.common), profile)))
        return blocks.schedule([common], 4, 2)
    columns = 64 if points(group.common) >= 64 * profile.processors else 32
    # Neighbours along one loop need no division.
    alone = trips(common[-1]) % columns == 0
    parallel = [common[:-1], common[-1:]] if alone else [common]
    blocks.add(parallel[-1], columns)
    for each in group.stages:
        loops = reduced_axis(group, each)
        limit = most_positions(loops)
        steps = 64 if columns == 32 else 32
        blocks.add(loops, steps if limit is None else min(steps, power(limit)))
    return blocks.schedule(parallel, 4, 2)
