"""What the stages of a block kernel exchange, and the axes that their loops make.

e[i, j] = exp(x[i, j] - m[i]) ;  s[i] = sum(k) e[i, k] ;  y[i, j] = e[i, j] / s[i]
  j in one block:   s and y read the block of e
  j in several:     both make exp(x - m) for themselves
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
    Vars,
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
from tcc.passes.tile.gpu.axes import Axis, AxisRange, BlockAxes, axis
from tcc.passes.tile.gpu.body import Made, matched
from tcc.schedule.gpu.schedule import BlockSchedule, NotBlocks
from tcc.schedule.nest import in_scratch

# Formulas put in for reads: more means that stages nest without end in sight.
_MOST = 64


class Axes:
    """The axes of the loops of a group's stages under a schedule."""

    def __init__(self, group: TileGroup, schedule: BlockSchedule) -> None:
        self.group = group
        self._blocks = dict(schedule.blocks)
        named = {v.name: v for v in group.common}
        missing = [n for name in schedule.parallel for n in name.split("+") if n not in named]
        covered = {n for name in schedule.parallel for n in name.split("+")}
        if missing or covered != set(named):
            raise NotBlocks("the parallel axes are not the loops of all stages")
        self.parallel = tuple(
            axis([named[n] for n in name.split("+")], self.block(name))
            for name in schedule.parallel
        )

    def block(self, name: str) -> int:
        """Positions of a block along an axis."""
        return self._blocks.get(name, 1)

    def own(self, stage: GroupStage) -> tuple[Axis, ...]:
        """The axes of a stage's loops that are neither parallel nor the streaming loop."""
        return self._cover([v for v in stage.iters if v not in self.group.cut])

    def reduce(self, stage: GroupStage) -> tuple[Axis, ...]:
        """The axes that a stage reduces along: those of one element at a time come first."""
        found = self._cover(list(stage.reduce))
        return tuple(sorted(found, key=lambda a: a.block > 1))

    def _cover(self, loops: list[Var]) -> tuple[Axis, ...]:
        by_name = {v.name: v for v in loops}
        found: list[Axis] = []
        for name, block in self._blocks.items():
            parts = name.split("+")
            if all(n in by_name for n in parts):
                found.append(axis([by_name.pop(n) for n in parts], block))
        single = [v for v in loops if v.name in by_name]
        return (*(axis((v,), 1) for v in single), *found)

    def inner(self, stage: GroupStage, component: int) -> Index | None:
        """The offset of an element among those of the stage's own loops; None without such."""
        held = in_scratch(self.group, stage.stores[component])
        return held[0].offset if held else None

    def outer(self, loops: Collection[Var]) -> list[AxisRange]:
        """Parts of the parallel axes and the streaming loop that have some of `loops`, at some
        place."""
        units = [a for a in self.parallel if set(a.loops) & set(loops)]
        stream = self.group.stream
        if stream is not None and stream.loop in loops:
            units.append(axis((stream.loop,), self.block(stream.loop.name)))
        return [AxisRange(a, iterator(f"p.{a.name}", a.steps) * a.block) for a in units]

    def exchanges(self, source: GroupStage, stage: GroupStage, node: Read) -> bool:
        """Whether `stage` reads what is in the block of `source`."""
        assert isinstance(node.source, StageRef)
        inner = self.inner(source, node.source.component)
        reader = [a for a in self.reduce(stage) if a.loops != self._streamed()]
        made = BlockAxes((*self.outer(source.iters), *map(_first, self.own(source))))
        parts = self.outer(stage.loops)
        read_in = BlockAxes((*parts, *map(_first, (*self.own(stage), *reader))))
        block = Block("", source.body[node.source.component].dtype, made.shape)
        return matched(Made(block, made, inner), stage.accesses.get(node), read_in) is not None

    def _streamed(self) -> Vars:
        return () if self.group.stream is None else (self.group.stream.loop,)


def _first(each: Axis) -> AxisRange:
    """The first block of an axis, if one covers it, or some block."""
    return AxisRange(each, const(0) if each.whole else iterator(f"k.{each.name}", each.steps))


def exchanged(group: TileGroup, axes: Axes) -> TileGroup:
    """`group` with pointwise stages put into those that cannot read their blocks.

    Raises `NotBlocks` where what cannot be read is a reduction.
    """
    if any(s.strip is not None for s in group.stages):
        raise NotBlocks("rows of a stage follow a loop through a window")
    for _ in range(_MOST):
        found = _away(group, axes)
        if found is None:
            return group
        number, node = found
        source = node.source
        assert isinstance(source, StageRef)
        if group.stages[source.stage].monoid is not None:
            raise NotBlocks("a total is read away from the point just computed")
        stages = list(group.stages)
        stages[number] = _with(group, number, node)
        group = replace(group, stages=tuple(stages))
    raise NotBlocks("stages read each other at too many places")


def _away(group: TileGroup, axes: Axes) -> tuple[int, Read] | None:
    """A read that no block answers."""
    for number, stage in enumerate(group.stages):
        for node, ref in reads_of_stages(*stage.body):
            source = group.stages[ref.stage]
            if any(not a.whole for a in axes.own(source)) or not axes.exchanges(
                source, stage, node
            ):
                return number, node
    return None


# ---- formulas in place of reads -----------------------------------------------------------------


def _with(group: TileGroup, number: int, node: Read) -> GroupStage:
    """A stage with the formula of an earlier one in place of a read of it."""
    stage = group.stages[number]
    accesses = dict(stage.accesses)
    done: dict[Scalar, Scalar] = {}
    for old in walk(*stage.body):
        new = rebuild(old, done.__getitem__)
        if isinstance(old, Read) and isinstance(new, Read):
            if old in stage.accesses:
                accesses.setdefault(new, stage.accesses[old])
            if old is node:
                new = _Formula(group, new, stage.accesses.get(old), accesses).value()
        done[old] = new
    body = tuple(done[s] for s in stage.body)
    used = {n for n in walk(*body) if isinstance(n, Read)}
    kept = {n: a for n, a in accesses.items() if n in used}
    return replace(stage, body=body, accesses=kept)


class _Formula:
    """What an earlier stage computes at a read of it; `accesses` takes its reads."""

    def __init__(
        self, group: TileGroup, node: Read, access: Access | None, accesses: dict[Read, Access]
    ) -> None:
        assert isinstance(node.source, StageRef)
        self.node, self.access, self.accesses = node, access, accesses
        self.source = group.stages[node.source.stage]
        self.component = node.source.component
        self.mapping = _values(group, self.source, self.component, access)

    def value(self) -> Scalar:
        """The formula, the read's fill where the read is beyond the ends of the earlier stage."""
        done: dict[Scalar, Scalar] = {}
        root = self.source.body[self.component]
        for old in walk(root):
            new = rebuild(old, done.__getitem__)
            if isinstance(new, IndexValue):
                new = index_value(self._moved(new.index), new.dtype)
            elif isinstance(old, Read) and isinstance(new, Read) and old in self.source.accesses:
                new = self._placed(new, self.source.accesses[old])
            done[old] = new
        if self.access is None or self.node.fill is None:
            return done[root]
        found = done[root]
        for guard in self.access.guards:
            found = apply("select", self._inside(guard), found, self._fill())
        return found

    def _moved(self, index: Index) -> Index:
        moved = substitute(index, self.mapping)
        if {v for v, _ in self.node.indirect} & set(free_vars(moved)):
            raise NotBlocks("a stage computes with a position that depends on data")
        return moved

    def _placed(self, new: Read, access: Access) -> Read:
        """A read at its new place.  It goes by where it lies, for loops that were merged since are
        still in its logical indices."""
        if self.access is None:
            self.accesses[new] = access
            return new
        guards = guards_at(access.guards, self.mapping)
        guards = tuple(dict.fromkeys((*self.access.guards, *guards)))
        moved = replace(access, offset=substitute(access.offset, self.mapping), guards=guards)
        at = (moved.offset, *(i for g in guards for i in (g.index, g.extent)))
        if isinstance(new.source, StageRef):
            at = (*(substitute(i, self.mapping) for i in new.indices), *at)
        bound = tuple(dict((*self.node.indirect, *new.indirect)).items())
        found = read_at(new, at, bound)
        self.accesses[found] = moved
        return found

    def _fill(self) -> Scalar:
        assert self.node.fill is not None
        return literal(self.node.fill, self.node.dtype)

    def _inside(self, guard: Guard) -> Scalar:
        """Whether a guard is met."""
        bound = {of_atom(v): s for v, s in self.node.indirect}
        position = bound.get(guard.index)
        if position is None:
            if {v for v, _ in self.node.indirect} & set(free_vars(guard.index)):
                raise NotBlocks("a stage is read at a position that data shift")
            position = index_value(guard.index, I64)
        end = index_value(guard.extent, position.dtype)
        low = apply("ge", position, literal(0, position.dtype))
        return apply("and", low, apply("lt", position, end))


def _values(
    group: TileGroup, source: GroupStage, component: int, access: Access | None
) -> dict[Var, Index]:
    """The source's own loops at a read of it: the digits of the offset."""
    if access is None:
        return {}
    stored = in_scratch(group, source.stores[component])
    if len(stored) != 1:
        raise NotBlocks("a stage reads several formulas of an earlier one")
    own = [v for v in source.iters if v not in group.cut]
    steps = _radix(stored[0].offset, own)
    mapping: dict[Var, Index] = {}
    for n, (var, step) in enumerate(steps):
        digit = access.offset // step
        mapping[var] = digit if n == 0 else digit % extent(var)
    return mapping


def _radix(offset: Index, own: Sequence[Var]) -> list[tuple[Var, int]]:
    """The loops of a dense offset with their steps, outermost first."""
    steps: list[tuple[Var, int]] = []
    rest = offset
    for var in own:
        linear = step_in(rest, var)
        if linear is None or not linear[0]:
            raise NotBlocks("what a stage holds is not in the order of its loops")
        step, rest = linear
        steps.append((var, step))
    if rest is not const(0):
        raise NotBlocks("several formulas make the elements of one value")
    return sorted(steps, key=lambda pair: -pair[1])
