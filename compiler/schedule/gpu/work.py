"""The work of a group's stages in one tile of a block schedule: steps, lanes, bytes,
multiply-adds.

    s[i, j] = sum(k) a[i, k] * b[k, j]      64 x 64 x 4096, blocks i 32, j 64, k 128
      ->  2 tiles, each 32 steps of 32 x 64 x 128 multiply-adds, with 8192 and 16384 bytes to load
"""

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import TypeAlias

from tcc.frozen import frozen
from tcc.ir.expr.scalar import Read, Scalar, walk
from tcc.ir.index import Var, Vars
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.verify_gpu import LEAST_SIDE
from tcc.ir.types import F32, I32
from tcc.schedule.cpu.work import global_touches
from tcc.schedule.footprint import Touch
from tcc.schedule.gpu.axes import factors, matmul_type, of_bytes
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.schedule.nest import stride, trips, weight
from tcc.zipped import zip_equal

# Bytes of a sector, the unit of transfers between caches and memory.
SECTOR = 32
# The fewest terms of a block of bytes that is multiplied as a matrix.
LEAST_BYTES = 32


@frozen
class Cut:
    """Loops that form one axis of `size` positions, cut into blocks of `block` positions."""

    loops: Vars
    size: int
    block: int

    @property
    def steps(self) -> int:
        return -(-self.size // self.block)

    @property
    def filled(self) -> float:
        """Returns the fraction of all blocks' positions that lie on the axis, not beyond its
        end."""
        return self.size / (self.steps * self.block)

    def spans(self, positions: int) -> dict[Var, int]:
        """Returns the elements along each loop that `positions` neighbouring positions cover."""
        lengths: dict[Var, int] = {}
        remaining = min(positions, self.size)
        for var in reversed(self.loops):
            lengths[var] = max(1, min(trips(var), remaining))
            remaining = -(-remaining // lengths[var])
        return lengths


@frozen
class Matrix:
    """A matmul of blocks: for each of `batch` elements, `rows` x `columns` sums of `depth`
    products.

    `dtype` is the operands' type. `scattered` counts the elements of operands in memory whose
    neighbours are no terms of the same sum.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    dtype: str
    scattered: int = 0


@frozen
class TileTraffic:
    """A touch (a load or store), and the bytes that tiles move for it, in whole sectors.

    `bytes` are moved by one tile, and `all_bytes` by all tiles together. `unique` are the distinct
    bytes that all tiles touch.
    """

    touch: Touch
    bytes: float
    all_bytes: float
    unique: float


@frozen
class StageRun:
    """The work of a stage in one tile, which computes `steps` blocks one after the other.

    A block has `elements` points with `ops` operations each, and `results` results. `matrix`: the
    matmul of a block, or None. `across`: after the last block, values of different lanes are
    combined.
    """

    steps: int
    elements: int
    results: int
    ops: int
    matrix: Matrix | None
    traffic: tuple[TileTraffic, ...]
    across: bool


class StageFacts:
    """Properties of a stage that are the same for all schedules."""

    def __init__(self, group: TileGroup, number: int) -> None:
        self.stage = stage = group.stages[number]
        self.touches = tuple(t for _, t in global_touches(group, number, stage))
        self.loops = stage.loops
        self.ops = weight(stage)
        pair = factors(stage)
        self.factor_loops: tuple[frozenset[Var], frozenset[Var]] | None = None
        if pair is not None and stage.reduce and stage.body[0].dtype in (F32, I32):
            self.factor_loops = pair.loops(stage)

    @cached_property
    def unique(self) -> tuple[float, ...]:
        """Returns for each touch the distinct bytes over all points of the stage."""
        extents = {v: trips(v) for v in self.loops}
        return tuple(t.bytes_in(extents, SECTOR) for t in self.touches)

    @cached_property
    def scattered_terms(self) -> tuple[bool, bool]:
        """Returns for each factor whether it is loaded from memory where the terms of a sum are no
        neighbours."""
        pair, last = factors(self.stage), self.stage.reduce[-1]
        assert pair is not None

        def scattered(factor: Scalar) -> bool:
            loaded = (n for n in walk(factor) if isinstance(n, Read) and isinstance(n.source, int))
            return any(stride(self.stage.accesses[n], last) not in (0, 1) for n in loaded)

        return scattered(pair.a), scattered(pair.b)

    def run(self, cuts: Sequence[Cut], common: frozenset[Var]) -> StageRun:
        """Returns the work of one tile.

        `cuts` are the axes of the stage's loops, and `common` are the loops of the grid.
        """
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
            tuple(self._traffic(cuts, common)),
            along > 1 and self.factor_loops is None,
        )

    def _traffic(self, cuts: Sequence[Cut], common: frozenset[Var]) -> list[TileTraffic]:
        """Returns the bytes that tiles move for each touch."""
        spans: dict[Var, int] = {}
        for axis in cuts:
            spans.update(axis.spans(axis.block))
        transfers = []
        for touch, unique in zip_equal(self.touches, self.unique):
            along = [c for c in cuts if not touch.loops.isdisjoint(c.loops)]
            bytes_ = touch.bytes_in(spans, SECTOR)
            tile_bytes = bytes_ * prod(c.steps for c in along if not common.issuperset(c.loops))
            # The last block of an axis may reach beyond its end.
            full = prod(c.filled if c.block < c.size else 1.0 for c in along)
            tiles = prod(c.steps for c in cuts if common.issuperset(c.loops))
            if touch.store:
                tiles = prod(c.steps for c in along if common.issuperset(c.loops))
            transfers.append(
                TileTraffic(touch, tile_bytes, max(tile_bytes * tiles * full, unique), unique)
            )
        return transfers

    def _matrix(self, cuts: Sequence[Cut], reduced: Sequence[Cut]) -> Matrix | None:
        """Returns the matmul of a block; None if it does not multiply matrices.

        `reduced` are those of `cuts` along which the stage reduces.
        """
        if self.factor_loops is None:
            return None
        a, b = self.factor_loops
        sizes = {roles: 1 for roles in ((True, True), (True, False), (False, True))}
        blocked = [c for c in reduced if c.block > 1]
        for axis in cuts:
            if axis not in reduced:
                roles = (not a.isdisjoint(axis.loops), not b.isdisjoint(axis.loops))
                sizes[roles] = sizes.get(roles, 1) * axis.block
        depth = prod(c.block for c in blocked)
        rows, columns = sizes[True, False], sizes[False, True]
        deep = depth >= (LEAST_BYTES if of_bytes(self.stage) else LEAST_SIDE)
        if len(blocked) != 1 or min(rows, columns) < LEAST_SIDE or not deep:
            return None
        in_a, in_b = self.scattered_terms
        scattered = depth * (rows * in_a + columns * in_b)
        return Matrix(sizes[True, True], rows, columns, depth, matmul_type(self.stage), scattered)


class GroupFacts:
    """Properties of a group that are the same for all schedules."""

    def __init__(self, group: TileGroup) -> None:
        self.group = group
        self.stages = tuple(StageFacts(group, n) for n in range(len(group.stages)))

    def cuts(self, schedule: BlockSchedule) -> tuple[tuple[Cut, ...], ...]:
        """Returns the axes of each stage. The axes of the grid come first, in the grid's order."""
        blocks = ((name, n) for name, n in schedule.blocks if name not in schedule.parallel)
        inner = [(tuple(name.split("+")), block) for name, block in blocks]
        return tuple(_cover(facts, _grid(schedule), inner) for facts in self.stages)

    def grid(self, schedule: BlockSchedule) -> tuple[Cut, ...]:
        """Returns the axes of the grid, outermost first."""
        named = {v.name: v for v in self.group.common}
        axes = ((tuple(named[n] for n in names), block) for names, block in _grid(schedule))
        return tuple(axis_of(loops, block) for loops, block in axes)


_Axes: TypeAlias = Sequence[tuple[tuple[str, ...], int]]


def _grid(schedule: BlockSchedule) -> _Axes:
    sizes = dict(schedule.blocks)
    return [(tuple(name.split("+")), sizes.get(name, 1)) for name in schedule.parallel]


def _cover(facts: StageFacts, grid: _Axes, inner: _Axes) -> tuple[Cut, ...]:
    """Returns the stage's loops as axes.

    An axis of `grid` keeps only the loops that the stage has. An axis of `inner` counts only if the
    stage has all of its loops. Each remaining loop is an axis with blocks of one position.
    """
    uncovered: dict[str, Var] = {v.name: v for v in facts.loops}
    axes = []
    for named_axes, partly in ((grid, True), (inner, False)):
        for names, block in named_axes:
            if partly or all(n in uncovered for n in names):
                loops = tuple(uncovered.pop(n) for n in names if n in uncovered)
                if loops:
                    axes.append(axis_of(loops, block))
    return (*axes, *(axis_of((v,), 1) for v in uncovered.values()))


def axis_of(loops: Vars, block: int) -> Cut:
    """Returns the axis of `loops`; if a loop has no elements, the axis gets one position."""
    return Cut(loops, max(1, prod(map(trips, loops))), block)
