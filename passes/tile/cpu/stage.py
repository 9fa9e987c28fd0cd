"""One stage on one set of spans: its statements and its result blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod
from typing import TypeAlias

from tcc.ir.expr.scalar import Cast, Read, Scalar, StageRef, walk
from tcc.ir.index import Index, Var, as_int, const, free_vars, substitute
from tcc.ir.tile import (
    Block,
    Blocks,
    Compute,
    Contract,
    Indirect,
    Load,
    Loop,
    MemorySpace,
    Reduce,
    Relayout,
    Stmts,
    Store,
    TileBuffer,
)
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.ir.types import BF16, I8, U8, DType
from tcc.passes.tile.cpu.body import BodyEmitter, Place, Ready
from tcc.passes.tile.cpu.packing import Packed, starts_of
from tcc.passes.tile.cpu.prefetch import next_results, next_row, next_run
from tcc.passes.tile.cpu.ranges import (
    BlockRange,
    Regions,
    TileRange,
    everything,
    flat,
    guards_at,
    ladder,
    positions,
)
from tcc.passes.tile.cpu.scratch import Held
from tcc.passes.tile.monoids import combinations, identities
from tcc.record import record
from tcc.schedule.cpu.schedule import Nest
from tcc.schedule.nest import Factors, depends, product, reads_here

# Terms of a contraction of floats that share an accumulator: the rounding error of a sum in blocks
# grows with the root of the block and of the number of blocks (Higham, "The accuracy of floating
# point summation", 1993), that of one accumulator with the root of the whole, and faster where the
# terms have one sign.
TERMS = 384


def shape_of(spans: Sequence[BlockRange]) -> tuple[int, ...]:
    """The shape of a block over `spans`."""
    return tuple(s.size for s in spans if s.axis)


@record
class Surroundings:
    """What a stage is computed in: its block of the nest's loops (`outer`), what the unit covers
    (`regions`), the part of split reductions at hand (`runs`), memory, and the blocks that earlier
    stages of the nest just made (`ready`).  `fresh` makes a block, `counter` a loop variable.
    `packed` is the stage's factor that waits in scratch."""

    group: TileGroup
    stage: GroupStage
    nest: Nest
    outer: tuple[BlockRange, ...]
    regions: Regions
    runs: Regions
    buffers: tuple[TileBuffer, ...]
    held: Mapping[StageRef, Held]
    ready: Mapping[StageRef, Ready]
    fresh: Callable[[DType, tuple[int, ...]], Block]
    counter: Callable[[Index], Index]
    packed: Packed | None = None

    def place(self, node: Read) -> Place | None:
        """The memory of a read; None where it is a block in `ready`."""
        access = self.stage.accesses.get(node)
        source = node.source
        if isinstance(source, int):
            assert access is not None
            at = access.offset
            return Place(
                self.buffers[access.buffer], lambda m: substitute(at, m), frozenset(free_vars(at))
            )
        if source in self.ready and reads_here(self.group, self.stage, node):
            return None
        held = self.held[source]
        inner = const(0) if access is None else access.offset
        varies = frozenset((*free_vars(inner), *(v for v, _ in held.steps)))
        return Place(
            held.buffer,
            lambda m: held.offset(m, substitute(inner, m), self.regions),
            varies,
        )


_Result: TypeAlias = tuple[Stmts, Blocks]


class StageLowering:
    """Computes one stage on one block of the nest's loops."""

    def __init__(self, around: Surroundings, blocks: Regions | None = None) -> None:
        """`blocks` are the parts of reductions that one accumulator sums."""
        self.around, self.stage, self.nest = around, around.stage, around.nest
        self.blocks = blocks or {}
        self.outer = list(around.outer)
        self.factors = product(around.stage)

    def run(self) -> _Result:
        """Statements and the blocks of the stage's components."""
        if self.stage.monoid is None:
            emitter = BodyEmitter(self.around, self.outer)
            emitter.share(self.stage.body)
            shape = shape_of(self.outer)
            blocks = tuple(emitter.value(s, shape) for s in self.stage.body)
            return [*next_results(self.around, self.outer), *emitter.stmts], blocks
        return self._sums(self._reduce_order(), [])

    def stores(self, blocks: Blocks) -> Stmts:
        """The stores of the components that are results of the kernel."""
        stmts: Stmts = []
        mapping = positions(self.outer, shape_of(self.outer))
        for block, targets in zip(blocks, self.stage.stores, strict=True):
            for target in targets:
                buffer = self.around.buffers[target.buffer]
                if buffer.scope is MemorySpace.LOCAL:
                    continue
                offset = substitute(target.offset, mapping)
                stmts.append(Store(buffer, (offset,), block, guards_at(target, mapping)))
        return stmts

    def continued(self, start: Blocks) -> _Result:
        """The reduction over the runs at hand, on top of sums so far."""
        if self._rounds():
            return self._added(self._reduce_order(), [], start)
        return self._reduce_loops(self._reduce_order(), [], start)

    def _reduce_order(self) -> list[Var]:
        """The vector loop goes innermost."""
        return sorted(self.stage.reduce, key=lambda v: v.name == self.nest.vector)

    def _region(self, var: Var) -> TileRange:
        return self.blocks.get(var) or self.around.runs.get(var) or everything(var)

    # ---- reductions ---------------------------------------------------------------------------

    def _sums(self, loops: list[Var], done: list[BlockRange]) -> _Result:
        """Accumulators start at the identity and are carried through the loops."""
        stmts, start = self.identities()
        more, blocks = self._reduce_loops(loops, done, start)
        return stmts + more, blocks

    def _added(self, loops: list[Var], done: list[BlockRange], carried: Blocks) -> _Result:
        """Sums of their own over `loops`, combined with what was carried so far."""
        stmts, sums = self._sums(loops, done)
        more, out = self._combine(carried, sums)
        return stmts + more, out

    def _rounds(self) -> bool:
        """Whether the reduction is a contraction of floats: both factors vary along the sum, and
        differently across results.  Other sums keep the order of memory, as ONNX Runtime's do:
        models that take the difference of two of them amplify any other rounding."""
        if self.factors is None or not self.stage.body[0].dtype.is_float:
            return False
        summed = frozenset(self.stage.reduce)
        a, b = self.varies_with(self.factors.a), self.varies_with(self.factors.b)
        return bool(a & summed and b & summed) and a - summed != b - summed

    def _part(self, loops: Sequence[Var]) -> int:
        """Elements of the first loop whose terms one accumulator sums; 0 where it sums all."""
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
        self, part: int, loops: list[Var], done: list[BlockRange], carried: Blocks
    ) -> _Result:
        """Parts of the first loop, each with accumulators of its own."""
        var, region = loops[0], self._region(loops[0])
        size = as_int(region.size)
        assert size is not None
        whole = size - size % part

        def added(base: Index, count: int, old: Blocks) -> _Result:
            inner = StageLowering(
                self.around, {**self.blocks, var: TileRange(var, base, const(count))}
            )
            return inner._added(loops, done, old)

        counter = self.around.counter(region.size)
        (loop,) = free_vars(counter)
        args, results = (
            tuple(self.around.fresh(b.dtype, b.shape) for b in carried) for _ in range(2)
        )
        body, yields = added(region.base + counter, part, args)
        stmts: Stmts = [
            Loop(loop, const(0), const(whole), part, carried, args, tuple(body), yields, results)
        ]
        if not size % part:
            return stmts, results
        more, out = added(region.base + whole, size % part, results)
        return stmts + more, out

    def _reduce_loops(self, loops: list[Var], done: list[BlockRange], carried: Blocks) -> _Result:
        if not loops:
            return self._accumulate(done, carried)
        if part := self._part(loops):
            return self._in_parts(part, loops, done, carried)
        var, rest = loops[0], loops[1:]
        block = self.nest.block(var.name)
        lanes_kept = block > 1 and var.name == self.nest.vector
        region = self._region(var)
        size, known = region.size, as_int(region.size)
        tiled = block > 1
        if known == 0:
            return [], carried
        if known is not None and known <= block:
            span = BlockRange(var, region.base, known, tiled)
            return self._maybe_folded(lanes_kept, rest, done, span, carried)
        if known is None:
            stmts: Stmts = []
            for start, stop, step in ladder(size, block):
                more, carried = self._reduce_loop(
                    region, start, stop, step, rest, done, carried, lanes_kept
                )
                stmts += more
            return stmts, carried
        left = known % block
        stmts, carried = self._reduce_loop(
            region, const(0), const(known - left), block, rest, done, carried, lanes_kept
        )
        if left:
            span = BlockRange(var, region.base + (known - left), left, tiled)
            more, carried = self._maybe_folded(lanes_kept, rest, done, span, carried)
            stmts += more
        return stmts, carried

    def _reduce_loop(
        self,
        region: TileRange,
        start: Index,
        stop: Index,
        step: int,
        rest: list[Var],
        done: list[BlockRange],
        carried: Blocks,
        lanes_kept: bool,
    ) -> _Result:
        counter = self.around.counter(region.size)
        (loop,) = free_vars(counter)
        tiled = self.nest.block(region.var.name) > 1
        span = BlockRange(region.var, region.base + counter, step, tiled)
        stmts: Stmts = []
        inits = carried
        if lanes_kept:
            stmts, inits = self.identities(step)
        args = tuple(self.around.fresh(b.dtype, b.shape) for b in inits)
        body, yields = self._reduce_loops(rest, [*done, span], args)
        results = tuple(self.around.fresh(b.dtype, b.shape) for b in inits)
        stmts.append(Loop(loop, start, stop, step, inits, args, tuple(body), yields, results))
        if not lanes_kept:
            return stmts, results
        more, folded = self._fold_lanes(results, carried)
        return stmts + more, folded

    def _maybe_folded(
        self,
        lanes_kept: bool,
        rest: list[Var],
        done: list[BlockRange],
        span: BlockRange,
        carried: Blocks,
    ) -> _Result:
        """One block of a reduction loop that needs no loop."""
        if not lanes_kept:
            return self._reduce_loops(rest, [*done, span], carried)
        stmts, inits = self.identities(span.size)
        body, lanes_done = self._reduce_loops(rest, [*done, span], inits)
        more, folded = self._fold_lanes(lanes_done, carried)
        return stmts + body + more, folded

    def identities(self, *lanes: int) -> _Result:
        """Accumulators; with an axis for so many lanes of the vector loop, if given."""
        shape = (*shape_of(self.outer), *lanes)
        scalars = identities(self.stage)
        blocks = tuple(self.around.fresh(s.dtype, shape) for s in scalars)
        return [Compute(b, s, ()) for b, s in zip(blocks, scalars, strict=True)], blocks

    def _fold_lanes(self, blocks: Blocks, carried: Blocks) -> _Result:
        """Reduces the lane axis and combines the result with what was carried so far."""
        stmts, folded = self._folded(blocks, 1)
        more, combined = self._combine(carried, folded)
        return stmts + more, combined

    def _combine(self, old: Blocks, new: Blocks) -> _Result:
        outs = tuple(self.around.fresh(b.dtype, b.shape) for b in old)
        pairs = zip(outs, combinations(self.stage), strict=True)
        return [Compute(out, body, (*old, *new)) for out, body in pairs], outs

    def _accumulate(self, reduce: list[BlockRange], carried: Blocks) -> _Result:
        if self.factors is not None:
            return self._contract(reduce, carried[0])
        vector = [s for s in reduce if s.axis and s.var.name == self.nest.vector]
        extra = [s for s in reduce if s.axis and s not in vector]
        # Axes of the block: the outer ones, reduction blocks to fold, the vector lanes last.
        spans = [*self.outer, *extra, *vector, *(s for s in reduce if not s.axis)]
        emitter = BodyEmitter(self.around, spans)
        shape = shape_of(spans)
        values = tuple(emitter.value(s, shape) for s in self.stage.body)
        stmts = emitter.stmts
        if extra:
            more, values = self._folded(values, len(extra))
            stmts += more
        if self.nest.ahead and len(vector) == 1:
            stmts += next_row(self.around, self.outer, vector[0])
        more, blocks = self._combine(carried, values)
        return stmts + more, blocks

    def _folded(self, values: Blocks, count: int) -> _Result:
        """Blocks without the `count` axes behind those of the results, reduced along them."""
        assert self.stage.monoid is not None
        first = len(shape_of(self.outer))
        axes = tuple(range(first, first + count))
        kept = tuple(
            self.around.fresh(
                v.dtype, tuple(1 if n in axes else size for n, size in enumerate(v.shape))
            )
            for v in values
        )
        flat = tuple(
            self.around.fresh(v.dtype, (*v.shape[:first], *v.shape[first + count :]))
            for v in values
        )
        order = tuple(range(len(values[0].shape)))
        stmts: Stmts = [Reduce(kept, self.stage.monoid, values, axes)]
        stmts += [Relayout(f, k, order) for f, k in zip(flat, kept, strict=True)]
        return stmts, flat

    # ---- contractions -------------------------------------------------------------------------

    def varies_with(self, scalar: Scalar) -> frozenset[Var]:
        """The loops a factor varies with, those of a unit's scratch included."""
        places = [self.around.place(s) for s in walk(scalar) if isinstance(s, Read)]
        return depends(self.stage, scalar).union(*(p.varies for p in places if p))

    def _hints(self, reduce: list[BlockRange]) -> Stmts:
        """What is to be asked for ahead in one step of a sum of products."""
        spans = [flat(s) for s in (*self.outer, *reduce)]

        def chosen(node: Read) -> tuple[Indirect, Stmts]:
            emitter = BodyEmitter(self.around, spans)
            return emitter.chosen(node), emitter.stmts

        return next_run(self.around, self.outer, reduce, chosen)

    def _contract(self, reduce: list[BlockRange], acc: Block) -> _Result:
        """One step of a sum of products as a `Contract`; the vector loop's lanes stay in `out`."""
        assert self.factors is not None
        vector = [s for s in reduce if s.axis and s.var.name == self.nest.vector]
        summed = [s for s in reduce if s.axis and s not in vector]
        fixed = [s for s in reduce if not s.axis]
        out_spans = [*(s for s in self.outer if s.axis), *vector]
        # Ahead of the loads: those before a hint would stay in registers from there to their use.
        stmts = self._hints(reduce) if self.nest.ahead else []
        operands = []
        both = self.varies_with(self.factors.a) | self.varies_with(self.factors.b)
        idle = {s.var for s in out_spans} - both
        for number, factor in enumerate(_multiplied(self.factors)):
            varies = self.varies_with(factor) | (idle if number == 0 else set())
            outer = [s for s in out_spans if s.var in varies]
            has_vector = bool(outer) and outer[-1].var.name == self.nest.vector
            # k goes before the vector lanes and after everything else.
            axes = [*outer[:-1], *summed, outer[-1]] if has_vector else [*outer, *summed]
            rest = [s for s in self.outer if s not in axes]
            rest += [*fixed, *(s for s in vector if s not in axes)]
            more, block = self._factor(factor, axes, rest)
            stmts += more
            operands.append((block, tuple(s.var.name for s in axes)))
        (a, a_axes), (b, b_axes) = operands
        labels = tuple(s.var.name for s in out_spans)
        lanes_of = next((n for n in labels if n == self.nest.vector), None)
        if lanes_of in a_axes and lanes_of not in b_axes:
            a, a_axes, b, b_axes = b, b_axes, a, a_axes
        out = self.around.fresh(acc.dtype, acc.shape)
        stmts.append(Contract(out, acc, a, b, labels, a_axes, b_axes))
        return stmts, (out,)

    def _factor(
        self, factor: Scalar, axes: list[BlockRange], rest: list[BlockRange]
    ) -> tuple[Stmts, Block]:
        """A factor on `axes`, at the first place of each of `rest`."""
        spans, shape = [*axes, *map(flat, rest)], shape_of(axes)
        packed = self.around.packed
        if packed is None or packed.factor is not factor:
            emitter = BodyEmitter(self.around, spans)
            block = emitter.value(factor, shape)
            return emitter.stmts, block
        starts = starts_of({s.var: s for s in self.outer}, self.around.runs)
        block = self.around.fresh(packed.buffer.dtype, shape)
        at = packed.offset(positions(spans, shape), starts)
        return [Load(block, packed.buffer, (at,))], block


def _multiplied(factors: Factors) -> tuple[Scalar, Scalar]:
    """What a Contract multiplies: of casts from bf16 or from bytes on both sides, what was cast,
    for products are exact in f32 and i32 and a processor may multiply such itself."""
    a, b = factors.a, factors.b
    if not isinstance(a, Cast) or not isinstance(b, Cast):
        return a, b
    kinds = {a.arg.dtype, b.arg.dtype}
    return (a.arg, b.arg) if kinds == {BF16} or kinds <= {I8, U8} else (a, b)
