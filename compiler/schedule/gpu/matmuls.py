"""Block schedules of groups with sums of products: matrices, a few rows, chains of products."""

from typing import TypeAlias

from tcc.ir.index import Var, Vars
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.ir.types import BF16, F16, F32, I32
from tcc.record import record
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
from tcc.schedule.nest import depends, points

# The least side of a block that is multiplied as a matrix.
SIDE = 16
# The most columns of a product that a unit makes whole.
_COLUMNS = 256
# Elements of a block of products that are summed without a matrix.
_PRODUCTS = 1 << 12
# Steps of a sum of unknown length that are taken at once.
_LINEAR = 1024


@record
class _Roles:
    """The loops of a product's result: of both factors, of one and of the other."""

    batch: Vars
    rows: Vars
    columns: Vars


def _roles(stage: GroupStage) -> _Roles | None:
    both = factors(stage)
    if both is None or not stage.reduce:
        return None
    a, b = depends(stage, both.a), depends(stage, both.b)
    batch = tuple(v for v in stage.iters if (v in a) is (v in b))
    rows = tuple(v for v in stage.iters if v in a and v not in b)
    return _Roles(batch, rows, tuple(v for v in stage.iters if v in b and v not in a))


def is_matmul(stage: GroupStage) -> bool:
    """Whether a stage multiplies matrices that fill blocks on all sides."""
    roles = _roles(stage)
    if roles is None or stage.body[0].dtype not in (F32, I32):
        return False
    return min(points(roles.rows), points(roles.columns), points(stage.reduce)) >= SIDE


def main_matmul(group: TileGroup) -> GroupStage | None:
    """The largest sum of products of rows and columns."""
    found = [
        stage
        for stage in group.stages
        if (roles := _roles(stage)) and roles.rows and roles.columns and points(stage.reduce) >= 8
    ]
    return max(found, key=lambda s: points(s.loops), default=None)


def matmul_schedules(group: TileGroup, main: GroupStage) -> list[BlockSchedule]:
    """What is worth pricing for a group whose work is the product `main`.

    Raises `NotBlocks` for rows that a unit must hold and cannot.
    """
    roles = _roles(main)
    assert roles is not None
    common = group.common
    first, second = ([v for v in common if v in side] for side in (roles.rows, roles.columns))
    batch = [v for v in common if v not in first and v not in second]
    if common and common[-1] in first:
        first, second = second, first
    owned = [loops for s in group.stages if (loops := own_axis(group, s))]
    if owned or group.stream is not None:
        return _chained(group, first, second)
    found: list[BlockSchedule] = []
    if main.body[0].dtype in (F32, I32) and first and second:
        found += _matrices(group, main, (batch, first, second))
    if not found or min(points(first), points(second)) < SIDE:
        found += _narrow(group, main, (batch, first, second))
    return found


_Grid: TypeAlias = tuple[list[Var], list[Var], list[Var]]


def _matrices(group: TileGroup, main: GroupStage, grid: _Grid) -> list[BlockSchedule]:
    """Blocks of matrices, no larger along a side than what there is."""
    _, first, second = grid
    halves = _halves(main)
    sides = [max(SIDE, power(points(loops))) for loops in (first, second)]
    most = _ACC_HALVES if halves else _ACC
    found: list[BlockSchedule] = []
    for bm, bn in _SIDES:
        if bm > sides[0] or bn > sides[1] or bm * bn > most:
            continue
        for depth in _DEPTHS_HALVES if halves else _DEPTHS:
            blocks = [(first, bm), (second, bn), *(_sum(group, s, depth) for s in group.stages)]
            warps = 8 if bm * bn > 1 << 13 else 4
            found.append(schedule_of(blocks, grid, warps, 4 if halves else 3))
    return found


def _halves(stage: GroupStage) -> bool:
    """Whether a product multiplies halves, or bytes: then its other operand is rounded too, if need
    be."""
    return of_bytes(stage) or any(n.dtype in (BF16, F16) for n in stage.accesses)


def _sum(group: TileGroup, stage: GroupStage, block: int) -> tuple[list[Var], int]:
    """The axis of a product's sum, and its block: its last loop where that is long and even, else
    all of it."""
    loops = reduced_axis(group, stage)
    least = 2 * SIDE if of_bytes(stage) else SIDE
    for each in reversed(loops) if len(loops) > 1 else ():
        one = most_positions([each])
        if one is not None and one >= block and not one % least:
            loops = [each]
            break
    size = most_positions(loops)
    return loops, max(least, block if size is None else min(block, power(size)))


_SIDES = (
    (128, 256), (256, 128), (128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32),
    (32, 32), (16, 64), (64, 16), (16, 32), (32, 16), (16, 16),
)  # fmt: skip
# The most results that the registers of a unit hold: of f32, whose operands lie there too.
_ACC, _ACC_HALVES = 1 << 14, 1 << 15


# Steps of a matrix product's sum that a unit takes at once, and those of products that are summed
# across, with their columns.
_DEPTHS, _DEPTHS_HALVES = (16, 32, 64), (32, 64, 128)
_STEPS, _MANY = (16, 32, 64, 128, 256, 512), (1, 2, 4, 8, 16, 32, 64, 128, 256)


def _narrow(group: TileGroup, main: GroupStage, grid: _Grid) -> list[BlockSchedule]:
    """A few rows: products side by side, summed across; the few in one block."""
    few, many = sorted(grid[1:], key=points)
    size = most_positions(few)
    rows = 1 if size is None else min(SIDE, power(size))
    longest = power(most_positions(reduced_axis(group, main)) or _LINEAR)
    found: list[BlockSchedule] = []
    for columns in _MANY:
        for steps in _STEPS:
            if _fits(rows, columns, steps, longest, points(many)):
                blocks = [(few, rows), (many, columns), *summed_in(group, steps)]
                found.append(schedule_of(blocks, grid, stages=3))
    return found


def _fits(rows: int, columns: int, steps: int, longest: int, many: int) -> bool:
    """Whether a block has a size that a unit is worth, and is not mostly beyond the ends."""
    if columns > 1 and columns >= 2 * many:
        return False
    if steps > longest and steps > _STEPS[0]:
        return False
    size = rows * columns * min(steps, longest)
    return size <= 4 * _PRODUCTS and (4 * size >= _PRODUCTS or size * 4 >= longest * many)


def _chained(group: TileGroup, first: list[Var], second: list[Var]) -> list[BlockSchedule]:
    """Products whose rows wait in a unit: rows in blocks, all else of a row whole."""
    shared = {v for s in group.stages if (r := _roles(s)) is not None for v in r.batch}
    sides = [[v for v in side if v not in shared] for side in (first, second)]
    rows = max(sides, key=lambda loops: points(loops) if loops else 0)
    batch = [v for v in group.common if v not in rows]
    for stage in group.stages:
        size = most_positions(own_axis(group, stage))
        if (size is None or size > _COLUMNS) and factors(stage) is not None:
            raise NotBlocks("rows of a product are longer than a block")
    count = points(rows)
    most = max(SIDE, power(count)) if count >= SIDE else power(count)
    stream, runs = [], [1]
    if group.stream is not None:
        stream = [group.stream.loop]
        limit = most_positions(stream)
        longest = _RUNS[-1] if limit is None else max(SIDE, power(limit))
        runs = [n for n in _RUNS if n <= longest]
    inner = _inner(group)
    return [
        schedule_of([(rows, block), (stream, run), *inner], [batch, rows])
        for block in [n for n in (SIDE, 32, 64, 128) if n <= most] or [most]
        for run in runs
    ]


# Steps of a streaming loop that a unit takes at once.
_RUNS = (16, 32, 64, 128)


def _inner(group: TileGroup) -> list[tuple[list[Var], int]]:
    """The axes that units hold or reduce along, with their blocks."""
    found = []
    for stage in group.stages:
        loops, summed = own_axis(group, stage), reduced_axis(group, stage)
        found.append((loops, max(SIDE, power(most_positions(loops) or _LINEAR))))
        size = most_positions(summed)
        if size is not None and (reads_stages(stage) or size <= _COLUMNS):
            found.append((summed, max(SIDE, power(size))))
        elif factors(stage) is not None:
            found.append(_sum(group, stage, 64 if _halves(stage) else 32))
        else:
            found.append((summed, _LINEAR))
    return found
