"""Block schedules of a group that are worth a price.

    x[i, j] summed over j, 500 x 3000    ->   rows 1, 2, 4 of 4096 ; 4, 8 or 16 warps

What stages exchange decides which axes one block must cover; all else is tried in powers of two,
warps and stages after the rest.
"""

from dataclasses import replace

from tcc.ir.index import Var
from tcc.ir.tile.group import TileGroup
from tcc.schedule.gpu.axes import (
    most_positions,
    own_axis,
    power,
    reduced_axis,
    schedule_of,
    summed_in,
)
from tcc.schedule.gpu.matmuls import main_matmul, matmul_schedules
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.schedule.nest import anchor, points, stride, trips

# Elements of a block of unknown length.
_LINEAR = 1024
# The longest row that one block holds.
_ROW = 1 << 13
# Elements of a block of short rows.
_ROWS = 1 << 12
# Steps of a sum so short that its elements are taken one by one.
_WINDOW = 64


def candidates(group: TileGroup) -> list[BlockSchedule]:
    """Ways to cut the group's loops, each with the warps that blocks of its size take as a rule.

    Raises `NotBlocks` where none is worth having.
    """
    main = main_matmul(group)
    if main is not None:
        return matmul_schedules(group, main)
    if any(s.reduce for s in group.stages):
        return _columns(group) if _side_by_side(group) else _rows(group)
    return _pointwise(group)


def varied(schedule: BlockSchedule, pipelined: bool) -> list[BlockSchedule]:
    """The same blocks with other warps, and with other stages where these matter."""
    found = [
        replace(schedule, warps=warps, stages=stages)
        for warps in (4, 8, 16)
        for stages in ((2, 3, 4) if pipelined else (schedule.stages,))
    ]
    return [each for each in found if each != schedule]


def _warps(elements: int) -> int:
    """Warps of a unit: about 64 elements a thread of the largest block."""
    return min(16, max(4, power(elements // 2048)))


# ---- pointwise ----------------------------------------------------------------------------------


def _pointwise(group: TileGroup) -> list[BlockSchedule]:
    """All loops as one axis in the order of storage; a square where reads and writes disagree."""
    common = list(group.common)
    across = _across(group)
    if across is not None:
        fast, slow = across
        grid = [[v for v in common if v not in across], [slow], [fast]]
        return [schedule_of([([slow], n), ([fast], m)], grid) for n, m in _SQUARES]
    every = [common, *(own_axis(group, stage) for stage in group.stages)]
    return [schedule_of([(loops, n) for loops in every], [common]) for n in _LINES]


_LINES = (1024, 2048, 512, 256, 128)
_SQUARES = ((32, 64), (64, 64), (32, 32), (16, 64), (16, 32))


def _across(group: TileGroup) -> tuple[Var, Var] | None:
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


def _rows(group: TileGroup) -> list[BlockSchedule]:
    """Rows and what they are reduced along: short rows whole, several to a block; long ones in
    pieces."""
    common = list(group.common)
    along = [reduced_axis(group, s) for s in group.stages]
    owned = [own_axis(group, s) for s in group.stages]
    stream = [] if group.stream is None else [group.stream.loop]
    every = [(loops, most_positions(loops)) for loops in (*along, *owned, stream) if loops]
    longest = max((size for _, size in every if size is not None), default=1)
    whole = all(size is not None and size <= _ROW for _, size in every)
    found: list[BlockSchedule] = []
    for rows, piece in _row_blocks(power(longest), points(common), whole):
        inner = [
            (loops, piece if size is None or size > _ROW else power(size)) for loops, size in every
        ]
        found.append(schedule_of([(common, rows), *inner], [common], _warps(rows * piece)))
    return found


def _row_blocks(widest: int, count: int, whole: bool) -> list[tuple[int, int]]:
    """Rows of a block, and the positions of what does not fit it whole."""
    if not whole:
        return [(1, piece) for piece in (_LINEAR, 2 * _LINEAR, 4 * _LINEAR)]
    most = min(max(1, 2 * _ROWS // widest), power(count))
    return [(1 << n, widest) for n in reversed(range(most.bit_length()))]


def _side_by_side(group: TileGroup) -> bool:
    """Whether neighbours in storage are different rows: what is reduced lies across, or is short
    and lies in windows."""
    if group.stream is not None or any(own_axis(group, s) for s in group.stages):
        return False
    stage = anchor(group)
    reads = [a for n, a in stage.accesses.items() if isinstance(n.source, int)]
    if not stage.reduce or not reads:
        return False
    loops = stage.loops
    widest = max(reads, key=lambda a: points(v for v in loops if stride(a, v) != 0))
    if any(stride(widest, v) == 1 for v in group.common if trips(v) >= 16):
        return True
    last = most_positions(stage.reduce)
    return last is not None and last <= 16 and points(group.common) >= 256


def _columns(group: TileGroup) -> list[BlockSchedule]:
    """Columns and windows: side by side, windows element by element or whole."""
    common = list(group.common)
    size = most_positions(anchor(group).reduce)
    if size is not None and size <= _WINDOW:
        summed = [reduced_axis(group, stage) for stage in group.stages]
        windows = [(loops, power(most_positions(loops) or 1)) for loops in summed]
        return [
            schedule_of([(common, block), *inner], [common])
            for block in (256, 512, 128, 64, 32)
            for inner in ([], windows)
            if not inner or block * power(size) <= _ROWS
        ]
    found: list[BlockSchedule] = []
    for columns in (64, 32, 128, 16):
        # Neighbours along one loop need no division.
        alone = trips(common[-1]) % columns == 0
        parallel = [common[:-1], common[-1:]] if alone else [common]
        for steps in (32, 64, 16, 128):
            if columns * steps <= _ROWS:
                blocks = [(parallel[-1], columns), *summed_in(group, steps)]
                found.append(schedule_of(blocks, parallel))
    return found
