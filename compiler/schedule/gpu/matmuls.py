"""Block schedules of groups with contractions: matmuls, matmuls of a few rows, and chains of
matmuls."""

from typing import TypeAlias

from tcc.frozen import frozen
from tcc.ir.index import Var, Vars
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.ir.tile.verify_gpu import LEAST_SIDE
from tcc.ir.types import BF16, F16, F32, I32
from tcc.schedule.gpu.axes import (
    factors,
    most_positions,
    of_bytes,
    own_axis,
    power,
    reads_stages,
    reduced_axis,
    schedule_of,
    summed_in,
)
from tcc.schedule.gpu.schedule import BlockSchedule, NotBlocks
from tcc.schedule.nest import points

# The most columns of a matmul that one tile can hold whole.
_COLUMNS = 256
# About the number of products in a block that does not use matrix units.
_ELEMENTS = 1 << 12
# Terms of a block along a sum of unbounded length.
_LINEAR = 1024


@frozen
class _Roles:
    """The loops of a contraction's result.

    `batch`: both factors vary with them. `rows`: only the first factor does. `columns`: only the
    second factor does.
    """

    batch: Vars
    rows: Vars
    columns: Vars


def _roles(stage: GroupStage) -> _Roles | None:
    """Returns the roles of the result loops of a contraction; None for any other stage."""
    pair = factors(stage)
    if pair is None or not stage.reduce:
        return None
    a, b = pair.loops(stage)
    batch = tuple(v for v in stage.iters if (v in a) is (v in b))
    rows = tuple(v for v in stage.iters if v in a and v not in b)
    return _Roles(batch, rows, tuple(v for v in stage.iters if v in b and v not in a))


def is_matmul(stage: GroupStage) -> bool:
    """Returns True if a stage multiplies matrices with rows, columns and terms for matrix units.

    They are at least `LEAST_SIDE` each.
    """
    roles = _roles(stage)
    if roles is None or stage.body[0].dtype not in (F32, I32):
        return False
    return min(points(roles.rows), points(roles.columns), points(stage.reduce)) >= LEAST_SIDE


def main_matmul(group: TileGroup) -> GroupStage | None:
    """Returns the contraction with rows and columns that has the most multiply-adds; None without
    one."""
    matmuls = [
        stage
        for stage in group.stages
        if (roles := _roles(stage)) and roles.rows and roles.columns and points(stage.reduce) >= 8
    ]
    return max(matmuls, key=lambda s: points(s.loops), default=None)


def matmul_schedules(group: TileGroup, main: GroupStage) -> list[BlockSchedule]:
    """Returns the schedules worth pricing for a group whose main work is the matmul `main`.

    Raises `NotBlocks` if stages exchange rows that are longer than a block.
    """
    roles = _roles(main)
    assert roles is not None
    common = group.common
    first, second = ([v for v in common if v in names] for names in (roles.rows, roles.columns))
    batch = [v for v in common if v not in first and v not in second]
    if common and common[-1] in first:
        first, second = second, first
    owned = [loops for s in group.stages if (loops := own_axis(group, s))]
    if owned or group.stream is not None:
        return _chained(group, first, second)
    schedules: list[BlockSchedule] = []
    if main.body[0].dtype in (F32, I32) and first and second:
        schedules += _matrices(group, main, (batch, first, second))
    if not schedules or min(points(first), points(second)) < LEAST_SIDE:
        schedules += _narrow(group, main, (batch, first, second))
    return schedules


_Grid: TypeAlias = tuple[list[Var], list[Var], list[Var]]


def _matrices(group: TileGroup, main: GroupStage, grid: _Grid) -> list[BlockSchedule]:
    """Returns schedules whose blocks are multiplied as matrices.

    `grid` has the axes of the grid: batch, then the two sides of the matrix. No block is longer
    along a side than the matrix.
    """
    _, first, second = grid
    halves = _halves(main)
    extents = [max(LEAST_SIDE, power(points(loops))) for loops in (first, second)]
    schedules: list[BlockSchedule] = []
    for bm, bn in _SHAPES:
        if bm > extents[0] or bn > extents[1] or bm * bn > _ACC:
            continue
        for depth in _DEPTHS_HALVES if halves else _DEPTHS:
            blocks = [(first, bm), (second, bn), *(_sum(group, s, depth) for s in group.stages)]
            warps = 8 if bm * bn > 1 << 13 else 4
            schedules.append(schedule_of(blocks, grid, warps, 4 if halves else 3))
    return schedules


def _halves(stage: GroupStage) -> bool:
    """Returns True if a contraction multiplies f16, bf16 or bytes.

    If only one factor has 16 bits, the other is rounded to its type.
    """
    return of_bytes(stage) or any(n.dtype in (BF16, F16) for n in stage.accesses)


def _sum(group: TileGroup, stage: GroupStage, block: int) -> tuple[list[Var], int]:
    """Returns the axis along which a contraction sums in blocks, and the size of a block.

    The axis is the last summed loop that has at least `block` terms and fills blocks evenly. If
    there is none, it is all summed loops together.
    """
    loops = reduced_axis(group, stage)
    shortest = 2 * LEAST_SIDE if of_bytes(stage) else LEAST_SIDE
    for loop in reversed(loops) if len(loops) > 1 else ():
        size = most_positions([loop])
        if size is not None and size >= block and not size % shortest:
            loops = [loop]
            break
    positions = most_positions(loops)
    return loops, max(shortest, block if positions is None else min(block, power(positions)))


_SHAPES = (
    (128, 256), (256, 128), (128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32),
    (32, 32), (16, 64), (64, 16), (16, 32), (32, 16), (16, 16),
)  # fmt: skip
# The most results of a block, whose accumulators are in the registers of a tile.
_ACC = 1 << 15


# Block sizes that are tried along the sum of a matmul, for f32 operands (_DEPTHS) and for narrower
# operands (_DEPTHS_HALVES). Without matrix units: block sizes along the sum (_STEPS) and along the
# columns (_MANY).
_DEPTHS, _DEPTHS_HALVES = (16, 32, 64), (32, 64, 128)
_STEPS, _MANY = (16, 32, 64, 128, 256, 512), (1, 2, 4, 8, 16, 32, 64, 128, 256)


def _narrow(group: TileGroup, main: GroupStage, grid: _Grid) -> list[BlockSchedule]:
    """Returns schedules for matmuls of a few rows, which do not use matrix units.

    A block has all rows. Its elements are multiplied one by one, and lanes are added up afterwards.
    """
    few, many = sorted(grid[1:], key=points)
    size = most_positions(few)
    rows = 1 if size is None else min(LEAST_SIDE, power(size))
    longest = power(most_positions(reduced_axis(group, main)) or _LINEAR)
    schedules: list[BlockSchedule] = []
    for columns in _MANY:
        for steps in _STEPS:
            if _fits(rows, columns, steps, longest, points(many)):
                blocks = [(few, rows), (many, columns), *summed_in(group, steps)]
                schedules.append(schedule_of(blocks, grid, stages=3))
    return schedules


def _fits(rows: int, columns: int, steps: int, longest: int, many: int) -> bool:
    """Returns True if a block is large enough for a tile, and lies mostly inside the matrices.

    The block has `rows` x `columns` results of `steps` terms each. The matrices have `many` columns
    and sums of `longest` terms.
    """
    if columns > 1 and columns >= 2 * many:
        return False
    if steps > longest and steps > _STEPS[0]:
        return False
    size = rows * columns * min(steps, longest)
    return size <= 4 * _ELEMENTS and (4 * size >= _ELEMENTS or size * 4 >= longest * many)


def _chained(group: TileGroup, first: list[Var], second: list[Var]) -> list[BlockSchedule]:
    """Returns schedules for several matmuls whose rows stay in a tile from one to the next.

    `first` and `second` are the axes of the main matmul's result, without loops of a batch. The
    longer of them is cut into blocks of rows. A block covers all other axes of a row.
    """
    shared = {v for s in group.stages if (r := _roles(s)) is not None for v in r.batch}
    free_loops = [[v for v in axis if v not in shared] for axis in (first, second)]
    rows = max(free_loops, key=lambda loops: points(loops) if loops else 0)
    batch = [v for v in group.common if v not in rows]
    for stage in group.stages:
        size = most_positions(own_axis(group, stage))
        if (size is None or size > _COLUMNS) and factors(stage) is not None:
            raise NotBlocks("rows of a matmul are longer than a block")
    count = points(rows)
    widest = max(LEAST_SIDE, power(count)) if count >= LEAST_SIDE else power(count)
    stream, steps = [], [1]
    if group.stream is not None:
        stream = [group.stream.loop]
        limit = most_positions(stream)
        longest = _STREAM_BLOCKS[-1] if limit is None else max(LEAST_SIDE, power(limit))
        steps = [n for n in _STREAM_BLOCKS if n <= longest]
    inner = _inner(group)
    return [
        schedule_of([(rows, block), (stream, step), *inner], [batch, rows])
        for block in [n for n in (LEAST_SIDE, 32, 64, 128) if n <= widest] or [widest]
        for step in steps
    ]


# Block sizes along a streaming loop that are tried.
_STREAM_BLOCKS = (16, 32, 64, 128)


def _inner(group: TileGroup) -> list[tuple[list[Var], int]]:
    """Returns pairs (loops of an axis, block size) for the axes inside a tile.

    A tile holds such an axis whole, or reduces along it.
    """
    axes = []
    for stage in group.stages:
        loops, summed = own_axis(group, stage), reduced_axis(group, stage)
        axes.append((loops, max(LEAST_SIDE, power(most_positions(loops) or _LINEAR))))
        size = most_positions(summed)
        if size is not None and (reads_stages(stage) or size <= _COLUMNS):
            axes.append((summed, max(LEAST_SIDE, power(size))))
        elif factors(stage) is not None:
            axes.append(_sum(group, stage, 64 if _halves(stage) else 32))
        else:
            axes.append((summed, _LINEAR))
    return axes
