"""Block schedules of groups with sums of products: matrices, a few rows, chains of products."""

from __future__ import annotations

from dataclasses import dataclass

from tcc.ir.group import GroupStage, TileGroup
from tcc.ir.index import Var
from tcc.ir.types import BF16, F16, F32, I32
from tcc.schedule.block_axes import (
    Blocks,
    factors,
    most_positions,
    of_bytes,
    own_axis,
    power,
    reads_held,
    reduced_axis,
)
from tcc.schedule.blocks import BlockProfile, BlockSchedule, NotBlocks
from tcc.schedule.nest import depends, points, stride

# The least side of a block that is multiplied as a matrix.
SIDE = 16
# The most columns of a product that a unit makes whole, few of them, and the elements of such a
# block.
_COLUMNS = 256
_FEW_COLUMNS = 64
_SCORES, _SCORES_HALVES = 1 << 13, 1 << 14
# Elements of a block of products that are summed without a matrix.
_PRODUCTS = 1 << 12
# Steps of a sum of unknown length that are taken at once.
_LINEAR = 1024


@dataclass(frozen=True, slots=True)
class _Roles:
    """The loops of a product's result: of both factors, of one and of the other."""

    batch: tuple[Var, ...]
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]


def _roles(stage: GroupStage) -> _Roles | None:
    both = factors(stage)
    if both is None or not stage.reduce:
        return None
    a, b = depends(stage, both.a), depends(stage, both.b)
    batch = tuple(v for v in stage.iters if (v in a) is (v in b))
    rows = tuple(v for v in stage.iters if v in a and v not in b)
    return _Roles(batch, rows, tuple(v for v in stage.iters if v in b and v not in a))


def is_matrix_product(stage: GroupStage) -> bool:
    """Whether a stage multiplies matrices that fill blocks on all sides."""
    roles = _roles(stage)
    if roles is None or stage.body[0].dtype not in (F32, I32):
        return False
    return min(points(roles.rows), points(roles.columns), points(stage.reduce)) >= SIDE


def main_product(group: TileGroup) -> GroupStage | None:
    """The largest sum of products of rows and columns."""
    found = []
    for stage in group.stages:
        roles = _roles(stage)
        summed = [v for v in stage.reduce if roles is not None]
        if roles is not None and roles.rows and roles.columns and points(tuple(summed)) >= 8:
            found.append(stage)
    return max(found, key=lambda s: points((*s.iters, *s.reduce)), default=None)


def choose_product(group: TileGroup, main: GroupStage, profile: BlockProfile) -> BlockSchedule:
    roles = _roles(main)
    assert roles is not None
    common = group.common
    first, second = ([v for v in common if v in side] for side in (roles.rows, roles.columns))
    batch = [v for v in common if v not in first and v not in second]
    if common and common[-1] in first:
        first, second = second, first
    owned = [loops for s in group.stages if (loops := own_axis(group, s))]
    if owned or group.walk is not None:
        return _chained(group, first, second, profile)
    m, n = points(tuple(first)), points(tuple(second))
    if main.body[0].dtype not in (F32, I32) or not _fills(m, n, points(tuple(batch)), profile):
        return _narrow(group, main, batch, first, second, profile)
    halves = _halves(main)
    bm, bn = _sides(m, n, points(tuple(batch)), halves, profile)
    blocks = Blocks()
    blocks.add(first, bm)
    blocks.add(second, bn)
    for stage in group.stages:
        _sum(blocks, group, stage)
    return blocks.schedule(
        [batch, first, second], 8 if bm * bn > 1 << 13 else 4, 4 if halves else 3
    )


def _fills(m: int, n: int, batch: int, profile: BlockProfile) -> bool:
    """Whether matrices are worth it: both sides fill one, or the smaller a fourth of it and there
    are enough of them."""
    few, many = sorted((m, n))
    return few >= SIDE or (4 * few >= SIDE and 2 * batch * many >= SIDE * profile.processors)


def _halves(stage: GroupStage) -> bool:
    """Whether a product multiplies halves, or bytes: then its other operand is rounded too, if need
    be."""
    return of_bytes(stage) or any(n.dtype in (BF16, F16) for n in stage.accesses)


def _sum(blocks: Blocks, group: TileGroup, stage: GroupStage) -> None:
    """The axis of a product's sum: its last loop where that is long and even, else all of it."""
    block = 128 if of_bytes(stage) else 64 if _halves(stage) else 32
    least = 2 * SIDE if of_bytes(stage) else SIDE
    loops = reduced_axis(group, stage)
    if not loops:
        return
    last = most_positions(loops[-1:])
    if of_bytes(stage) and len(loops) > 1 and last is not None and last >= least:
        block = min(block, power(last + 1) // 2)
    if len(loops) > 1 and last is not None and last >= block and not last % least:
        loops = loops[-1:]
    size = most_positions(loops)
    blocks.add(loops, block if size is None else max(least, min(block, power(size))))


_SIDES = (
    (128, 256), (256, 128), (128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32),
    (32, 32), (16, 64), (64, 16), (16, 32), (32, 16), (16, 16),
)  # fmt: skip
# What a row and a column of a block cost to bring, in products: of f32 without matrix units, and of
# halves with them.
_BRING, _BRING_HALVES = 24, 128
# The most results that the registers of a unit hold: of f32, whose operands lie there too.
_ACC, _ACC_HALVES = 1 << 14, 1 << 15


def _sides(m: int, n: int, batch: int, halves: bool, profile: BlockProfile) -> tuple[int, int]:
    """Rows and columns of a block: the fewest rounds of units times what one costs."""
    bring, most = (_BRING_HALVES, _ACC_HALVES) if halves else (_BRING, _ACC)

    def cost(sides: tuple[int, int]) -> tuple[int, int]:
        bm, bn = sides
        units = batch * -(-m // bm) * -(-n // bn)
        rounds = -(-units // profile.processors)
        return rounds * (bm * bn + bring * (bm + bn)), units

    return min((s for s in _SIDES if s[0] * s[1] <= most), key=cost)


def _narrow(
    group: TileGroup,
    main: GroupStage,
    batch: list[Var],
    first: list[Var],
    second: list[Var],
    profile: BlockProfile,
) -> BlockSchedule:
    """A few rows: products side by side, summed across; the few in one block."""
    few, many = sorted((first, second), key=lambda loops: points(tuple(loops)))
    size = most_positions(few)
    rows = 1 if size is None else min(SIDE, power(size))
    blocks = Blocks()
    summed = reduced_axis(group, main)
    reads = [a for n, a in main.accesses.items() if isinstance(n.source, int)]
    across = bool(many) and any(stride(a, many[-1]) == 1 for a in reads)
    busy = points(tuple(many)) >= 32 * profile.processors
    steps = min(power(most_positions(summed) or _LINEAR), 32 if across or busy else 256)
    columns = max(1, _PRODUCTS // (rows * steps))
    while columns > 4 and points(tuple(many)) < columns * profile.processors:
        columns //= 2
    blocks.add(few, rows)
    blocks.add(many, columns)
    for stage in group.stages:
        loops = reduced_axis(group, stage)
        limit = most_positions(loops)
        blocks.add(loops, steps if limit is None else min(steps, power(limit)))
    return blocks.schedule([batch, first, second], 4, 3)


def _chained(
    group: TileGroup, first: list[Var], second: list[Var], profile: BlockProfile
) -> BlockSchedule:
    """Products whose rows wait in a unit: rows in blocks, all else of a row whole."""
    shared = {v for s in group.stages if (r := _roles(s)) is not None for v in r.batch}
    sides = [[v for v in side if v not in shared] for side in (first, second)]
    rows = max(sides, key=lambda loops: points(tuple(loops)) if loops else 0)
    batch = [v for v in group.common if v not in rows]
    blocks = Blocks()
    columns = 1
    for stage in group.stages:
        loops = own_axis(group, stage)
        size = most_positions(loops)
        if loops and (size is None or size > _COLUMNS) and factors(stage) is not None:
            raise NotBlocks("rows of a product are longer than a block")
        columns = max(columns, power(size or 1))
    if group.walk is not None:
        columns = max(columns, 64)
    count = points(tuple(rows))
    halves = any(map(_halves, group.stages))
    scores = _SCORES_HALVES if halves else _SCORES
    block = SIDE if count >= SIDE else power(count)
    units = points(tuple(batch)) * count
    most = 128 if halves else 64
    while block < most and block < count and block * 2 * columns <= scores:
        if units < 2 * block * profile.processors:
            break
        block *= 2
    blocks.add(rows, block)
    if group.walk is not None:
        limit = most_positions([group.walk.loop])
        blocks.add([group.walk.loop], 64 if limit is None else max(SIDE, min(64, power(limit))))
    for stage in group.stages:
        loops = own_axis(group, stage)
        blocks.add(loops, max(SIDE, power(most_positions(loops) or _LINEAR)) if loops else 1)
        summed = reduced_axis(group, stage)
        size = most_positions(summed)
        if summed and size is not None and (reads_held(stage) or size <= _COLUMNS):
            blocks.add(summed, max(SIDE, power(size)))
        elif factors(stage) is not None:
            _sum(blocks, group, stage)
        else:
            blocks.add(summed, _LINEAR)
    # Factors of f32 wait in registers for a whole sum: more lanes hold fewer of them.
    many = block * columns >= _SCORES or columns > _FEW_COLUMNS
    return blocks.schedule([batch, rows], 8 if many else 4, 2)
