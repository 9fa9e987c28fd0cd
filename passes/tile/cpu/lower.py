"""Builds the tile kernel of a tile group under a schedule.

    y[i, j] = max(sum(k) a[i, k] * b[k, j], 0)        parallel(j: 12, i: 2)  tiles j 64, i 60
    nests: sum (order k, i; K-blocks 256;      ->       for k by 256: for i by 6:
                blocks i 6, j 64)                         sums in scratch += a [6, 4] * b [4, 64]
           max (blocks i 6, j 64)                       for i by 6: store max(scratch, 0)

Requires a group whose stages read each other at the common iterators or through local buffers.
Establishes static block shapes.  If a block does not divide its loop, the remainder is computed in
smaller blocks.  A static extent has blocks of two sizes; a symbolic extent has a ladder of sizes
(`ranges.ladder`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from math import prod
from typing import TypeAlias

from tcc.ir.expr import extent, known_extent
from tcc.ir.expr.scalar import StageRef, apply, argument, literal
from tcc.ir.index import (
    Index,
    Var,
    as_int,
    ceildiv,
    const,
    divisor_of,
    free_vars,
    iterator,
    linear_in,
    maximum,
    minimum,
    substitute,
)
from tcc.ir.tile import (
    Blocks,
    Compute,
    If,
    Load,
    Store,
    TileBuffer,
    TileKernel,
)
from tcc.ir.tile.group import GroupStage, StreamLoop, TileGroup
from tcc.passes.tile.cpu.alias_scratch import overlaid
from tcc.passes.tile.cpu.body import Ready, Surroundings, stages_along
from tcc.passes.tile.cpu.halo import Edges, strip_regions
from tcc.passes.tile.cpu.invariants import hoisted
from tcc.passes.tile.cpu.packing import fill, packed_factors
from tcc.passes.tile.cpu.ranges import (
    BlockRange,
    Regions,
    Spans,
    TileRange,
    ends_of,
    everything,
    in_blocks,
    inside,
    last_part,
    limits,
    positions,
    shape_of,
    tiles,
)
from tcc.passes.tile.cpu.result_scratch import in_results
from tcc.passes.tile.cpu.scratch import factors_of, home, in_registers, resident_values, waits
from tcc.passes.tile.cpu.stage import StageLowering
from tcc.passes.tile.emitter import StatementEmitter, tile_buffers
from tcc.passes.tile.monoids import change
from tcc.schedule.cpu.cost_parts import follows
from tcc.schedule.cpu.packing import FEW_ROWS
from tcc.schedule.cpu.schedule import Nest, Schedule, even
from tcc.schedule.cpu.work import is_global
from tcc.schedule.masked_terms import limits_of, needed
from tcc.schedule.zero_terms import needed_terms

# A function that emits the code of one block of a nest. Its first argument has the current block of
# each loop, the second the current K-block of each reduced loop.
_AtBlock: TypeAlias = Callable[[Spans, Regions], None]


def lower(group: TileGroup, schedule: Schedule) -> TileKernel:
    """Returns the tile kernel of `group` under `schedule`."""
    return _Lowering(group, schedule).kernel()


class _Lowering:
    """Lowers a group: the grid of tiles, and in each tile the nests."""

    def __init__(self, group: TileGroup, schedule: Schedule) -> None:
        self.group, self.schedule = group, schedule
        self.emitter = StatementEmitter()
        self.axes: list[Var] = []
        self.resident = resident_values(group, schedule)
        self.strips: frozenset[Var] = frozenset()
        self.factors = factors_of(group, self.resident)
        self.packed = packed_factors(group, schedule)
        self.tile_nests, self.passed = schedule.nests, dict[StageRef, Ready]()
        # Buffers are assumed to be aligned to their elements only, because any of them may be a
        # caller's array.
        self.buffers = tile_buffers(group)

    def kernel(self) -> TileKernel:
        by_name = {v.name: v for v in self.group.common}
        loops = [by_name[n] for n in self.schedule.parallel]
        shared = self._shared(loops)
        shared_stages = [number for nest in shared for number in nest.all_stages]
        self.resident = in_results(
            self.group, self.schedule, self.resident, self.buffers, shared_stages
        )
        self.resident = overlaid(self.group, self.schedule, self.resident, shared_stages)
        regions = {v: everything(v) for v in self.group.common}
        self._nests(shared, regions, self.passed)
        self.tile_nests = self.schedule.nests[len(shared) :]
        self._grid(loops, {})
        arguments = tuple(b for b in self.buffers if not b.is_local)
        local = dict.fromkeys(h.buffer for h in (*self.resident.values(), *self.factors.values()))
        local.update(dict.fromkeys(p.buffer for p in self.packed.values()))
        local = {b: None for b in local if b.is_local}
        axes, body = tuple(self.axes), tuple(hoisted(self.emitter.stmts))
        return TileKernel(arguments, tuple(local), self.group.sizes, axes, body)

    def _shared(self, loops: list[Var]) -> tuple[Nest, ...]:
        """Returns the leading nests whose loops are not cut into tiles.

        Their results are the same for every tile, so the kernel computes them once, before the
        tiles.
        """
        tile_size = self.schedule.tile_size
        cut_loops = {v for v in loops if (n := known_extent(v)) is None or n > tile_size(v.name)}
        if self.group.stream is not None:
            return ()
        nests = takewhile(
            lambda nest: all(
                cut_loops.isdisjoint(follows(self.group.stages[n])) for n in nest.all_stages
            ),
            self.schedule.nests,
        )
        return tuple(nests) if cut_loops else ()

    # ---- tiles ----------------------------------------------------------------------------

    def _grid(self, loops: list[Var], regions: Regions) -> None:
        """Emits the tiles along `loops`; `regions` has the parts of the loops outside of them."""
        if not loops:
            uncut = {v: everything(v) for v in self.group.common if v not in regions}
            self._tile({**regions, **uncut})
            return
        for region in self._parallel(loops[0]):
            self._grid(loops[1:], {**regions, region.var: region})

    def _parallel(self, var: Var) -> Iterator[TileRange]:
        """Yields the range of a loop that a tile covers.

        If the last tiles are smaller, yields two ranges: of a full tile, then of a smaller tile.
        The statements that the caller emits for each range become the two branches of an `If`.
        """
        tile_size, size = self.schedule.tile_size(var.name), extent(var)
        static_size = as_int(size)
        if static_size == 0:
            return
        if static_size is not None and static_size <= tile_size:
            yield everything(var)
            return
        tile = iterator(f"p.{var.name}", ceildiv(size, tile_size))
        (axis,) = free_vars(tile)
        if axis not in self.axes:
            self.axes.append(axis)
        if static_size is not None:
            full_blocks = any(n.vector == var.name for n in self.schedule.nests)
            (main, split), *smaller = even(static_size, tile_size, full_blocks)
            full = TileRange(var, tile * main, const(main))
            # If only one tile is smaller than the others, its range begins at a constant.
            seconds = [
                TileRange(var, (tile - split) * (n if count > 1 else 0) + split * main, const(n))
                for n, count in smaller
            ]
            until = tile, const(split)
        elif self._whole_blocks(var, tile_size):
            yield TileRange(var, tile * tile_size, minimum(tile_size, size - tile * tile_size))
            return
        else:
            full = TileRange(var, tile * tile_size, const(tile_size))
            seconds = (
                [last_part(var, tile_size)]
                if tile_size > 1 and divisor_of(size) % tile_size
                else []
            )
            until = tile * tile_size + (tile_size - 1), size
        if not seconds:
            yield full
            return
        with self.emitter.body() as then:
            yield full
        with self.emitter.body() as otherwise:
            yield from seconds
        self.emitter.add(If(*until, tuple(then), tuple(otherwise)))

    def _whole_blocks(self, var: Var, tile_size: int) -> bool:
        """Returns True if a tile is several whole register blocks long in each nest.

        Then the last tile along a symbolic loop differs from other tiles only in its number of
        blocks, plus a remainder.
        """
        return all(
            n.vector != var.name
            and tile_size > (block := n.block(var.name))
            and tile_size % block == 0
            for n in self.schedule.nests
        )

    def _tile(self, regions: Regions) -> None:
        """Emits one tile; `regions` has its part of each common loop."""
        regions = {**regions, **strip_regions(self.group, regions)}
        self.strips = frozenset(v for v in regions if v not in self.group.common)
        passed = dict(self.passed)
        stream = self.group.stream
        if stream is None:
            self._nests(self.tile_nests, regions, passed)
            return
        before_nests, stream_nests, after_nests = (
            [n for n in self.schedule.nests if n.stages[0] in part]
            for part in (stream.before, stream.stages, _after(self.group, stream))
        )
        lowerings = [_NestLowering(self, n, regions, passed) for n in stream_nests]
        self._nests(before_nests, regions, passed)
        for lowering in lowerings:
            lowering.start()
        span = self._needed(regions)
        for part in in_blocks(self.emitter, stream.loop, self.schedule.stream_block, *span):
            for nest in stream_nests:
                _NestLowering(self, nest, {**regions, stream.loop: part}, {}).step(part)
        for lowering in lowerings:
            lowering.finish()
        self._nests(after_nests, regions, passed)

    def _needed(self, regions: Regions) -> tuple[Sequence[Index], Sequence[Index]]:
        """Returns (firsts, stops): bounds of the streaming loop's terms that a tile needs
        (`in_blocks`)."""
        if not self.schedule.skips:
            return (), ()
        return needed(limits_of(self.group), ends_of(regions.values()))

    def _nests(
        self, nests: Sequence[Nest], regions: Regions, passed: dict[StageRef, Ready]
    ) -> None:
        for nest in nests:
            _NestLowering(self, nest, regions, passed).run()


def _after(group: TileGroup, stream: StreamLoop) -> tuple[int, ...]:
    along = {*stream.before, *stream.stages}
    return tuple(n for n in range(len(group.stages)) if n not in along)


class _NestLowering:
    """Lowers the loops of one nest over the region of a tile.

    `passed` has the stage results that are a single block for the whole tile.  The nest reads
    results of earlier nests from it, and adds its own results of this kind.
    """

    def __init__(
        self, parent: _Lowering, nest: Nest, regions: Regions, passed: dict[StageRef, Ready]
    ) -> None:
        self.parent, self.nest, self.passed = parent, nest, passed
        self.emitter = parent.emitter
        self.stages = [(n, parent.group.stages[n]) for n in nest.stages]
        _, first = self.stages[0]
        self.first = first
        self.along = stages_along(parent.group, nest)
        self.regions = {
            **regions,
            **{v: everything(v) for v in first.iters if v not in regions},
        }
        named = {v.name: v for v in first.loops}
        ordered = [named[n] for n in nest.order]
        unordered = [v for v in first.iters if v not in ordered]
        # The vector loop is the last axis of every block.
        common = [v for v in parent.group.common if v in first.iters]
        inner = [v for v in first.iters if v not in common]
        self.iters = sorted((*common, *inner), key=lambda v: v.name == nest.vector)
        self.loops = [*ordered, *unordered]
        self.passes = [v for v in self.loops if v in self.iters]
        # True if accumulators are in scratch: between K-blocks of the nest's loops, or between
        # blocks of the streaming loop.
        self.waits = bool(nest.k_blocks) or any(waits(parent.group, n) for n in nest.stages)

    def run(self) -> None:
        self._surround()
        self.start()
        self._all()
        self.finish()

    def start(self) -> None:
        """Sets sums in scratch to the identity of their monoid, before the first block."""
        if self.waits:
            self._loops(self.passes, {}, {}, self._identity)

    def step(self, block: TileRange) -> None:
        """Emits the nest's work on one block of a streaming loop."""
        if self.waits:
            self._loops(self.loops, {}, {block.var: block}, self._compute)
        else:
            self.run()

    def finish(self) -> None:
        """Copies sums that are results of the kernel from scratch, after the last block."""
        if self.waits and self._stores_sums():
            self._loops(self.passes, {}, {}, self._flush)

    def _loops(self, loops: list[Var], spans: Spans, k_blocks: Regions, emit: _AtBlock) -> None:
        if not loops:
            emit(spans, k_blocks)
            return
        var, inner = loops[0], loops[1:]
        if var in self.iters:
            for span in self._blocks(var, spans):
                self._loops(inner, {**spans, var: span}, k_blocks, emit)
        else:
            ends = ends_of((*self.regions.values(), *spans.values()))
            terms = needed_terms(self.first, var, ends)
            for k_block in in_blocks(self.emitter, var, dict(self.nest.k_blocks)[var.name], *terms):
                self._loops(inner, spans, {**k_blocks, var: k_block}, emit)

    def _blocks(self, var: Var, outer: Spans) -> Iterator[BlockRange]:
        """Yields the blocks along a loop; `outer` has the current blocks of the loops outside of
        it."""
        nest, region = self.nest, self.regions[var]
        vector_block = nest.block(nest.vector or "")
        lanes = next((s.size for v, s in outer.items() if v.name == nest.vector), vector_block)
        block = nest.block_beside(var.name, lanes)
        if var in self.parent.strips:
            return inside(self.emitter, region, block > 1)
        vector = var.name == self.nest.vector
        vectors = self.nest.vectors_along(var.name)
        return tiles(self.emitter, region, block, vector, vector and self._has_border(var), vectors)

    def _has_border(self, var: Var) -> bool:
        """Returns True if some access is linear along a loop, except in the first and the last
        block, for example because of padding."""
        block = self.nest.block(var.name)
        middle = iterator("middle", maximum(extent(var) - 2 * block, 1))
        offsets = (a.offset for _, s in self.stages for a in s.accesses.values())
        return any(
            linear_in(o, var) is None
            and linear_in(substitute(o, {var: middle + block}), *free_vars(middle)) is not None
            for o in offsets
        )

    def _all(self) -> None:
        """Emits all blocks of the nest.

        A packed operand is computed before the rows that share it.  If the number of rows is
        symbolic, the kernel packs the operand only when there are enough rows.
        """
        along = {v for n, _ in self.stages for v in self._packed_along(n)}
        count = max((n for n, v in enumerate(self.loops, 1) if v in along), default=0)
        rows = self.loops[count:]

        def around_rows(spans: Spans, k_blocks: Regions) -> None:
            with self.emitter.body() as direct:
                self._loops(rows, spans, k_blocks, self._compute)
            with self.emitter.body() as packed:
                for number, stage in self.stages:
                    factor = self.parent.packed.get(number)
                    if factor is not None:
                        outer = tuple(spans.values())
                        fill(factor, self._context(stage, outer, k_blocks, dict(self.passed)))
                if packed:
                    self._loops(rows, spans, k_blocks, partial(self._compute, packed=True))
            if not packed:
                self.emitter.add(*direct)
                return
            covered = prod((self.regions[v].size for v in rows), start=const(1))
            if as_int(covered) is not None:
                self.emitter.add(*packed)
            else:
                self.emitter.add(If(const(FEW_ROWS - 1), covered, tuple(packed), tuple(direct)))

        self._loops(self.loops[:count], {}, {}, around_rows)

    def _packed_along(self, number: int) -> frozenset[Var]:
        """Returns the loops that select the current part of a stage's packed operand.

        The operand varies with these loops, or its scratch has an axis along them (for example a
        loop that is cut into K-blocks).
        """
        packed = self.parent.packed.get(number)
        if packed is None:
            return frozenset()
        stage = self.parent.group.stages[number]
        context = self._context(stage, (), {}, dict(self.passed))
        return StageLowering(context).varies_with(packed.factor).union(v for v, _ in packed.steps)

    # ---- the code of each block -----------------------------------------------------------

    def _outer(self, spans: Spans) -> tuple[BlockRange, ...]:
        return tuple(spans[v] for v in self.iters)

    def _compute(self, spans: Spans, k_blocks: Regions, *, packed: bool = False) -> None:
        ready = dict(self.passed)
        outer = self._outer(spans)
        axes = frozenset(s.var for s in outer if s.axis)
        for number, stage in self.stages:
            context = self._context(stage, outer, k_blocks, ready)
            if stage is self.first:
                context = replace(context, along=self.along)
            if packed:
                context = replace(context, packed=self.parent.packed.get(number))
            lowering = StageLowering(context)
            if self.waits:
                old = self._load(number, outer)
                blocks = lowering.continued(self._rescaled(number, old, outer))
                self._store_factors(number, old, blocks, outer)
            else:
                blocks = lowering.run()
                lowering.store(blocks)
            lowering.hold(number, blocks)
            for component, block in enumerate(blocks):
                earlier = ready[StageRef(number, component)] = Ready(block, axes)
                if in_registers(self.parent.group, self.parent.schedule, number):
                    self.passed[StageRef(number, component)] = earlier

    def _context(
        self,
        stage: GroupStage,
        outer: tuple[BlockRange, ...],
        k_blocks: Regions,
        ready: Mapping[StageRef, Ready],
    ) -> Surroundings:
        parent = self.parent
        return Surroundings(
            parent.group,
            stage,
            self.nest,
            outer,
            self.regions,
            k_blocks,
            parent.buffers,
            parent.resident,
            ready,
            parent.emitter,
        )

    def _rescaled(self, number: int, sums: Blocks, outer: tuple[BlockRange, ...]) -> Blocks:
        """Returns `sums` times the factor by which this block of the streaming loop rescales them.

        The factor depends on the change of the maximum of the terms.
        """
        resident = next((h for r, h in self.parent.factors.items() if r.stage == number), None)
        if resident is None:
            return sums
        (block,) = sums
        along = {v for v, _ in resident.steps}
        shape = tuple(s.size if s.var in along else 1 for s in outer if s.axis)
        factor = self.emitter.fresh(block.dtype, shape)
        mapping = positions(outer, shape)
        at = resident.offset(mapping, const(0), self.regions)
        (out,) = self.emitter.like(sums)
        args = tuple(argument(n, block.dtype) for n in range(2))
        guards = limits([s for s in outer if s.var in along], mapping)
        self.emitter.add(Load(factor, resident.buffer, (at,), guards))
        self.emitter.add(Compute(out, apply("mul", *args), (block, factor)))
        return (out,)

    def _store_factors(
        self, number: int, old_state: Blocks, new_state: Blocks, outer: tuple[BlockRange, ...]
    ) -> None:
        """Stores the factors that rescale the sums that depend on this stage's accumulator, a max
        or min.

        A factor depends on the accumulator before this block (`old_state`) and after it
        (`new_state`).  It is 1 if the accumulator does not change, even if it is infinite.
        """
        stored_buffers: list[TileBuffer] = []
        for rescale, resident in self.parent.factors.items():
            if rescale.total != StageRef(number) or resident.buffer in stored_buffers:
                continue
            stored_buffers.append(resident.buffer)
            factor = change(rescale, old_state[0].dtype)
            (block,) = self.emitter.like(old_state)
            mapping = positions(outer, block.shape)
            at = resident.offset(mapping, const(0), self.regions)
            self.emitter.add(Compute(block, factor, (old_state[0], new_state[0])))
            self.emitter.add(Store(resident.buffer, (at,), block, limits(outer, mapping)))

    def _identity(self, spans: Spans, _: Regions) -> None:
        """Stores the identity of the monoid in the scratch of the sums."""
        for number, _outer, lowering in self._lowerings(spans):
            lowering.hold(number, lowering.identities())

    def _flush(self, spans: Spans, _: Regions) -> None:
        """Copies sums that are results of the kernel from scratch to the results' buffers."""
        for number, outer, lowering in self._lowerings(spans):
            lowering.store(self._load(number, outer))

    def _lowerings(
        self, spans: Spans
    ) -> Iterator[tuple[int, tuple[BlockRange, ...], StageLowering]]:
        outer = self._outer(spans)
        for number, stage in self.stages:
            yield number, outer, StageLowering(self._context(stage, outer, {}, {}))

    def _stores_sums(self) -> bool:
        return any(
            is_global(self.parent.group, target.buffer)
            for _, stage in self.stages
            for target in stage.written
        )

    # ---- scratch ----------------------------------------------------------------------------

    def _surround(self) -> None:
        """Stores the fill values around the rows that this nest computes, in scratch."""
        for number, stage in self.stages:
            for component, scalar in enumerate(stage.body):
                resident = self.parent.resident.get(StageRef(number, component))
                strip = None if resident is None else resident.strip
                value = None if strip is None else strip.fills[component]
                if resident is not None and strip is not None and value is not None:
                    edges = Edges(resident, strip, self.regions, self.emitter)
                    edges.store(literal(value, scalar.dtype))

    def _load(self, number: int, outer: tuple[BlockRange, ...]) -> Blocks:
        blocks = []
        for component, scalar in enumerate(self.parent.group.stages[number].body):
            ref = StageRef(number, component)
            place = home(self.parent.group, self.parent.resident, self.regions, ref, outer)
            assert place is not None
            blocks.append(self.emitter.fresh(scalar.dtype, shape_of(outer)))
            guards = limits(outer, positions(outer, shape_of(outer)))
            self.emitter.add(Load(blocks[-1], *place, guards))
        return tuple(blocks)
