"""Binds a schedule to a tile group: the tile kernel.

    y[i, j] = max(sum(k) a[i, k] * b[k, j], 0)        parallel(j: 12, i: 2)  units j 64, i 60
    nests: sum (order k, i; runs k 256;        ->       for k by 256: for i by 6:
                blocks i 6, j 64)                         sums in scratch += a [6, 4] * b [4, 64]
           max (blocks i 6, j 64)                       for i by 6: store max(scratch, 0)

Requires a group whose stages read each other at the common iterators or through local buffers.
Establishes static block shapes: the remainder of a loop that its block does not divide becomes
blocks of smaller sizes, two kinds of static extents and a ladder of symbolic ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from tcc.ir.expr import extent
from tcc.ir.expr.scalar import StageRef, apply, argument
from tcc.ir.index import Index, Var, as_int, ceildiv, const, divisor_of, free_vars, iterator
from tcc.ir.tile import (
    Block,
    Blocks,
    Compute,
    If,
    Load,
    MemorySpace,
    Stmts,
    Store,
    TileBuffer,
    TileKernel,
)
from tcc.ir.tile.group import GroupStage, StreamLoop, TileGroup
from tcc.ir.types import DType
from tcc.passes.tile.cpu.alias_scratch import overlaid
from tcc.passes.tile.cpu.body import Ready
from tcc.passes.tile.cpu.halo import Edges, strip_regions
from tcc.passes.tile.cpu.packing import fill, packed_factors
from tcc.passes.tile.cpu.ranges import (
    BlockRange,
    Regions,
    Spans,
    TileRange,
    even,
    everything,
    in_runs,
    inside,
    last_part,
    positions,
    tiles,
)
from tcc.passes.tile.cpu.scratch import factors_of, held_values, in_registers, within
from tcc.passes.tile.cpu.stage import StageLowering, Surroundings, shape_of
from tcc.passes.tile.monoids import change
from tcc.schedule.cpu.packing import FEW_ROWS
from tcc.schedule.cpu.schedule import Nest, Schedule

_Emit = Callable[[TileRange], Stmts]


def lower(group: TileGroup, schedule: Schedule) -> TileKernel:
    """The tile kernel of `group` under `schedule`."""
    return _Lowering(group, schedule).kernel()


class _Lowering:
    def __init__(self, group: TileGroup, schedule: Schedule) -> None:
        self.group, self.schedule = group, schedule
        self.count = 0
        self.held = held_values(group, schedule)
        self.strips: frozenset[Var] = frozenset()
        self.factors = factors_of(group, self.held)
        self.packed = packed_factors(group, schedule)
        self.rest, self.passed = schedule.nests, dict[StageRef, Ready]()
        # Callers' arrays are aligned to their elements only, and any buffer may be a caller's.
        self.buffers = tuple(
            TileBuffer(f"b{n}", b.dtype, (b.size,), b.scope, b.dtype.bytes)
            for n, b in enumerate(group.buffers)
        )

    def kernel(self) -> TileKernel:
        axes: list[Var] = []
        by_name = {v.name: v for v in self.group.common}
        loops = [by_name[n] for n in self.schedule.parallel]
        shared = self._shared(loops)
        alike = [number for nest in shared for number in nest.stages]
        self.held = overlaid(self.group, self.schedule, self.held, alike)
        regions = {v: everything(v) for v in self.group.common}
        first = self._nests(shared, regions, self.passed)
        self.rest = self.schedule.nests[len(shared) :]
        body = [*first, *self._units(loops, {}, axes)]
        passed = tuple(b for b in self.buffers if b.scope is not MemorySpace.LOCAL)
        local = dict.fromkeys(h.buffer for h in (*self.held.values(), *self.factors.values()))
        local.update(dict.fromkeys(p.buffer for p in self.packed.values()))
        return TileKernel(passed, tuple(local), self.group.sizes, tuple(axes), tuple(body))

    def _shared(self, loops: list[Var]) -> tuple[Nest, ...]:
        """The first nests, as far as their stages have no loop that is cut into units: a kernel
        begins with what is the same in every unit."""
        cut = {v for v in loops if as_int(extent(v)) is None or self._cut(v)}
        if self.group.walk is not None:
            return ()
        found: list[Nest] = []
        for nest in self.schedule.nests:
            if any(cut.intersection(_follows(self.group.stages[n])) for n in nest.stages):
                break
            found.append(nest)
        return tuple(found) if cut else ()

    def _cut(self, var: Var) -> bool:
        return (as_int(extent(var)) or 0) > self.schedule.unit(var.name)

    # ---- units ----------------------------------------------------------------------------

    def _units(self, loops: list[Var], regions: Regions, axes: list[Var]) -> Stmts:
        if not loops:
            rest = {v: everything(v) for v in self.group.common if v not in regions}
            return self._unit({**regions, **rest})

        def emit(region: TileRange) -> Stmts:
            return self._units(loops[1:], {**regions, region.var: region}, axes)

        return self._parallel(loops[0], axes, emit)

    def _parallel(self, var: Var, axes: list[Var], emit: _Emit) -> Stmts:
        unit, size = self.schedule.unit(var.name), extent(var)
        known = as_int(size)
        if known == 0:
            return []
        if known is not None and known <= unit:
            return emit(everything(var))
        tile = iterator(f"p.{var.name}", ceildiv(size, unit))
        (axis,) = free_vars(tile)
        if axis not in axes:
            axes.append(axis)
        full = TileRange(var, tile * unit, const(unit))
        if known is not None:
            whole = any(n.vector == var.name for n in self.schedule.nests)
            (split, main), *rest = even(known, unit, whole)
            first = TileRange(var, tile * main, const(main))
            if not rest:
                return emit(first)
            ((_, less),) = rest
            second = TileRange(var, (tile - split) * less + split * main, const(less))
            return [If(tile, const(split), tuple(emit(first)), tuple(emit(second)))]
        if unit == 1:
            return emit(full)
        if divisor_of(size) % unit == 0:
            return emit(full)
        last = last_part(var, unit)
        return [If(tile * unit + (unit - 1), size, tuple(emit(full)), tuple(emit(last)))]

    def _unit(self, regions: Regions) -> Stmts:
        regions = {**regions, **strip_regions(self.group, regions)}
        self.strips = frozenset(v for v in regions if v not in self.group.common)
        passed = dict(self.passed)
        walk = self.group.walk
        if walk is None:
            return self._nests(self.rest, regions, passed)
        first, along, last = (
            [n for n in self.schedule.nests if n.stages[0] in part]
            for part in (walk.before, walk.stages, _after(self.group, walk))
        )
        at = [_NestLowering(self, n, regions, passed) for n in along]
        parts = (
            self._nests(first, regions, passed),
            *(n.start() for n in at),
            self._walk(walk.loop, along, regions),
            *(n.finish() for n in at),
            self._nests(last, regions, passed),
        )
        return [stmt for part in parts for stmt in part]

    def _nests(
        self, nests: Sequence[Nest], regions: Regions, passed: dict[StageRef, Ready]
    ) -> Stmts:
        lowered = (_NestLowering(self, nest, regions, passed) for nest in nests)
        return [stmt for nest in lowered for stmt in nest.run()]

    def _walk(self, loop: Var, nests: Sequence[Nest], regions: Regions) -> Stmts:
        """The nests of a walk, for one run after the other."""

        def emit(part: TileRange) -> Stmts:
            inside = {**regions, loop: part}
            return [s for n in nests for s in _NestLowering(self, n, inside, {}).step(part)]

        return in_runs(loop, self.schedule.run, self.counter, emit)

    # ---- names ----------------------------------------------------------------------------

    def block(self, dtype: DType, shape: tuple[int, ...]) -> Block:
        self.count += 1
        return Block(f"v{self.count - 1}", dtype, shape)

    def counter(self, size: Index) -> Index:
        self.count += 1
        return iterator(f"k{self.count - 1}", size)


def _follows(stage: GroupStage) -> set[Var]:
    """The loops that say what of a stage a unit makes."""
    return {*stage.iters, *(() if stage.strip is None else (stage.strip.loop,))}


def _after(group: TileGroup, walk: StreamLoop) -> tuple[int, ...]:
    along = {*walk.before, *walk.stages}
    return tuple(n for n in range(len(group.stages)) if n not in along)


class _NestLowering:
    """The loops of one nest over the region of a unit.

    `passed` are results that are one block for the whole unit: what earlier nests left there, and
    where this one leaves its own.
    """

    def __init__(
        self, parent: _Lowering, nest: Nest, regions: Regions, passed: dict[StageRef, Ready]
    ) -> None:
        self.parent, self.nest, self.passed = parent, nest, passed
        self.stages = [(n, parent.group.stages[n]) for n in nest.stages]
        _, first = self.stages[0]
        self.regions = {
            **regions,
            **{v: everything(v) for v in first.iters if v not in regions},
        }
        named = {v.name: v for v in (*first.iters, *first.reduce)}
        ordered = [named[n] for n in nest.order]
        rest = [v for v in first.iters if v not in ordered]
        # The vector loop is the last axis of every block.
        common = [v for v in parent.group.common if v in first.iters]
        inner = [v for v in first.iters if v not in common]
        self.iters = sorted((*common, *inner), key=lambda v: v.name == nest.vector)
        self.loops = [*ordered, *rest]
        self.passes = [v for v in self.loops if v in self.iters]
        walk = parent.group.walk
        self.totals = walk is not None and any(walk.loop in s.reduce for _, s in self.stages)

    def run(self) -> Stmts:
        around = self._surrounded()
        if not self.nest.runs:
            return [*around, *self._all()]
        return [
            *around,
            *self._loops(self.passes, {}, {}, self._identity),
            *self._all(),
            *(self._loops(self.passes, {}, {}, self._flush) if self._stores_sums() else ()),
        ]

    # ---- along a walk -----------------------------------------------------------------------

    def start(self) -> Stmts:
        """Before the first run."""
        return self._loops(self.passes, {}, {}, self._identity) if self.totals else []

    def step(self, run: TileRange) -> Stmts:
        """One run."""
        if not self.totals:
            return self.run()
        return self._loops(self.loops, {}, {run.var: run}, self._compute)

    def finish(self) -> Stmts:
        """After the last run."""
        stored = self.totals and self._stores_sums()
        return self._loops(self.passes, {}, {}, self._flush) if stored else []

    def _loops(
        self,
        loops: list[Var],
        spans: Spans,
        runs: Regions,
        emit: Callable[[Spans, Regions], Stmts],
    ) -> Stmts:
        if not loops:
            return emit(spans, runs)
        var, rest = loops[0], loops[1:]
        if var in self.iters:
            whole = var.name == self.nest.vector
            region, block = self.regions[var], self.nest.block(var.name)

            def inner(span: BlockRange) -> Stmts:
                return self._loops(rest, {**spans, var: span}, runs, emit)

            if var in self.parent.strips:
                return inside(region, block > 1, self.parent.counter, inner)
            return tiles(region, block, whole, self.parent.counter, inner)

        def part(run: TileRange) -> Stmts:
            return self._loops(rest, spans, {**runs, var: run}, emit)

        return in_runs(var, dict(self.nest.runs)[var.name], self.parent.counter, part)

    def _all(self) -> Stmts:
        """The stages on all blocks; what rows share of a packed operand is made before them."""
        along = {v for n, _ in self.stages for v in self._packed_along(n)}
        count = max((n for n, v in enumerate(self.loops, 1) if v in along), default=0)
        rows = self.loops[count:]

        def around_rows(spans: Spans, runs: Regions) -> Stmts:
            direct = self._loops(rows, spans, runs, self._compute)
            made = [s for n, stage in self.stages for s in self._fill(n, stage, spans, runs)]
            if not made:
                return direct
            packed = self._loops(rows, spans, runs, partial(self._compute, packed=True))
            covered = prod((self.regions[v].size for v in rows), start=const(1))
            if as_int(covered) is not None:
                return [*made, *packed]
            return [If(const(FEW_ROWS - 1), covered, (*made, *packed), tuple(direct))]

        return self._loops(self.loops[:count], {}, {}, around_rows)

    def _packed_along(self, number: int) -> frozenset[Var]:
        """The loops that say which part of a packed operand is at hand."""
        packed = self.parent.packed.get(number)
        if packed is None:
            return frozenset()
        stage = self.parent.group.stages[number]
        around = self._around(stage, (), {}, dict(self.passed))
        return StageLowering(around).varies_with(packed.factor)

    def _fill(self, number: int, stage: GroupStage, spans: Spans, runs: Regions) -> Stmts:
        packed = self.parent.packed.get(number)
        if packed is None:
            return []
        around = self._around(stage, tuple(spans.values()), runs, dict(self.passed))
        return fill(packed, around, self.nest, spans, runs, self.parent.counter)

    # ---- what happens at each block -------------------------------------------------------

    def _outer(self, spans: Spans) -> tuple[BlockRange, ...]:
        return tuple(spans[v] for v in self.iters)

    def _compute(self, spans: Spans, runs: Regions, *, packed: bool = False) -> Stmts:
        stmts: Stmts = []
        ready = dict(self.passed)
        outer = self._outer(spans)
        axes = frozenset(s.var for s in outer if s.axis)
        for number, stage in self.stages:
            around = self._around(stage, outer, runs, ready)
            if packed:
                around = replace(around, packed=self.parent.packed.get(number))
            lowering = StageLowering(around)
            if self.nest.runs or self.totals:
                loads, old = self._load(number, outer)
                scaling, start = self._rescaled(number, old, outer)
                out, blocks = lowering.continued(start)
                stmts += [*loads, *scaling, *out, *self._moved(number, old, blocks, outer)]
            else:
                out, blocks = lowering.run()
                stmts += [*out, *lowering.stores(blocks)]
            stmts += self._hold(number, blocks, outer)
            for component, block in enumerate(blocks):
                made = ready[StageRef(number, component)] = Ready(block, axes)
                if in_registers(self.parent.group, self.parent.schedule, number):
                    self.passed[StageRef(number, component)] = made
        return stmts

    def _around(
        self,
        stage: GroupStage,
        outer: tuple[BlockRange, ...],
        runs: Regions,
        ready: Mapping[StageRef, Ready],
    ) -> Surroundings:
        parent = self.parent
        return Surroundings(
            parent.group,
            stage,
            self.nest,
            outer,
            self.regions,
            runs,
            parent.buffers,
            parent.held,
            ready,
            parent.block,
            parent.counter,
        )

    def _rescaled(
        self, number: int, sums: Blocks, outer: tuple[BlockRange, ...]
    ) -> tuple[Stmts, Blocks]:
        """Sums so far times what the change of their state in this run asks for."""
        held = next((h for r, h in self.parent.factors.items() if r.stage == number), None)
        if held is None:
            return [], sums
        (block,) = sums
        along = {v for v, _ in held.steps}
        shape = tuple(s.size if s.var in along else 1 for s in outer if s.axis)
        factor = self.parent.block(block.dtype, shape)
        at = held.offset(positions(outer, shape), const(0), self.regions)
        out = self.parent.block(block.dtype, block.shape)
        args = tuple(argument(n, block.dtype) for n in range(2))
        product = Compute(out, apply("mul", *args), (block, factor))
        return [Load(factor, held.buffer, (at,)), product], (out,)

    def _moved(
        self,
        number: int,
        old: Blocks,
        new: Blocks,
        outer: tuple[BlockRange, ...],
    ) -> Stmts:
        """The factors that a change of this stage's total brings for the sums that depend on it;
        no change brings none, infinities included."""
        stmts: Stmts = []
        done: list[TileBuffer] = []
        for rescale, held in self.parent.factors.items():
            if rescale.state.source != StageRef(number) or held.buffer in done:
                continue
            done.append(held.buffer)
            factor = change(rescale, old[0].dtype)
            block = self.parent.block(old[0].dtype, old[0].shape)
            at = held.offset(positions(outer, block.shape), const(0), self.regions)
            stmts += [
                Compute(block, factor, (old[0], new[0])),
                Store(held.buffer, (at,), block),
            ]
        return stmts

    def _identity(self, spans: Spans, _: Regions) -> Stmts:
        """Sums that wait in scratch start at the identity."""
        stmts: Stmts = []
        outer = self._outer(spans)
        for number, stage in self.stages:
            made, blocks = StageLowering(self._around(stage, outer, {}, {})).identities()
            stmts += [*made, *self._hold(number, blocks, outer)]
        return stmts

    def _flush(self, spans: Spans, _: Regions) -> Stmts:
        """Sums that are results go from scratch to where results lie."""
        stmts: Stmts = []
        outer = self._outer(spans)
        for number, stage in self.stages:
            loads, blocks = self._load(number, outer)
            around = self._around(stage, outer, {}, {})
            stmts += [*loads, *StageLowering(around).stores(blocks)]
        return stmts

    def _stores_sums(self) -> bool:
        buffers = self.parent.group.buffers
        return any(
            buffers[target.buffer].scope is not MemorySpace.LOCAL
            for _, stage in self.stages
            for targets in stage.stores
            for target in targets
        )

    # ---- scratch ----------------------------------------------------------------------------

    def _surrounded(self) -> Stmts:
        """What later stages see around the rows that this nest makes."""
        stmts: Stmts = []
        for number, stage in self.stages:
            for component, scalar in enumerate(stage.body):
                held = self.parent.held.get(StageRef(number, component))
                if held is not None and held.strip is not None:
                    edges = Edges(held, component, self.regions, self.parent)
                    stmts += edges.run(scalar.dtype)
        return stmts

    def _hold(self, number: int, blocks: Blocks, outer: tuple[BlockRange, ...]) -> Stmts:
        stmts: Stmts = []
        for component, block in enumerate(blocks):
            place = self._place(number, component, outer)
            if place is not None:
                stmts.append(Store(*place, block))
        return stmts

    def _load(self, number: int, outer: tuple[BlockRange, ...]) -> tuple[Stmts, Blocks]:
        stmts: Stmts = []
        blocks = []
        for component, scalar in enumerate(self.parent.group.stages[number].body):
            place = self._place(number, component, outer)
            assert place is not None
            block = self.parent.block(scalar.dtype, shape_of(outer))
            stmts.append(Load(block, *place))
            blocks.append(block)
        return stmts, tuple(blocks)

    def _place(
        self, number: int, component: int, outer: tuple[BlockRange, ...]
    ) -> tuple[TileBuffer, tuple[Index]] | None:
        held = self.parent.held.get(StageRef(number, component))
        if held is None:
            return None
        mapping = positions(outer, shape_of(outer))
        group = self.parent.group
        inner = within(group, group.stages[number], component, mapping)
        return held.buffer, (held.offset(mapping, inner, self.regions),)
