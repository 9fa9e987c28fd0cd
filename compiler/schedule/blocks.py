"""The schedule of a block kernel, and a first choice of it from a group's strides and sizes.

A GPU's unit makes one block of the parallel axes; loops that have one role in a stage are fused
into one axis, named by the loops' names joined by `+`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tcc.errors import TccError
from tcc.ir.expr import extent
from tcc.ir.group import Access, GroupStage, TileGroup
from tcc.ir.index import Var, as_int, bounds, free_vars, linear_in
from tcc.ir.scalar import StageRef
from tcc.ir.tile import Scope
from tcc.ir.types import F32
from tcc.schedule.nest import anchor, depends, points, product, stride, trips

# The least side of a block that is multiplied as a matrix.
SIDE = 16
# Elements of a block that a unit computes at once where nothing is reduced.
_LINEAR = 1024
# The longest row that one block holds.
_ROW = 1 << 13
# Elements of a block of short rows.
_ROWS = 1 << 12
# The most columns of a product that a unit makes whole, and the elements of such a block.
_COLUMNS = 256
_SCORES = 1 << 13
# Steps of a sum so short that its elements are taken one by one.
_WINDOW = 64
# Elements of a block of products that are summed without a matrix.
_PRODUCTS = 1 << 12


class NotBlocks(TccError):
    """A group that is no block kernel: `what` says why."""


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """How a group becomes a block kernel.

    `blocks`: positions of a block along an axis; an axis is named by its loops, outermost first,
    joined by `+`.  Loops in none of them go one element at a time.  `parallel`: the axes of the
    grid, outermost first; together they are the loops that all stages share.  `warps` of a unit,
    `stages` of loads in flight, and `split` parts of a sum that different units take.
    """

    blocks: tuple[tuple[str, int], ...]
    parallel: tuple[str, ...]
    warps: int
    stages: int
    split: int = 1


@dataclass(frozen=True, slots=True)
class BlockProfile:
    """What a device offers: `processors` that take units, of which each holds `registers` of 32
    bits for all its warps of `lanes`."""

    processors: int = 132
    registers: int = 1 << 16
    lanes: int = 32


# A large device, for those who only want to see what a model becomes.
TYPICAL_DEVICE = BlockProfile()


def choose_blocks(group: TileGroup, profile: BlockProfile = TYPICAL_DEVICE) -> BlockSchedule:
    """A schedule for `group`.  Raises `NotBlocks` where none is worth having."""
    main = _main_product(group)
    if main is not None:
        return _contraction(group, main, profile)
    if any(s.reduce for s in group.stages):
        return _reduction(group, profile)
    return _pointwise(group, profile)


def join(loops: Sequence[Var]) -> str:
    """The name of the axis of `loops`."""
    return "+".join(v.name for v in loops)


def _power(size: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(0, size - 1).bit_length()


def _limit(loops: Sequence[Var]) -> int | None:
    """The most positions of an axis; None where they are open."""
    tops = [bounds(extent(v))[1] for v in loops]
    return None if any(t is None for t in tops) else prod(t for t in tops if t is not None)


class _Blocks:
    """Blocks by axis, in the order in which they were added."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    def add(self, loops: Sequence[Var], block: int) -> None:
        if loops and block > 1:
            self.found.setdefault(join(loops), block)

    def schedule(self, parallel: Sequence[Sequence[Var]], warps: int, stages: int) -> BlockSchedule:
        names = tuple(join(loops) for loops in parallel if loops)
        return BlockSchedule(tuple(self.found.items()), names, warps, stages)


def _warps(elements: int) -> int:
    """Warps of a unit: about 64 elements a thread of the largest block."""
    return min(16, max(4, _power(elements // 2048)))


# ---- loops of a stage ---------------------------------------------------------------------------


def _own(group: TileGroup, stage: GroupStage) -> list[Var]:
    """A stage's loops that neither all stages nor a walk share, as what it holds lies."""
    own = [v for v in stage.iters if v not in group.cut]
    held = [
        a
        for targets in stage.stores
        for a in targets
        if group.buffers[a.buffer].scope is Scope.LOCAL
    ]
    return _along(own, held[:1])


def _reduced(group: TileGroup, stage: GroupStage) -> list[Var]:
    """A stage's reduced loops but a walk's, as what it reads of other stages lies."""
    loops = [v for v in stage.reduce if v not in group.cut]
    held = [a for n, a in stage.accesses.items() if isinstance(n.source, StageRef)]
    return _along(loops, held[:1])


def _reads_held(stage: GroupStage) -> bool:
    """Whether a stage reduces what another one holds."""
    return any(
        isinstance(n.source, StageRef) and set(free_vars(a.offset)) & set(stage.reduce)
        for n, a in stage.accesses.items()
    )


def _along(loops: list[Var], accesses: list[Access]) -> list[Var]:
    if not accesses:
        return loops

    def step(var: Var) -> int:
        linear = linear_in(accesses[0].offset, var)
        return 0 if linear is None else -(as_int(linear[0]) or 0)

    return sorted(loops, key=step)


# ---- pointwise ----------------------------------------------------------------------------------


def _pointwise(group: TileGroup, profile: BlockProfile) -> BlockSchedule:
    """All loops as one axis in the order of storage; a square where reads and writes disagree."""
    blocks = _Blocks()
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
        blocks.add(_own(group, stage), block)
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
    blocks = _Blocks()
    common = list(group.common)
    if _side_by_side(group):
        return _columns(group, profile)
    along = [_reduced(group, s) for s in group.stages]
    owned = [_own(group, s) for s in group.stages]
    walk = [] if group.walk is None else [group.walk.loop]
    every = [loops for loops in (*along, *owned, walk) if loops]
    limits = [_limit(loops) for loops in every]
    longest = max((n for n in limits if n is not None), default=1)
    open_ = any(n is None for n in limits)
    whole = longest <= _ROW
    widest = _power(longest) if whole else _LINEAR
    if open_ or not whole:
        widest = max(_LINEAR, min(widest, _ROW))
    rows = max(1, _ROWS // widest) if not open_ and whole else 1
    while rows > 1 and points(group.common) < rows * profile.processors:
        rows //= 2
    blocks.add(common, rows)
    for loops in every:
        size = _limit(loops)
        fits = size is not None and size <= _ROW
        blocks.add(loops, _power(size) if fits and size is not None else _LINEAR)
    return blocks.schedule([common], _warps(rows * widest), 2)


def _side_by_side(group: TileGroup) -> bool:
    """Whether neighbours in storage are different rows: what is reduced lies across, or is short
    and lies in windows."""
    if group.walk is not None or any(_own(group, s) for s in group.stages):
        return False
    stage = anchor(group)
    reads = [a for n, a in stage.accesses.items() if isinstance(n.source, int)]
    if not stage.reduce or not reads:
        return False
    widest = max(reads, key=lambda a: len(set(free_vars(a.offset)) & set(stage.reduce)))
    if any(stride(widest, v) == 1 for v in group.common if trips(v) >= 16):
        return True
    last = _limit(stage.reduce)
    return last is not None and last <= 16 and points(group.common) >= 256


def _columns(group: TileGroup, profile: BlockProfile) -> BlockSchedule:
    blocks = _Blocks()
    common = list(group.common)
    stage = anchor(group)
    size = _limit(stage.reduce)
    if size is not None and size <= _WINDOW:
        blocks.add(common, min(256, _linear(points(group.common), profile)))
        return blocks.schedule([common], 4, 2)
    columns = 64 if points(group.common) >= 64 * profile.processors else 32
    blocks.add(common, columns)
    for each in group.stages:
        loops = _reduced(group, each)
        limit = _limit(loops)
        steps = 64 if columns == 32 else 32
        blocks.add(loops, steps if limit is None else min(steps, _power(limit)))
    return blocks.schedule([common], 4, 2)


# ---- products -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Roles:
    """The loops of a product's result: of both factors, of one and of the other."""

    batch: tuple[Var, ...]
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]


def _roles(stage: GroupStage) -> _Roles | None:
    factors = product(stage)
    if factors is None or not stage.reduce:
        return None
    a, b = depends(stage, factors.a), depends(stage, factors.b)
    batch = tuple(v for v in stage.iters if (v in a) is (v in b))
    rows = tuple(v for v in stage.iters if v in a and v not in b)
    return _Roles(batch, rows, tuple(v for v in stage.iters if v in b and v not in a))


def _main_product(group: TileGroup) -> GroupStage | None:
    """The largest sum of products of rows and columns."""
    found = []
    for stage in group.stages:
        roles = _roles(stage)
        summed = [v for v in stage.reduce if roles is not None]
        if roles is not None and roles.rows and roles.columns and points(tuple(summed)) >= 8:
            found.append(stage)
    return max(found, key=lambda s: points((*s.iters, *s.reduce)), default=None)


def _contraction(group: TileGroup, main: GroupStage, profile: BlockProfile) -> BlockSchedule:
    roles = _roles(main)
    assert roles is not None
    common = group.common
    first, second = ([v for v in common if v in side] for side in (roles.rows, roles.columns))
    batch = [v for v in common if v not in first and v not in second]
    if common and common[-1] in first:
        first, second = second, first
    owned = [loops for s in group.stages if (loops := _own(group, s))]
    if owned or group.walk is not None:
        return _chained(group, first, second, profile)
    m, n = points(tuple(first)), points(tuple(second))
    if main.body[0].dtype is not F32 or not _fills(m, n, points(tuple(batch)), profile):
        return _narrow(group, main, batch, first, second, profile)
    bm, bn = _sides(m, n, points(tuple(batch)), profile)
    blocks = _Blocks()
    blocks.add(first, bm)
    blocks.add(second, bn)
    for stage in group.stages:
        _sum(blocks, group, stage, 64 if _halves(stage) else 32)
    return blocks.schedule([batch, first, second], 8 if bm * bn > 1 << 13 else 4, 3)


def _fills(m: int, n: int, batch: int, profile: BlockProfile) -> bool:
    """Whether matrices are worth it: both sides fill one, or the smaller a fourth of it and there
    are enough of them."""
    few, many = sorted((m, n))
    return few >= SIDE or (4 * few >= SIDE and 2 * batch * many >= SIDE * profile.processors)


def _halves(stage: GroupStage) -> bool:
    """Whether a product's operands take two bytes an element."""
    return bool(stage.accesses) and all(n.dtype.bytes == 2 for n in stage.accesses)


def _sum(blocks: _Blocks, group: TileGroup, stage: GroupStage, block: int) -> None:
    """The axis of a product's sum: its last loop where that is long and even, else all of it."""
    loops = _reduced(group, stage)
    if not loops:
        return
    last = _limit(loops[-1:])
    if len(loops) > 1 and last is not None and last >= block and not last % SIDE:
        loops = loops[-1:]
    size = _limit(loops)
    blocks.add(loops, block if size is None else max(SIDE, min(block, _power(size))))


_SIDES = (
    (128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32), (32, 32), (16, 64), (64, 16),
    (16, 32), (32, 16), (16, 16),
)  # fmt: skip
# What a row and a column of a block cost to bring, in products.
_BRING = 24


def _sides(m: int, n: int, batch: int, profile: BlockProfile) -> tuple[int, int]:
    """Rows and columns of a block: the fewest rounds of units times what one costs."""

    def cost(sides: tuple[int, int]) -> tuple[int, int]:
        bm, bn = sides
        units = batch * -(-m // bm) * -(-n // bn)
        rounds = -(-units // profile.processors)
        return rounds * (bm * bn + _BRING * (bm + bn)), units

    return min(_SIDES, key=cost)


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
    size = _limit(few)
    rows = 1 if size is None else min(SIDE, _power(size))
    blocks = _Blocks()
    summed = _reduced(group, main)
    reads = [a for n, a in main.accesses.items() if isinstance(n.source, int)]
    across = bool(many) and any(stride(a, many[-1]) == 1 for a in reads)
    busy = points(tuple(many)) >= 32 * profile.processors
    steps = min(_power(_limit(summed) or _LINEAR), 32 if across or busy else 256)
    columns = max(1, _PRODUCTS // (rows * steps))
    while columns > 4 and points(tuple(many)) < columns * profile.processors:
        columns //= 2
    blocks.add(few, rows)
    blocks.add(many, columns)
    for stage in group.stages:
        loops = _reduced(group, stage)
        limit = _limit(loops)
        blocks.add(loops, steps if limit is None else min(steps, _power(limit)))
    return blocks.schedule([batch, first, second], 4, 3)


def _chained(
    group: TileGroup, first: list[Var], second: list[Var], profile: BlockProfile
) -> BlockSchedule:
    """Products whose rows wait in a unit: rows in blocks, all else of a row whole."""
    shared = {v for s in group.stages if (r := _roles(s)) is not None for v in r.batch}
    sides = [[v for v in side if v not in shared] for side in (first, second)]
    rows = max(sides, key=lambda loops: points(tuple(loops)) if loops else 0)
    batch = [v for v in group.common if v not in rows]
    blocks = _Blocks()
    columns = 1
    for stage in group.stages:
        loops = _own(group, stage)
        size = _limit(loops)
        if loops and (size is None or size > _COLUMNS) and product(stage) is not None:
            raise NotBlocks("rows of a product are longer than a block")
        columns = max(columns, _power(size or 1))
    if group.walk is not None:
        columns = max(columns, 64)
    count = points(tuple(rows))
    block = SIDE if count >= SIDE else _power(count)
    units = points(tuple(batch)) * count
    while block < 64 and block < count and block * 2 * columns <= _SCORES:
        if units < 2 * block * profile.processors:
            break
        block *= 2
    blocks.add(rows, block)
    if group.walk is not None:
        limit = _limit([group.walk.loop])
        blocks.add([group.walk.loop], 64 if limit is None else max(SIDE, min(64, _power(limit))))
    for stage in group.stages:
        loops = _own(group, stage)
        blocks.add(loops, max(SIDE, _power(_limit(loops) or _LINEAR)) if loops else 1)
        summed = _reduced(group, stage)
        size = _limit(summed)
        if summed and size is not None and (_reads_held(stage) or size <= _COLUMNS):
            blocks.add(summed, max(SIDE, _power(size)))
        elif product(stage) is not None:
            _sum(blocks, group, stage, 64 if _halves(stage) else 32)
        else:
            blocks.add(summed, _LINEAR)
    return blocks.schedule([batch, rows], 8 if block * columns >= _SCORES else 4, 2)
