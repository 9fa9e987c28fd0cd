"""Decides which values stages of a block kernel pass to each other as blocks.

e[i, j] = exp(x[i, j] - m[i]) ;  s[i] = sum(k) e[i, k] ;  y[i, j] = e[i, j] / s[i]
  one block covers j:         s and y read the block of e
  several blocks cover j:     s and y each compute exp(x - m) again
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tcc.ir.expr import extent
from tcc.ir.expr.scalar import (
    IndexValue,
    Read,
    Scalar,
    StageRef,
    apply,
    index_value,
    literal,
    read_at,
    reads_of_stages,
    rebuild,
    walk,
)
from tcc.ir.index import (
    Index,
    Var,
    const,
    free_vars,
    iterator,
    of_atom,
    step_in,
    substitute,
)
from tcc.ir.tile import Block, Guard, guards_at
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.ir.types import I64
from tcc.passes.tile.gpu.axes import Axis, AxisRange, BlockAxes
from tcc.passes.tile.gpu.body import EarlierBlock, matched
from tcc.schedule.gpu.schedule import BlockSchedule, NotBlocks
from tcc.schedule.nest import in_scratch

# At most this many reads are replaced by formulas, because some substitutions would never end.
_MOST = 64


class Axes:
    """The axes that the loops of a group's stages form under a schedule."""

    def __init__(self, group: TileGroup, schedule: BlockSchedule) -> None:
        self.group = group
        self._blocks = dict(schedule.blocks)
        named = {v.name: v for v in group.common}
        covered = {n for name in schedule.parallel for n in name.split("+")}
        if covered != set(named):
            raise NotBlocks("the parallel axes are not the loops of all stages")
        self.parallel = tuple(
            Axis(tuple(named[n] for n in name.split("+")), self.block(name))
            for name in schedule.parallel
        )

    def block(self, name: str) -> int:
        """Returns the number of positions of a block along the axis `name`."""
        return self._blocks.get(name, 1)

    def own(self, stage: GroupStage) -> tuple[Axis, ...]:
        """Returns the axes of the stage's result loops that are neither parallel nor the streaming
        loop."""
        return self._cover([v for v in stage.iters if v not in self.group.cut])

    def reduce(self, stage: GroupStage) -> tuple[Axis, ...]:
        """Returns the axes along which a stage reduces; those with blocks of one element come
        first."""
        axes = self._cover(list(stage.reduce))
        return tuple(sorted(axes, key=lambda a: a.block > 1))

    def _cover(self, loops: list[Var]) -> tuple[Axis, ...]:
        """Returns the axes into which the schedule divides `loops`.

        A loop for which the schedule has no block becomes an axis with blocks of one element.
        """
        by_name = {v.name: v for v in loops}
        axes: list[Axis] = []
        for name, block in self._blocks.items():
            parts = name.split("+")
            if all(n in by_name for n in parts):
                axes.append(Axis(tuple(by_name.pop(n) for n in parts), block))
        single = [v for v in loops if v.name in by_name]
        return (*(Axis((v,), 1) for v in single), *axes)

    def inner(self, stage: GroupStage, component: int) -> Index | None:
        """Returns the offset in a tile's scratch of an element of the stage's result `component`.

        The offset depends only on the stage's own loops. Returns None for a result that is not in
        scratch.
        """
        stores = in_scratch(self.group, stage.stores[component])
        return stores[0].offset if stores else None

    def outer(self, loops: Collection[Var]) -> list[AxisRange]:
        """Returns the tile's part of each parallel or streaming axis that contains one of `loops`.

        The first position of a part is symbolic, because it differs from tile to tile.
        """
        tile_axes = [a for a in self.parallel if set(a.loops) & set(loops)]
        stream = self.group.stream
        if stream is not None and stream.loop in loops:
            tile_axes.append(Axis((stream.loop,), self.block(stream.loop.name)))
        return [AxisRange(a, iterator(f"p.{a.name}", a.steps) * a.block) for a in tile_axes]

    def exchanges(self, source: GroupStage, stage: GroupStage, node: Read) -> bool:
        """Returns True if the block of `source` has the elements that the read `node` of `stage`
        accesses."""
        assert isinstance(node.source, StageRef)
        inner = self.inner(source, node.source.component)
        stream = self.group.stream
        reader = [a for a in self.reduce(stage) if stream is None or a.loops != (stream.loop,)]
        source_frame = BlockAxes((*self.outer(source.iters), *map(_first, self.own(source))))
        parts = self.outer(stage.loops)
        reader_frame = BlockAxes((*parts, *map(_first, (*self.own(stage), *reader))))
        block = Block("", source.body[node.source.component].dtype, source_frame.shape)
        return (
            matched(
                EarlierBlock(block, source_frame, inner), stage.accesses.get(node), reader_frame
            )
            is not None
        )


def _first(axis_: Axis) -> AxisRange:
    """Returns the only block of an axis, or a block at a symbolic position if there are several."""
    return AxisRange(axis_, const(0) if axis_.whole else iterator(f"k.{axis_.name}", axis_.steps))


def exchanged(group: TileGroup, axes: Axes) -> TileGroup:
    """Returns `group` changed so that each read of another stage finds its elements in that stage's
    block.

    If the block of a pointwise stage does not have them, the reader gets the stage's formula in
    place of the read.  Raises `NotBlocks` if the block of a reduction does not have them.
    """
    if any(s.strip is not None for s in group.stages):
        raise NotBlocks("rows of a stage follow a loop through a window")
    for _ in range(_MOST):
        unanswered = _unanswered_read(group, axes)
        if unanswered is None:
            return group
        number, node = unanswered
        source = node.source
        assert isinstance(source, StageRef)
        if group.stages[source.stage].monoid is not None:
            raise NotBlocks("a reduction is read away from the point just computed")
        stages = list(group.stages)
        stages[number] = _substituted(group, number, node)
        group = replace(group, stages=tuple(stages))
    raise NotBlocks("stages read each other at too many places")


def _unanswered_read(group: TileGroup, axes: Axes) -> tuple[int, Read] | None:
    """Returns (number, read) for the first read, of stage `number`, whose elements are not in the
    block of the stage that it reads; None if there is none."""
    for number, stage in enumerate(group.stages):
        for node, ref in reads_of_stages(*stage.body):
            source = group.stages[ref.stage]
            if any(not a.whole for a in axes.own(source)) or not axes.exchanges(
                source, stage, node
            ):
                return number, node
    return None


# ---- formulas in place of reads -----------------------------------------------------------------


def _substituted(group: TileGroup, number: int, node: Read) -> GroupStage:
    """Returns stage `number` with its read `node` replaced by the formula of the stage that it
    reads."""
    stage = group.stages[number]
    accesses = dict(stage.accesses)
    rewritten: dict[Scalar, Scalar] = {}
    for scalar in walk(*stage.body):
        rebuilt = rebuild(scalar, rewritten.__getitem__)
        if isinstance(scalar, Read) and isinstance(rebuilt, Read):
            if scalar in stage.accesses:
                accesses.setdefault(rebuilt, stage.accesses[scalar])
            if scalar is node:
                rebuilt = _Formula(group, rebuilt, stage.accesses.get(scalar), accesses).value()
        rewritten[scalar] = rebuilt
    body = tuple(rewritten[s] for s in stage.body)
    reads = {n for n in walk(*body) if isinstance(n, Read)}
    remaining = {n: a for n, a in accesses.items() if n in reads}
    return replace(stage, body=body, accesses=remaining)


class _Formula:
    """The formula of an earlier stage, with the indices at which `node` reads the stage.

    `access` is the access of `node`.  The reads in the formula are added to `accesses`.
    """

    def __init__(
        self, group: TileGroup, node: Read, access: Access | None, accesses: dict[Read, Access]
    ) -> None:
        assert isinstance(node.source, StageRef)
        self.node, self.access, self.accesses = node, access, accesses
        self.source = group.stages[node.source.stage]
        self.component = node.source.component
        self.mapping = _loops_at(group, self.source, self.component, access)

    def value(self) -> Scalar:
        """Returns the formula as a scalar; if a guard of the read does not hold, its value is the
        fill value."""
        rewritten: dict[Scalar, Scalar] = {}
        root = self.source.body[self.component]
        for scalar in walk(root):
            rebuilt = rebuild(scalar, rewritten.__getitem__)
            if isinstance(rebuilt, IndexValue):
                rebuilt = index_value(self._shifted(rebuilt.index), rebuilt.dtype)
            elif (
                isinstance(scalar, Read)
                and isinstance(rebuilt, Read)
                and scalar in self.source.accesses
            ):
                rebuilt = self._placed(rebuilt, self.source.accesses[scalar])
            rewritten[scalar] = rebuilt
        formula = rewritten[root]
        if self.access is not None and self.node.fill is not None:
            fill = literal(self.node.fill, self.node.dtype)
            for guard in self.access.guards:
                formula = apply("select", self._inside(guard), formula, fill)
        return formula

    def _shifted(self, index: Index) -> Index:
        shifted = substitute(index, self.mapping)
        if {v for v, _ in self.node.indirect} & set(free_vars(shifted)):
            raise NotBlocks("a stage computes with a position that depends on data")
        return shifted

    def _placed(self, node: Read, access: Access) -> Read:
        """Returns a read of the formula, moved to the element that the reader needs.

        The indices of the new read are offsets in storage, because logical indices still contain
        loops that were merged later.
        """
        if self.access is None:
            self.accesses[node] = access
            return node
        guards = guards_at(access.guards, self.mapping)
        guards = tuple(dict.fromkeys((*self.access.guards, *guards)))
        shifted = replace(access, offset=substitute(access.offset, self.mapping), guards=guards)
        at = (shifted.offset, *(i for g in guards for i in (g.index, g.extent)))
        if isinstance(node.source, StageRef):
            at = (*(substitute(i, self.mapping) for i in node.indices), *at)
        bound = tuple(dict((*self.node.indirect, *node.indirect)).items())
        placed = read_at(node, at, bound)
        self.accesses[placed] = shifted
        return placed

    def _inside(self, guard: Guard) -> Scalar:
        """Returns a scalar bool that is true where a guard holds."""
        bound = {of_atom(v): s for v, s in self.node.indirect}
        position = bound.get(guard.index)
        if position is None:
            if {v for v, _ in self.node.indirect} & set(free_vars(guard.index)):
                raise NotBlocks("a stage is read at a position that data shift")
            position = index_value(guard.index, I64)
        end = index_value(guard.extent, position.dtype)
        low = apply("ge", position, literal(0, position.dtype))
        return apply("and", low, apply("lt", position, end))


def _loops_at(
    group: TileGroup, source: GroupStage, component: int, access: Access | None
) -> dict[Var, Index]:
    """Returns the values of the source's loops at the element that a read accesses.

    Parallel loops and the streaming loop are left out. The values are the digits of the read's
    offset.
    """
    if access is None:
        return {}
    stores = in_scratch(group, source.stores[component])
    if len(stores) != 1:
        raise NotBlocks("a stage reads several formulas of an earlier one")
    loops = [v for v in source.iters if v not in group.cut]
    steps = _radix(stores[0].offset, loops)
    mapping: dict[Var, Index] = {}
    for n, (var, step) in enumerate(steps):
        digit = access.offset // step
        mapping[var] = digit if n == 0 else digit % extent(var)
    return mapping


def _radix(offset: Index, loops: Sequence[Var]) -> list[tuple[Var, int]]:
    """Returns pairs (loop, step) for a dense offset, outermost first.

    Raises `NotBlocks` if the offset is not a sum of steps along these loops.
    """
    steps: list[tuple[Var, int]] = []
    remainder = offset
    for var in loops:
        linear = step_in(remainder, var)
        if linear is None or not linear[0]:
            raise NotBlocks("the elements of a stage are not in the order of its loops")
        step, remainder = linear
        steps.append((var, step))
    if remainder is not const(0):
        raise NotBlocks("several formulas compute the elements of one value")
    return sorted(steps, key=lambda pair: -pair[1])
