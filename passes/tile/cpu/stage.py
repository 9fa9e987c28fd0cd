"""Lowers one block of one stage: emits its statements, and returns the blocks of its results."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from math import ceil, prod

from tcc.ir.expr.scalar import (
    Const,
    Read,
    Scalar,
    StageRef,
    apply,
    argument,
    cast,
    index_value,
    literal,
    walk,
)
from tcc.ir.index import (
    Index,
    Var,
    as_int,
    ceildiv,
    const,
    free_vars,
    maximum,
    minimum,
    substitute,
)
from tcc.ir.tile import (
    Block,
    Blocks,
    Compute,
    Contract,
    Load,
    Reduce,
    Relayout,
    Store,
    TileLoop,
    guards_at,
)
from tcc.ir.types import F32, I32
from tcc.passes.tile.cpu.body import CoreStageScalars, Ready, Surroundings
from tcc.passes.tile.cpu.prefetch import next_k_block, next_results, next_row
from tcc.passes.tile.cpu.ranges import (
    BlockRange,
    Regions,
    TileRange,
    block_at,
    counter_of,
    ends_of,
    everything,
    flat,
    ladder,
    limits,
    positions,
    shape_of,
)
from tcc.passes.tile.cpu.scratch import home
from tcc.passes.tile.monoids import combinations, identities, identity_blocks
from tcc.schedule.cpu.schedule import TailVectors
from tcc.schedule.nest import Factors, contraction_factors, depends, plain_factors
from tcc.schedule.zero_terms import needed_terms
from tcc.zipped import zip_equal

# The most terms of a float contraction that one accumulator sums. The rounding error of a sum of n
# terms grows like sqrt(n), and faster if all terms have one sign. If n terms are summed in blocks
# of b, each with an accumulator of its own, it grows like sqrt(b) + sqrt(n / b) (Higham, "The
# accuracy of floating point summation", 1993).
TERMS = 384
# Reductions of at most this many iterations are unrolled.
SHORT = 3


class StageLowering:
    """Lowers a stage on the current block of the nest's loops."""

    def __init__(self, context: Surroundings, blocks: Regions | None = None) -> None:
        """Stores the context; `blocks` maps a reduced loop to the part that one accumulator
        sums."""
        self.context, self.stage, self.nest = context, context.stage, context.nest
        self.emitter, self.outer = context.emitter, context.outer
        self.blocks = blocks or {}
        self.factors = self._factors()
        # The innermost summed loops whose sum a scale multiplies.
        self.scaled = () if self.factors is None else self.factors.scaled_loops(context.stage)

    def _factors(self) -> Factors | None:
        """Returns the factors of a contraction, else None.

        If the vector loop is summed, a lane holds a part of each sum.  Then a scale is a part of a
        factor.
        """
        summed = any(v.name == self.nest.vector for v in self.stage.reduce)
        return (plain_factors if summed else contraction_factors)(self.stage)

    def run(self) -> Blocks:
        """Returns the blocks of the stage's components."""
        if self.stage.monoid is not None:
            return self._sums(self._reduce_order(), [])
        next_results(self.context)
        scalars = CoreStageScalars(self.context, self.outer)
        scalars.share(self.stage.body)
        return tuple(scalars.value(s, shape_of(self.outer)) for s in self.stage.body)

    def store(self, blocks: Blocks) -> None:
        """Stores the components that are results of the kernel."""
        mapping = positions(self.outer, shape_of(self.outer))
        for block, targets in zip_equal(blocks, self.stage.stores):
            for target in targets:
                buffer = self.context.buffers[target.buffer]
                if not buffer.is_local:
                    offset = substitute(target.offset, mapping)
                    guards = (*guards_at(target.guards, mapping), *limits(self.outer, mapping))
                    self.emitter.add(Store(buffer, (offset,), block, guards))

    def hold(self, number: int, blocks: Blocks) -> None:
        """Stores in scratch the components of stage `number` that later nests read."""
        context = self.context
        for component, block in enumerate(blocks):
            ref = StageRef(number, component)
            place = home(context.group, context.resident, context.regions, ref, self.outer)
            if place is not None:
                guards = limits(self.outer, positions(self.outer, block.shape))
                self.emitter.add(Store(*place, block, guards))

    def continued(self, start: Blocks) -> Blocks:
        """Returns the sums so far (`start`) plus the reduction over the current K-blocks."""
        # The sum of each scaled group has accumulators of its own already.
        go_on = self._added if self._rounds() and not self.scaled else self._reduce_loops
        return go_on(self._reduce_order(), [], start)

    def _reduce_order(self) -> list[Var]:
        """Returns the reduced loops, outermost first; the vector loop is the last."""
        return sorted(self.stage.reduce, key=lambda v: v.name == self.nest.vector)

    def _region(self, var: Var) -> TileRange:
        return self.blocks.get(var) or self.context.k_blocks.get(var) or everything(var)

    # ---- reductions ---------------------------------------------------------------------------

    def _sums(self, loops: list[Var], spans: list[BlockRange]) -> Blocks:
        """Returns the reduction over `loops`, with accumulators that start at the identity.

        `spans` has the current blocks of the other reduced loops, which are outside of `loops`.
        """
        return self._reduce_loops(loops, spans, self.identities())

    def _added(self, loops: list[Var], spans: list[BlockRange], carried: Blocks) -> Blocks:
        """Returns `carried` combined with the reduction over `loops`, which has new
        accumulators."""
        return self._combine(carried, self._sums(loops, spans))

    def _rounds(self) -> bool:
        """Returns True if the sum may be divided among accumulators, which changes its rounding.

        It may be divided for a contraction of floats in which both factors vary along the sum, and
        each factor has a result loop that the other does not have.  Other sums add their terms in
        the order of memory, as ONNX Runtime does: some models subtract two sums, which amplifies
        differences of rounding.
        """
        if self.factors is None or not self.stage.body[0].dtype.is_float:
            return False
        summed = frozenset(self.stage.reduce)
        a, b = self.varies_with(self.factors.a), self.varies_with(self.factors.b)
        return bool(a & summed and b & summed) and a - summed != b - summed

    def _part(self, loops: Sequence[Var]) -> int:
        """Returns the number of elements of the first loop that one accumulator sums; 0 if it sums
        all."""
        # The sum over scaled loops has accumulators of its own.
        loops = [v for v in loops if v not in self.scaled] or loops
        sizes = [as_int(self._region(v).size) for v in loops]
        if loops[0] in self.blocks or not self._rounds() or None in sizes:
            return 0
        step, lanes = self.nest.block(loops[0].name), 1
        if loops[-1].name == self.nest.vector:
            lanes = self.nest.block(self.nest.vector)
        size, terms = sizes[0] or 0, prod(n or 0 for n in sizes)
        if terms <= TERMS * lanes or terms > TERMS * lanes * size:
            return 0
        count = ceil(terms / (TERMS * lanes))
        equal = (n for n in range(count, 2 * count) if size % (n * step) == 0)
        return ceil(size / next(equal, count) / step) * step

    def _in_parts(
        self, part: int, loops: list[Var], spans: list[BlockRange], carried: Blocks
    ) -> Blocks:
        """Returns `carried` plus the sum over `loops`.

        The first loop is cut into parts of `part` elements, and each part has accumulators of its
        own.
        """
        var, region = loops[0], self._region(loops[0])
        size = as_int(region.size)
        assert size is not None
        full_size = size - size % part

        def added(base: Index, count: int, sums: Blocks) -> Blocks:
            blocks = {**self.blocks, var: TileRange(var, base, const(count))}
            return StageLowering(self.context, blocks)._added(loops, spans, sums)

        counter = self.emitter.counter(region.size)
        (loop,) = free_vars(counter)
        args, results = (self.emitter.like(carried) for _ in range(2))
        with self.emitter.body() as body:
            yields = added(region.base + counter, part, args)
        parts = (carried, args, tuple(body), yields, results)
        start, stop = self._needed(region, spans, const(0), const(full_size), part)
        self.emitter.add(TileLoop(loop, start, stop, part, *parts))
        if not size % part:
            return results
        return added(region.base + full_size, size % part, results)

    def _reduce_loops(self, loops: list[Var], spans: list[BlockRange], carried: Blocks) -> Blocks:
        if not loops:
            return self._accumulate(spans, carried)
        if part := self._part(loops):
            return self._in_parts(part, loops, spans, carried)
        if (*loops,) == self.scaled:
            sums = self._looped(loops, spans, self._starts(spans))
            return self._plus_scaled(carried, sums, spans)
        return self._looped(loops, spans, carried)

    def _looped(self, loops: list[Var], spans: list[BlockRange], carried: Blocks) -> Blocks:
        """Returns `carried` plus the reduction over `loops`, in a loop over the first of them."""
        var, inner_loops = loops[0], loops[1:]
        region, block = self._region(var), self.nest.block(var.name)
        lanes = block > 1 and var.name == self.nest.vector
        if lanes and as_int(region.size) is None and self.nest.vectors is not None:
            return self._lanes(self.nest.vectors, inner_loops, spans, carried, region, block)

        def reduced(base: Index, size: int, sums: Blocks) -> Blocks:
            span = BlockRange(var, region.base + base, size, block > 1)
            return self._reduce_loops(inner_loops, [*spans, span], sums)

        for start, stop, step, looped in _cuts(region.size, block):
            position = self.emitter.counter(region.size) if looped else start
            inits = self.identities(step) if lanes else carried
            trip = partial(reduced, position, step)
            if looped and not lanes and self._is_short(var, stop - start):
                result = carried
                for place in range(as_int(start) or 0, as_int(stop) or 0, step):
                    result = reduced(const(place), step, result)
            elif looped:
                start, stop = self._needed(region, spans, start, stop, step)
                result = self.emitter.carry(position, start, stop, step, inits, trip)
            else:
                result = trip(inits)
            carried = self._combine(carried, self._folded(result, 1)) if lanes else result
        return carried

    def _starts(self, spans: list[BlockRange]) -> Blocks:
        """Returns accumulators for the terms that share a scale at the point `spans`; i32 for
        bytes."""
        if self.factors is None or self.factors.start is None:
            return self.identities()
        axes = [s for s in self.outer if s.axis]
        fixed = [*(s for s in self.outer if not s.axis), *spans]
        return (self._factor(self.factors.start, axes, fixed),)

    def _plus_scaled(self, carried: Blocks, sums: Blocks, spans: list[BlockRange]) -> Blocks:
        """Returns `carried` plus the products of `sums` with their scales at the point `spans`."""
        assert self.factors is not None
        scale = self.factors.scale
        assert scale is not None
        axes = [s for s in self.outer if s.axis]
        varying = self.varies_with(scale)
        scale_axes = [s for s in axes if s.var in varying]
        fixed = [*(s for s in self.outer if s not in scale_axes), *spans]
        factor = self._factor(scale, scale_axes, fixed)
        labels, scale_labels = (tuple(s.var.name for s in a) for a in (axes, scale_axes))
        (out,) = self.emitter.like(carried)
        (total,) = sums
        if total.dtype is I32:
            total = self.emitter.fresh(F32, total.shape)
            self.emitter.add(Compute(total, cast(argument(0, I32), F32), sums))
        operands = (carried[0], total, factor)
        self.emitter.add(Contract(out, *operands, labels, labels, scale_labels))
        return (out,)

    def _needed(
        self, region: TileRange, spans: Sequence[BlockRange], start: Index, stop: Index, step: int
    ) -> tuple[Index, Index]:
        """Returns the start and the stop of a loop of `step` elements, without steps whose terms
        are all zero."""
        firsts, stops = needed_terms(self.stage, region.var, ends_of((*self.outer, *spans)))
        start = reduce(maximum, ((f - region.base) // step * step for f in firsts), start)
        stop = reduce(minimum, (ceildiv(s - region.base, step) * step for s in stops), stop)
        return start, stop

    def _lanes(
        self,
        vectors: TailVectors,
        inner_loops: list[Var],
        spans: list[BlockRange],
        carried: Blocks,
        region: TileRange,
        block: int,
    ) -> Blocks:
        """Returns a reduction along a symbolic vector loop, which is cut into the rungs of a
        ladder.

        The accumulators have a lane for each element of a block.  Each rung continues the
        accumulators of the rung before it.  So lanes are combined with each other only once, at the
        end.
        """
        sums, width = self.identities(block), block
        for rung in ladder(region.size, block, vectors):
            # All block sizes are powers of two times the vector's lanes, so the block size of each
            # rung divides the block size of the rung before it.
            sums, width = self._narrowed(sums, width // rung.step), rung.step
            counter = counter_of(self.emitter, region, rung)
            trip = partial(
                self._reduce_loops, inner_loops, [*spans, block_at(region, rung, counter, True)]
            )
            sums = self.emitter.carry(counter, rung.start, rung.stop, rung.step, sums, trip)
        return self._combine(carried, self._folded(sums, 1))

    def _narrowed(self, values: Blocks, parts: int) -> Blocks:
        """Returns `values` with the last axis cut into `parts` parts, which are combined into
        one."""
        if parts == 1:
            return values
        *outer, width = values[0].shape
        shape = (*outer, parts, width // parts)
        return self._folded(self._reshaped(values, shape), 1)

    def _reshaped(self, values: Blocks, shape: tuple[int, ...]) -> Blocks:
        results = tuple(self.emitter.fresh(v.dtype, shape) for v in values)
        order = tuple(range(len(values[0].shape)))
        self.emitter.add(*(Relayout(r, v, order) for r, v in zip_equal(results, values)))
        return results

    def _is_short(self, var: Var, size: Index) -> bool:
        """Returns True if a loop is so short that it is unrolled.

        In a contraction, only loops over the levels of a byte are unrolled.
        """
        may = self.factors is None or (self.factors.start is not None and var in self.scaled)
        return may and (as_int(size) or SHORT + 1) <= SHORT

    def identities(self, *lanes: int) -> Blocks:
        """Returns accumulators that hold the identity; `lanes` are the sizes of additional last
        axes."""
        return identity_blocks(self.emitter, self.stage, (*shape_of(self.outer), *lanes))

    def _combine(self, old: Blocks, new: Blocks) -> Blocks:
        outs = self.emitter.like(old)
        pairs = zip_equal(outs, combinations(self.stage))
        self.emitter.add(*(Compute(out, body, (*old, *new)) for out, body in pairs))
        return outs

    def _accumulate(self, reduce: list[BlockRange], carried: Blocks) -> Blocks:
        if self.context.along:
            context = self._context_along(reduce)
            return StageLowering(context, self.blocks)._added_up(reduce, carried)
        return self._added_up(reduce, carried)

    def _context_along(self, reduce: list[BlockRange]) -> Surroundings:
        """Emits the pointwise stages that are computed along the reduction, at its current point.

        Returns the reduction's context, in which `ready` has their results.
        """
        context, spans = self.context, (*self.outer, *reduce)
        stage_ready, ready = dict(context.ready), dict(context.ready)
        for pointwise in context.along:
            outer = pointwise.spans(spans)
            inner_context = replace(
                context,
                stage=pointwise.stage,
                nest=pointwise.nest,
                outer=outer,
                ready=dict(stage_ready),
                along=(),
            )
            if pointwise.nest.ahead:
                next_row(inner_context, outer[-1])
            lowering = StageLowering(inner_context)
            blocks = lowering.run()
            lowering.store(blocks)
            lowering.hold(pointwise.number, blocks)
            for component, block in enumerate(blocks):
                ref = StageRef(pointwise.number, component)
                stage_ready[ref] = Ready(block, frozenset(s.var for s in outer if s.axis))
                ready[ref] = Ready(block, frozenset(s.var for s in spans if s.axis))
        return replace(context, ready=ready)

    def _added_up(self, reduce: list[BlockRange], carried: Blocks) -> Blocks:
        if self.factors is not None:
            return self._contract(self.factors, reduce, carried[0])
        vector = [s for s in reduce if s.axis and s.var.name == self.nest.vector]
        extra = [s for s in reduce if s.axis and s not in vector]
        # A block has the axes of the results, then reduced axes, then the lanes of the vector loop.
        spans = [*self.outer, *extra, *vector, *(s for s in reduce if not s.axis)]
        scalars = CoreStageScalars(self.context, spans)
        scalars.fills = self._fills() if any(s.stop is not None for s in vector) else {}
        values = tuple(scalars.value(s, shape_of(spans)) for s in self.stage.body)
        filled = [
            s in scalars.fills and scalars.block(s) is v
            for s, v in zip_equal(self.stage.body, values)
        ]
        neutral = [None if f else n for f, n in zip_equal(filled, identities(self.stage))]
        values = self._without_ends(values, neutral, spans, vector)
        if extra:
            values = self._folded(values, len(extra))
        if self.nest.ahead and len(vector) == 1:
            next_row(self.context, vector[0])
        return self._combine(carried, values)

    def _folded(self, values: Blocks, count: int) -> Blocks:
        """Returns `values` reduced along the `count` axes after the axes of the results."""
        assert self.stage.monoid is not None
        first = len(shape_of(self.outer))
        axes = tuple(range(first, first + count))
        shape = values[0].shape
        one = tuple(1 if n in axes else size for n, size in enumerate(shape))
        reduced = tuple(self.emitter.fresh(v.dtype, one) for v in values)
        self.emitter.add(Reduce(reduced, self.stage.monoid, values, axes))
        return self._reshaped(reduced, (*shape[:first], *shape[first + count :]))

    def _without_ends(
        self,
        values: Blocks,
        neutral: Sequence[Scalar | None],
        spans: Sequence[BlockRange],
        summed: Sequence[BlockRange],
    ) -> Blocks:
        """Returns `values`, blocks over `spans`, with neutral elements beyond the ends of `summed`.

        `neutral` has a scalar for each block, or None if the block is neutral there already.
        """
        for span in summed:
            if span.stop is not None:
                behind = positions(spans, values[0].shape)[span.var] - span.stop
                inside = apply("lt", index_value(behind, I32), literal(0, I32))
                ended = []
                for scalar, block in zip_equal(neutral, values):
                    ended.append(block)
                    if scalar is not None:
                        body = apply("select", inside, argument(0, block.dtype), scalar)
                        ended[-1] = self.emitter.fresh(block.dtype, block.shape)
                        self.emitter.add(Compute(ended[-1], body, (block,)))
                values = tuple(ended)
        return values

    def _fills(self) -> dict[Read, bool | int | float]:
        """Maps reads to the value that they load beyond the end of a reduced loop: the identity of
        the monoid.

        A read is in the map if a component of the body is the read alone, if nothing else uses the
        read, and if it has no guards.
        """
        body = self.stage.body
        return {
            scalar: neutral.value
            for scalar, neutral in zip_equal(body, identities(self.stage))
            if isinstance(scalar, Read)
            and isinstance(neutral, Const)
            and body.count(scalar) == 1
            and not (scalar in self.stage.accesses and self.stage.accesses[scalar].guards)
            and self.context.place(scalar) is not None
        }

    # ---- contractions -------------------------------------------------------------------------

    def varies_with(self, scalar: Scalar) -> frozenset[Var]:
        """Returns the loops that a factor varies with.

        A read from scratch also varies with each loop along which the scratch has an axis.
        """
        places = [self.context.place(s) for s in walk(scalar) if isinstance(s, Read)]
        return depends(self.stage, scalar).union(*(p.varies for p in places if p))

    def _contract(self, factors: Factors, reduce: list[BlockRange], acc: Block) -> Blocks:
        """Emits one step of a contraction as a `Contract`, and returns the new accumulator.

        If the vector loop is summed, the accumulator has a partial sum for each lane.
        """
        vector = [s for s in reduce if s.axis and s.var.name == self.nest.vector]
        summed = [s for s in reduce if s.axis and s not in vector]
        fixed = [s for s in reduce if not s.axis]
        out_spans = [*(s for s in self.outer if s.axis), *vector]
        # Prefetches come before the loads, so that loaded values do not occupy registers meanwhile.
        if self.nest.ahead:
            next_k_block(self.context, reduce)
        operands = []
        factor_loops = self.varies_with(factors.a) | self.varies_with(factors.b)
        idle = {s.var for s in out_spans} - factor_loops
        # Beyond the end of the sum, both factors must be zero, because infinity times zero is NaN.
        ended = {s.var for s in vector if s.stop is not None}
        for number, factor in enumerate(factors.operands):
            varies = self.varies_with(factor) | ended | (idle if number == 0 else set())
            outer = [s for s in out_spans if s.var in varies]
            has_vector = bool(outer) and outer[-1].var.name == self.nest.vector
            # Summed axes come directly before the vector lanes, and after all other axes.
            axes = [*outer[:-1], *summed, outer[-1]] if has_vector else [*outer, *summed]
            fixed_spans = [s for s in self.outer if s not in axes]
            fixed_spans += [*fixed, *(s for s in vector if s not in axes)]
            block = self._factor(factor, axes, fixed_spans)
            # A load has zeros in place of elements beyond the end of a loop.
            if not isinstance(factor, Read) or factor.fill or self.context.place(factor) is None:
                zero = (literal(0, block.dtype),)
                (block,) = self._without_ends((block,), zero, axes, vector)
            operands.append((block, tuple(s.var.name for s in axes)))
        (a, a_axes), (b, b_axes) = operands
        labels = tuple(s.var.name for s in out_spans)
        if self.nest.vector in a_axes and self.nest.vector not in b_axes:
            a, a_axes, b, b_axes = b, b_axes, a, a_axes
        (out,) = self.emitter.like((acc,))
        self.emitter.add(Contract(out, acc, a, b, labels, a_axes, b_axes))
        return (out,)

    def _factor(
        self, factor: Scalar, axes: list[BlockRange], fixed_spans: list[BlockRange]
    ) -> Block:
        """Returns the block of a factor over `axes`, at the first element of each of
        `fixed_spans`."""
        spans, shape = [*axes, *map(flat, fixed_spans)], shape_of(axes)
        packed = self.context.packed
        if packed is None or packed.factor is not factor:
            return CoreStageScalars(self.context, spans).value(factor, shape)
        block = self.emitter.fresh(packed.buffer.dtype, shape)
        offset = packed.offset(positions(spans, shape), self.context.starts)
        self.emitter.add(Load(block, packed.buffer, (offset,)))
        return block


def _cuts(size: Index, block: int) -> list[tuple[Index, Index, int, bool]]:
    """Returns the ranges into which a reduction of `size` elements is cut.

    A range is (start, stop, step, looped).  `looped` is True if it has several steps, and so needs
    a loop.
    """
    static_size = as_int(size)
    if static_size is None:
        return [(r.start, r.stop, r.step, True) for r in ladder(size, block)]
    full_size = const(static_size - static_size % block)
    cuts = (
        (const(0), full_size, block, static_size > block),
        (full_size, size, static_size % block, False),
    )
    return [part for part in cuts if part[0] is not part[1]]
