"""Block schedules of a group that are worth pricing.

    x[i, j] summed over j, 500 x 3000    ->   rows 1, 2, 4 of 4096 ; 4, 8 or 16 warps

If stages exchange values along an axis, one block covers the axis. Blocks along all other axes are
tried in powers of two. The numbers of warps and of loads in flight are varied last.
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

# Positions of a block along an axis of unbounded or large size.
_LINEAR = 1024
# The largest number of positions of a row that one block holds.
_ROW = 1 << 13
# Elements of a block of several short rows.
_ROWS = 1 << 12
# The longest sum that is computed one element at a time.
_WINDOW = 64


def candidates(group: TileGroup) -> list[BlockSchedule]:
    """Returns schedules with different blocks, each with the usual number of warps for its blocks.

    Raises `NotBlocks` if no schedule is worth having.
    """
    main = main_matmul(group)
    if main is not None:
        return matmul_schedules(group, main)
    if any(s.reduce for s in group.stages):
        return _columns(group) if _side_by_side(group) else _rows(group)
    return _pointwise(group)


def varied(schedule: BlockSchedule, pipelined: bool) -> list[BlockSchedule]:
    """Returns `schedule` with other numbers of warps and, if `pipelined`, of steps of loads in
    flight."""
    schedules = [
        replace(schedule, warps=warps, stages=stages)
        for warps in (4, 8, 16)
        for stages in ((2, 3, 4) if pipelined else (schedule.stages,))
    ]
    return [other for other in schedules if other != schedule]


# ---- pointwise ----------------------------------------------------------------------------------


def _pointwise(group: TileGroup) -> list[BlockSchedule]:
    """Returns schedules for a group without reductions.

    All loops are one axis, in storage order. If reads and stores run along different loops, blocks
    are squares along both.
    """
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
    """Returns (loop along which stores run, loop along which reads run).

    Returns None unless the loops are different, and both are long.
    """
    stores = [a for s in group.stages for t in s.stores for a in t]
    reads = [a for s in group.stages for n, a in s.accesses.items() if isinstance(n.source, int)]
    store_loops = [v for v in group.common if stores and stride(stores[0], v) == 1]
    if len(store_loops) != 1 or trips(store_loops[0]) < 16:
        return None
    (fast,) = store_loops
    for access in reads:
        distance = stride(access, fast)
        if distance is None or distance < 16:
            continue
        for slow in group.common:
            if slow is not fast and stride(access, slow) == 1 and trips(slow) >= 16:
                return fast, slow
    return None


# ---- reductions ---------------------------------------------------------------------------------


def _rows(group: TileGroup) -> list[BlockSchedule]:
    """Returns schedules whose blocks run along rows and along the axes that reduce them.

    A block holds several short rows, or a part of a long row.
    """
    common = list(group.common)
    along = [reduced_axis(group, s) for s in group.stages]
    owned = [own_axis(group, s) for s in group.stages]
    stream = [] if group.stream is None else [group.stream.loop]
    every = [(loops, most_positions(loops)) for loops in (*along, *owned, stream) if loops]
    longest = max((size for _, size in every if size is not None), default=1)
    fits_whole = all(size is not None and size <= _ROW for _, size in every)
    schedules: list[BlockSchedule] = []
    for rows, length in _row_blocks(power(longest), points(common), fits_whole):
        inner = [
            (loops, length if size is None or size > _ROW else power(size)) for loops, size in every
        ]
        warps = min(16, max(4, power(rows * length // 2048)))  # about 64 elements a thread
        schedules.append(schedule_of([(common, rows), *inner], [common], warps))
    return schedules


def _row_blocks(widest: int, count: int, fits_whole: bool) -> list[tuple[int, int]]:
    """Returns block sizes as pairs (rows, positions along a row).

    `widest` is the length of the longest row, and `count` the number of rows. `fits_whole`: a block
    may hold whole rows.
    """
    if not fits_whole:
        return [(1, piece) for piece in (_LINEAR, 2 * _LINEAR, 4 * _LINEAR)]
    row_limit = min(max(1, 2 * _ROWS // widest), power(count))
    return [(1 << n, widest) for n in reversed(range(row_limit.bit_length()))]


def _side_by_side(group: TileGroup) -> bool:
    """Returns True if neighbours in memory belong to different sums.

    This is so if the summed loops do not run along neighbours in memory, or if they are short, as
    in a window.
    """
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
    """Returns schedules for sums of columns; a block computes the sums of neighbouring columns.

    A sum of at most `_WINDOW` terms is computed term by term, or from one block of all its terms.
    A longer sum is computed from several blocks of terms.
    """
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
    schedules: list[BlockSchedule] = []
    for columns in (64, 32, 128, 16):
        # If blocks divide the last loop, its index is found without a division.
        divisible = trips(common[-1]) % columns == 0
        parallel = [common[:-1], common[-1:]] if divisible else [common]
        for steps in (32, 64, 16, 128):
            if columns * steps <= _ROWS:
                blocks = [(parallel[-1], columns), *summed_in(group, steps)]
                schedules.append(schedule_of(blocks, parallel))
    return schedules
