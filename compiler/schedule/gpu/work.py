"""What the stages of a group do in one unit of a block schedule: steps, lanes, bytes, products.

s[i, j] = sum(k) a[i, k] * b[k, j]      64 x 64 x 4096, blocks i 32, j 64, k 128
  ->  2 units, each 32 steps of 32 x 64 x 128 products, of 8192 and 16384 bytes to load
"""

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import TypeAlias

from tcc.ir.index import Var, Vars
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import BF16, F16, F32, I8, I32
from tcc.record import record
from tcc.schedule.cpu.work import global_touches
from tcc.schedule.footprint import Touch
from tcc.schedule.gpu.axes import factors, of_bytes
from tcc.schedule.gpu.schedule import FLOAT8_NAME, BlockSchedule
from tcc.schedule.nest import depends, trips, weight

# Bytes that caches and memory hand over at once.
SECTOR = 32
# The least side of a block that is multiplied as a matrix.
LEAST_SIDE = 16
# The fewest bytes that a matrix unit sums.
LEAST_BYTES = 32


@record
class Cut:
    """Loops that run as one axis of `total` positions, in blocks of `block`."""

    loops: Vars
    total: int
    block: int

    @property
    def steps(self) -> int:
        return -(-self.total // self.block)

    @property
    def filled(self) -> float:
        """The share of the lanes of all blocks that lie on the axis."""
        return self.total / (self.steps * self.block)

    def spans(self, positions: int) -> dict[Var, int]:
        """How far each loop runs over so many neighbouring positions."""
        found: dict[Var, int] = {}
        rest = min(positions, self.total)
        for var in reversed(self.loops):
            found[var] = max(1, min(trips(var), rest))
            rest = -(-rest // found[var])
        return found


@record
class Matrix:
    """A product of matrices: rows x columns x steps of the sum, for each of `batch`; `dtype` is
    that of the operands."""

    batch: int
    rows: int
    columns: int
    depth: int
    dtype: str


@record
class TileTraffic:
    """A touch of memory by all units: `bytes` of whole sectors that one unit moves, `total` all of
    them, `unique` what they are of."""

    touch: Touch
    bytes: float
    total: float
    unique: float


@record
class StageRun:
    """A stage in one unit: `steps` blocks of `elements`, one after the other, `ops` for each
    element; `results` of a block, of which `matrix` says how they are multiplied, if they are.
    `across`: lanes are combined at the end."""

    steps: int
    elements: int
    results: int
    ops: int
    matrix: Matrix | None
    moved: tuple[TileTraffic, ...]
    across: bool


class StageFacts:
    """What a stage does under any schedule."""

    def __init__(self, group: TileGroup, number: int) -> None:
        self.stage = stage = group.stages[number]
        self.touches = tuple(t for _, t in global_touches(group, number, stage))
        self.loops = stage.loops
        self.ops = weight(stage)
        both = factors(stage)
        self.sides: tuple[frozenset[Var], frozenset[Var]] | None = None
        if both is not None and stage.reduce and stage.body[0].dtype in (F32, I32):
            self.sides = depends(stage, both.a), depends(stage, both.b)

    @cached_property
    def unique(self) -> tuple[float, ...]:
        """The bytes of each touch over all loops."""
        whole = {v: trips(v) for v in self.loops}
        return tuple(t.bytes_in(whole, SECTOR) for t in self.touches)

    @cached_property
    def dtype(self) -> str:
        """Of a product's operands, as matrix units see them: halves, if either is, or bytes."""
        if of_bytes(self.stage):
            return I8.name if self.stage.body[0].dtype is I32 else FLOAT8_NAME
        types = [n.dtype for n in self.stage.accesses]
        return next((t.name for t in types if t in (BF16, F16)), F32.name)

    def run(self, cuts: Sequence[Cut], common: frozenset[Var]) -> StageRun:
        """One unit; `cuts` are of the stage's loops, `common` those of the grid."""
        inner = [c for c in cuts if not common.issuperset(c.loops)]
        reduced = [c for c in inner if set(c.loops) & set(self.stage.reduce)]
        elements = prod(c.block for c in cuts)
        along = prod(c.block for c in reduced)
        return StageRun(
            prod(c.steps for c in inner),
            elements,
            elements // along,
            self.ops,
            self._matrix(cuts, reduced),
            tuple(self._moved(cuts, common)),
            along > 1 and self.sides is None,
        )

    def _moved(self, cuts: Sequence[Cut], common: frozenset[Var]) -> list[TileTraffic]:
        spans: dict[Var, int] = {}
        for each in cuts:
            spans.update(each.spans(each.block))
        found = []
        for touch, unique in zip(self.touches, self.unique, strict=True):
            along = [c for c in cuts if not touch.loops.isdisjoint(c.loops)]
            bytes_ = touch.bytes_in(spans, SECTOR)
            unit = bytes_ * prod(c.steps for c in along if not common.issuperset(c.loops))
            # The last block of an axis may be short.
            full = prod(c.filled if c.block < c.total else 1.0 for c in along)
            every = prod(c.steps for c in cuts if common.issuperset(c.loops))
            if touch.store:
                every = prod(c.steps for c in along if common.issuperset(c.loops))
            found.append(TileTraffic(touch, unit, max(unit * every * full, unique), unique))
        return found

    def _matrix(self, cuts: Sequence[Cut], reduced: Sequence[Cut]) -> Matrix | None:
        """How the blocks are multiplied; None where that is not as matrices."""
        if self.sides is None:
            return None
        a, b = self.sides
        sizes = {where: 1 for where in ((True, True), (True, False), (False, True))}
        wide = [c for c in reduced if c.block > 1]
        for each in cuts:
            if each not in reduced:
                where = (not a.isdisjoint(each.loops), not b.isdisjoint(each.loops))
                sizes[where] = sizes.get(where, 1) * each.block
        depth = prod(c.block for c in wide)
        rows, columns = sizes[True, False], sizes[False, True]
        deep = depth >= (LEAST_BYTES if of_bytes(self.stage) else LEAST_SIDE)
        if len(wide) != 1 or min(rows, columns) < LEAST_SIDE or not deep:
            return None
        return Matrix(sizes[True, True], rows, columns, depth, self.dtype)


class GroupFacts:
    """What a group does under any schedule."""

    def __init__(self, group: TileGroup) -> None:
        self.group = group
        self.stages = tuple(StageFacts(group, n) for n in range(len(group.stages)))

    def cuts(self, schedule: BlockSchedule) -> tuple[tuple[Cut, ...], ...]:
        """The axes of each stage; the first ones are those of the grid, in its order."""
        blocks = ((name, n) for name, n in schedule.blocks if name not in schedule.parallel)
        inner = [(tuple(name.split("+")), block) for name, block in blocks]
        return tuple(_cover(facts, _grid(schedule), inner) for facts in self.stages)

    def grid(self, schedule: BlockSchedule) -> tuple[Cut, ...]:
        """The axes of the grid, outermost first."""
        named = {v.name: v for v in self.group.common}
        axes = ((tuple(named[n] for n in names), block) for names, block in _grid(schedule))
        return tuple(cut(loops, block) for loops, block in axes)


_Axes: TypeAlias = Sequence[tuple[tuple[str, ...], int]]


def _grid(schedule: BlockSchedule) -> _Axes:
    sizes = dict(schedule.blocks)
    return [(tuple(name.split("+")), sizes.get(name, 1)) for name in schedule.parallel]


def _cover(facts: StageFacts, grid: _Axes, inner: _Axes) -> tuple[Cut, ...]:
    """The stage's loops as axes; one of the grid of which it lacks a loop is the rest of it."""
    left: dict[str, Var] = {v.name: v for v in facts.loops}
    found = []
    for axes, partly in ((grid, True), (inner, False)):
        for names, block in axes:
            if partly or all(n in left for n in names):
                loops = tuple(left.pop(n) for n in names if n in left)
                if loops:
                    found.append(cut(loops, block))
    return (*found, *(cut((v,), 1) for v in left.values()))


def cut(loops: Vars, block: int) -> Cut:
    """The axis of `loops`; one of no positions counts as one of one."""
    return Cut(loops, max(1, prod(map(trips, loops))), block)
