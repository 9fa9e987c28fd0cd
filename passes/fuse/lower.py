"""Binds a schedule to a tile group: the tile kernel.

    y[i, j] = sum(k) a[i, k] * b[k, j]          parallel(j: 12, i: 21)
    blocks i 6, j 64, k 4                   ->    for k: a block [6, 4], b block [4, 64]
                                                  store y[6*i + l0, 64*j + l1]

Requires a group whose stages read each other at the common iterators or through local buffers.
Establishes static block shapes: the remainder of a loop that its block does not divide becomes
blocks of a smaller size (static extents) or of one element (symbolic ones).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tcc.errors import InternalError
from tcc.ir.expr import MONOIDS, extent
from tcc.ir.group import Access, GroupBuffer, GroupStage, TileGroup
from tcc.ir.index import Index, Var, as_int, ceildiv, const, free_vars, iterator, substitute
from tcc.ir.scalar import (
    Cast,
    IndexValue,
    Read,
    Scalar,
    StageRef,
    argument,
    children,
    rebuild,
    substitute_indices,
    walk,
)
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    If,
    Load,
    Loop,
    Reduce,
    Relayout,
    Scope,
    Stmt,
    Store,
    TileBuffer,
    TileKernel,
)
from tcc.ir.types import BF16, DType
from tcc.passes.fuse.spans import Span, Spans, flat, guards_at, positions
from tcc.schedule.nest import Product, depends, product
from tcc.schedule.schedule import Schedule

_Emit = Callable[[Span], list[Stmt]]


def lower(group: TileGroup, schedule: Schedule) -> TileKernel:
    """The tile kernel of `group` under `schedule`."""
    return _Lowering(group, schedule).kernel()


class _Lowering:
    def __init__(self, group: TileGroup, schedule: Schedule) -> None:
        self.group, self.schedule = group, schedule
        self.count = 0
        # The vector loop is the last axis of every block.
        self.common = sorted(group.common, key=lambda v: v.name in schedule.vectors)
        # Scratch holds one value for each lane of a block of the common loops.
        blocks = ((v, schedule.block(v.name)) for v in self.common)
        self.held_lanes = tuple((v, block) for v, block in blocks if block > 1)
        self.held_count = prod(block for _, block in self.held_lanes)
        # Callers' arrays are aligned to their elements only, and any buffer may be a caller's.
        self.buffers = tuple(
            TileBuffer(f"b{n}", b.dtype, (self._size(b),), b.scope, b.dtype.bytes)
            for n, b in enumerate(group.buffers)
        )

    def _size(self, buffer: GroupBuffer) -> Index:
        local = buffer.scope is Scope.LOCAL
        return buffer.size * self.held_count if local else buffer.size

    def is_local(self, access: Access) -> bool:
        return self.group.buffers[access.buffer].scope is Scope.LOCAL

    def offset(self, access: Access, mapping: Mapping[Var, Index], spans: Spans) -> Index:
        """Where an access lies for iterators as in `mapping`."""
        at = substitute(access.offset, mapping)
        if self.is_local(access):
            for var, block in self.held_lanes:
                at = at * block + (mapping[var] - spans[var].base)
        return at

    def kernel(self) -> TileKernel:
        axes: list[Var] = []
        by_name = {v.name: v for v in self.group.common}
        loops = [by_name[n] for n in (*self.schedule.parallel, *self.schedule.serial)]
        body = self._nest(loops, {}, axes)
        passed = tuple(b for b in self.buffers if b.scope is not Scope.LOCAL)
        local = tuple(b for b in self.buffers if b.scope is Scope.LOCAL)
        return TileKernel(passed, local, self.group.sizes, tuple(axes), tuple(body))

    # ---- loops ----------------------------------------------------------------------------

    def _nest(self, loops: list[Var], spans: Spans, axes: list[Var]) -> list[Stmt]:
        if not loops:
            return self._stages(spans)
        var, rest = loops[0], loops[1:]

        def emit(span: Span) -> list[Stmt]:
            return self._nest(rest, {**spans, var: span}, axes)

        if var.name in self.schedule.parallel:
            return self._parallel(var, axes, emit)
        return self._serial(var, emit)

    def _parallel(self, var: Var, axes: list[Var], emit: _Emit) -> list[Stmt]:
        block, size = self.schedule.block(var.name), extent(var)
        known = as_int(size)
        tiled = block > 1
        if known == 0:
            return []
        if known is not None and known <= block:
            return emit(Span(var, const(0), known, tiled))
        tile = iterator(f"p.{var.name}", ceildiv(size, block))
        (axis,) = free_vars(tile)
        if axis not in axes:
            axes.append(axis)
        if known is not None:
            return self._static_tiles(var, tile, known, block, emit)
        full = Span(var, tile * block, block, tiled)
        if not tiled:
            return emit(full)
        counter = self._iterator(size)
        (loop,) = free_vars(counter)
        tail = emit(Span(var, counter, 1, tiled))
        rest = Loop(loop, tile * block, size, 1, (), (), tuple(tail), (), ())
        return [If(tile * block + (block - 1), size, tuple(emit(full)), (rest,))]

    def _static_tiles(
        self, var: Var, tile: Index, size: int, block: int, emit: _Emit
    ) -> list[Stmt]:
        tiled = block > 1
        count, left = -(-size // block), size % block
        if not left:
            return emit(Span(var, tile * block, block, tiled))
        if var.name in self.schedule.vectors:  # whole vectors first, then the rest
            main, rest, split = block, left, count - 1
        else:  # sizes differ by at most one
            rest, split = divmod(size, count)
            main = rest + 1
        first = Span(var, tile * main, main, tiled)
        second = Span(var, (tile - split) * rest + split * main, rest, tiled)
        return [If(tile, const(split), tuple(emit(first)), tuple(emit(second)))]

    def _serial(self, var: Var, emit: _Emit) -> list[Stmt]:
        """A serial loop without carried values: whole blocks, then the remainder."""
        block, size = self.schedule.block(var.name), extent(var)
        known = as_int(size)
        tiled = block > 1
        if known == 0:
            return []
        if known is not None and known <= block:
            return emit(Span(var, const(0), known, tiled))
        stop = size - size % block
        counter = self._iterator(size)
        (loop,) = free_vars(counter)
        body = emit(Span(var, counter, block, tiled))
        stmts: list[Stmt] = [Loop(loop, const(0), stop, block, (), (), tuple(body), (), ())]
        if known is not None and known % block:
            stmts += emit(Span(var, const(known - known % block), known % block, tiled))
        elif known is None and tiled:
            counter = self._iterator(size)
            (loop,) = free_vars(counter)
            tail = emit(Span(var, counter, 1, tiled))
            stmts.append(Loop(loop, stop, size, 1, (), (), tuple(tail), (), ()))
        return stmts

    # ---- stages -----------------------------------------------------------------------------

    def _stages(self, spans: Spans) -> list[Stmt]:
        stmts: list[Stmt] = []
        ready: dict[StageRef, Block] = {}
        for number, stage in enumerate(self.group.stages):
            inner = [v for v in stage.iters if v not in self.group.common]
            inner.sort(key=lambda v: v.name in self.schedule.vectors)
            held: list[tuple[Block, ...]] = []

            def emit(
                spans: Spans, stage: GroupStage = stage, held: list[tuple[Block, ...]] = held
            ) -> list[Stmt]:
                out, blocks = _StageLowering(self, stage, spans, ready).run()
                held.append(blocks)
                return out

            stmts += self._inner(inner, spans, emit)
            if not inner:
                for component, block in enumerate(held[0]):
                    ready[StageRef(number, component)] = block
        return stmts

    def _inner(
        self, loops: list[Var], spans: Spans, emit: Callable[[Spans], list[Stmt]]
    ) -> list[Stmt]:
        if not loops:
            return emit(spans)
        var = loops[0]
        return self._serial(var, lambda span: self._inner(loops[1:], {**spans, var: span}, emit))

    # ---- names ----------------------------------------------------------------------------

    def block(self, dtype: DType, shape: tuple[int, ...]) -> Block:
        self.count += 1
        return Block(f"v{self.count - 1}", dtype, shape)

    def _iterator(self, size: Index) -> Index:
        self.count += 1
        return iterator(f"k{self.count - 1}", size)

    def reduce_counter(self, size: Index) -> Index:
        return self._iterator(size)


class _StageLowering:
    """One stage on one set of spans: its statements, and its result blocks."""

    def __init__(
        self,
        parent: _Lowering,
        stage: GroupStage,
        spans: Spans,
        ready: Mapping[StageRef, Block],
    ) -> None:
        self.parent, self.stage, self.spans, self.ready = parent, stage, spans, ready
        order = [v for v in parent.common if v in spans]
        inner = [v for v in stage.iters if v in spans and v not in parent.group.common]
        inner.sort(key=lambda v: v.name in parent.schedule.vectors)
        self.outer = [spans[v] for v in (*order, *inner)]
        self.factors = product(stage)

    def run(self) -> tuple[list[Stmt], tuple[Block, ...]]:
        stmts: list[Stmt] = []
        if self.stage.monoid is None:
            emitter = _BodyEmitter(self, self.outer)
            blocks = tuple(emitter.value(s, self._shape(self.outer)) for s in self.stage.body)
            stmts += emitter.stmts
        else:
            stmts, blocks = self._reduction()
        stmts += self._stores(blocks)
        return stmts, blocks

    def _shape(self, spans: Sequence[Span]) -> tuple[int, ...]:
        return tuple(s.size for s in spans if s.axis)

    def held_along(self, accesses: Sequence[Access]) -> set[Var]:
        """The common loops whose lanes have places of their own in one of `accesses`."""
        local = any(map(self.parent.is_local, accesses))
        return {v for v, _ in self.parent.held_lanes} if local else set()

    def _stores(self, blocks: tuple[Block, ...]) -> list[Stmt]:
        stmts: list[Stmt] = []
        shape = self._shape(self.outer)
        mapping = positions(self.outer, shape)
        for block, targets in zip(blocks, self.stage.stores, strict=True):
            for target in targets:
                offset = self.parent.offset(target, mapping, self.spans)
                buffer = self.parent.buffers[target.buffer]
                stmts.append(Store(buffer, (offset,), block, guards_at(target, mapping)))
        return stmts

    # ---- reductions ---------------------------------------------------------------------------

    def _reduction(self) -> tuple[list[Stmt], tuple[Block, ...]]:
        """Accumulators start at the identity and are carried through the reduction's loops."""
        assert self.stage.monoid is not None
        dtypes = tuple(s.dtype for s in self.stage.body)
        stmts: list[Stmt] = []
        start = []
        for scalar in MONOIDS[self.stage.monoid].identity(dtypes):
            block = self.parent.block(scalar.dtype, self._shape(self.outer))
            stmts.append(Compute(block, scalar, ()))
            start.append(block)
        loops = list(self.stage.reduce)
        loops.sort(key=lambda v: v.name in self.parent.schedule.vectors)
        more, blocks = self._reduce_loops(loops, [], tuple(start))
        return stmts + more, blocks

    def _reduce_loops(
        self, loops: list[Var], done: list[Span], carried: tuple[Block, ...]
    ) -> tuple[list[Stmt], tuple[Block, ...]]:
        if not loops:
            return self._accumulate(done, carried)
        var, rest = loops[0], loops[1:]
        block = self.parent.schedule.block(var.name)
        lanes_kept = block > 1 and var.name in self.parent.schedule.vectors
        size, known = extent(var), as_int(extent(var))
        tiled = block > 1
        if known == 0:
            return [], carried
        if known is not None and known <= block:
            span = Span(var, const(0), known, tiled)
            return self._maybe_folded(lanes_kept, rest, done, span, carried)
        stop = size - size % block
        stmts, carried = self._reduce_loop(
            var, const(0), stop, block, rest, done, carried, lanes_kept
        )
        if known is not None and known % block:
            span = Span(var, const(known - known % block), known % block, tiled)
            more, carried = self._maybe_folded(lanes_kept, rest, done, span, carried)
            stmts += more
        elif known is None and tiled:
            more, carried = self._reduce_loop(var, stop, size, 1, rest, done, carried, lanes_kept)
            stmts += more
        return stmts, carried

    def _reduce_loop(
        self,
        var: Var,
        start: Index,
        stop: Index,
        step: int,
        rest: list[Var],
        done: list[Span],
        carried: tuple[Block, ...],
        lanes_kept: bool,
    ) -> tuple[list[Stmt], tuple[Block, ...]]:
        counter = self.parent.reduce_counter(extent(var))
        (loop,) = free_vars(counter)
        tiled = self.parent.schedule.block(var.name) > 1
        span = Span(var, counter, step, tiled)
        stmts: list[Stmt] = []
        inits = carried
        if lanes_kept:
            stmts, inits = self._identity_lanes(step)
        args = tuple(self.parent.block(b.dtype, b.shape) for b in inits)
        body, yields = self._reduce_loops(rest, [*done, span], args)
        results = tuple(self.parent.block(b.dtype, b.shape) for b in inits)
        stmts.append(Loop(loop, start, stop, step, inits, args, tuple(body), yields, results))
        if not lanes_kept:
            return stmts, results
        more, folded = self._fold_lanes(results, carried)
        return stmts + more, folded

    def _maybe_folded(
        self,
        lanes_kept: bool,
        rest: list[Var],
        done: list[Span],
        span: Span,
        carried: tuple[Block, ...],
    ) -> tuple[list[Stmt], tuple[Block, ...]]:
        """One block of a reduction loop that needs no loop."""
        if not lanes_kept:
            return self._reduce_loops(rest, [*done, span], carried)
        stmts, inits = self._identity_lanes(span.size)
        body, lanes_done = self._reduce_loops(rest, [*done, span], inits)
        more, folded = self._fold_lanes(lanes_done, carried)
        return stmts + body + more, folded

    def _identity_lanes(self, size: int) -> tuple[list[Stmt], tuple[Block, ...]]:
        """Accumulators with an axis for the lanes of the vector loop."""
        assert self.stage.monoid is not None
        dtypes = tuple(s.dtype for s in self.stage.body)
        stmts: list[Stmt] = []
        blocks = []
        for scalar in MONOIDS[self.stage.monoid].identity(dtypes):
            block = self.parent.block(scalar.dtype, (*self._shape(self.outer), size))
            stmts.append(Compute(block, scalar, ()))
            blocks.append(block)
        return stmts, tuple(blocks)

    def _fold_lanes(
        self, blocks: tuple[Block, ...], carried: tuple[Block, ...]
    ) -> tuple[list[Stmt], tuple[Block, ...]]:
        """Reduces the lane axis and combines the result with what was carried so far."""
        assert self.stage.monoid is not None
        shape = self._shape(self.outer)
        kept = tuple(self.parent.block(b.dtype, (*shape, 1)) for b in blocks)
        flat = tuple(self.parent.block(b.dtype, shape) for b in blocks)
        stmts: list[Stmt] = [Reduce(kept, self.stage.monoid, blocks, (len(shape),))]
        order = tuple(range(len(shape) + 1))
        stmts += [Relayout(f, k, order) for f, k in zip(flat, kept, strict=True)]
        more, combined = self._combine(carried, flat)
        return stmts + more, combined

    def _combine(
        self, old: tuple[Block, ...], new: tuple[Block, ...]
    ) -> tuple[list[Stmt], tuple[Block, ...]]:
        assert self.stage.monoid is not None
        dtypes = tuple(s.dtype for s in self.stage.body)
        bodies = MONOIDS[self.stage.monoid].combine(dtypes)
        outs = tuple(self.parent.block(b.dtype, b.shape) for b in old)
        return [Compute(o, b, (*old, *new)) for o, b in zip(outs, bodies, strict=True)], outs

    def _accumulate(
        self, reduce: list[Span], carried: tuple[Block, ...]
    ) -> tuple[list[Stmt], tuple[Block, ...]]:
        if self.factors is not None:
            return self._contract(reduce, carried[0])
        vector = [s for s in reduce if s.axis and s.var.name in self.parent.schedule.vectors]
        extra = [s for s in reduce if s.axis and s not in vector]
        # Axes of the block: the outer ones, reduction blocks to fold, the vector lanes last.
        spans = [*self.outer, *extra, *vector, *(s for s in reduce if not s.axis)]
        emitter = _BodyEmitter(self, spans)
        shape = self._shape(spans)
        values = tuple(emitter.value(s, shape) for s in self.stage.body)
        stmts = emitter.stmts
        if extra:
            values, more = self._fold_extra(values, len(extra))
            stmts += more
        more, blocks = self._combine(carried, values)
        return stmts + more, blocks

    def _fold_extra(
        self, values: tuple[Block, ...], count: int
    ) -> tuple[tuple[Block, ...], list[Stmt]]:
        assert self.stage.monoid is not None
        first = len(self._shape(self.outer))
        axes = tuple(range(first, first + count))
        kept = tuple(
            self.parent.block(
                v.dtype, tuple(1 if n in axes else size for n, size in enumerate(v.shape))
            )
            for v in values
        )
        flat = tuple(
            self.parent.block(v.dtype, (*v.shape[:first], *v.shape[first + count :]))
            for v in values
        )
        order = tuple(range(len(values[0].shape)))
        stmts: list[Stmt] = [Reduce(kept, self.stage.monoid, values, axes)]
        stmts += [Relayout(f, k, order) for f, k in zip(flat, kept, strict=True)]
        return flat, stmts

    # ---- contractions -------------------------------------------------------------------------

    def _depends(self, scalar: Scalar) -> frozenset[Var]:
        read = [self.stage.accesses.get(s) for s in walk(scalar) if isinstance(s, Read)]
        return depends(self.stage, scalar) | self.held_along([a for a in read if a])

    def _contract(self, reduce: list[Span], acc: Block) -> tuple[list[Stmt], tuple[Block, ...]]:
        """One step of a sum of products as a `Contract`; the vector loop's lanes stay in `out`."""
        assert self.factors is not None
        vector = [s for s in reduce if s.axis and s.var.name in self.parent.schedule.vectors]
        summed = [s for s in reduce if s.axis and s not in vector]
        fixed = [s for s in reduce if not s.axis]
        out_spans = [*(s for s in self.outer if s.axis), *vector]
        stmts: list[Stmt] = []
        operands = []
        both = self._depends(self.factors.a) | self._depends(self.factors.b)
        idle = {s.var for s in out_spans} - both
        for number, factor in enumerate(_multiplied(self.factors)):
            varies = self._depends(factor) | (idle if number == 0 else set())
            outer = [s for s in out_spans if s.var in varies]
            has_vector = bool(outer) and outer[-1].var.name in self.parent.schedule.vectors
            # k goes before the vector lanes and after everything else.
            axes = [*outer[:-1], *summed, outer[-1]] if has_vector else [*outer, *summed]
            rest = [s for s in self.outer if s not in axes]
            rest += [*fixed, *(s for s in vector if s not in axes)]
            emitter = _BodyEmitter(self, [*axes, *(flat(s) for s in rest)])
            block = emitter.value(factor, self._shape(axes))
            stmts += emitter.stmts
            operands.append((block, tuple(s.var.name for s in axes)))
        (a, a_axes), (b, b_axes) = operands
        labels = tuple(s.var.name for s in out_spans)
        lanes_of = next((n for n in labels if n in self.parent.schedule.vectors), None)
        if lanes_of in a_axes and lanes_of not in b_axes:
            a, a_axes, b, b_axes = b, b_axes, a, a_axes
        out = self.parent.block(acc.dtype, acc.shape)
        stmts.append(Contract(out, acc, a, b, labels, a_axes, b_axes))
        return stmts, (out,)


def _multiplied(factors: Product) -> tuple[Scalar, Scalar]:
    """What a Contract multiplies: of casts from bf16 on both sides, what was cast, for products
    are exact in f32 and a processor may multiply bf16 itself."""
    a, b = factors.a, factors.b
    if isinstance(a, Cast) and isinstance(b, Cast) and a.arg.dtype is b.arg.dtype is BF16:
        return a.arg, b.arg
    return a, b


class _BodyEmitter:
    """Statements for scalars of a stage on blocks with one axis for each span that has one.

    A block only has extent along the axes its value varies with (the others are one), so loads of
    per-channel operands are short and arithmetic broadcasts.
    """

    def __init__(self, stage: _StageLowering, spans: Sequence[Span]) -> None:
        self.stage, self.spans = stage, [*spans]
        self.axes = [s for s in spans if s.axis]
        self.stmts: list[Stmt] = []
        self.known: dict[Scalar, Block] = {}

    def value(self, scalar: Scalar, shape: tuple[int, ...]) -> Block:
        """A block of exactly `shape` that holds `scalar`."""
        block = self._block(scalar)
        if block.shape == shape:
            return block
        out = self.stage.parent.block(block.dtype, shape)
        self.stmts.append(Broadcast(out, block))
        return out

    def _block(self, root: Scalar) -> Block:
        for node in walk(root):
            if isinstance(node, Read) and node not in self.known:
                self.known[node] = self._read(node)
        if root in self.known:
            return self.known[root]
        args: dict[Read, int] = {}

        def body(node: Scalar) -> Scalar:
            if isinstance(node, Read):
                return argument(args.setdefault(node, len(args)), node.dtype)
            return rebuild(node, body)

        raw = body(root)
        shape = self._compute_shape(root, tuple(self.known[r] for r in args))
        out = self.stage.parent.block(root.dtype, shape)
        mapping = positions(self.spans, shape)
        scalar = substitute_indices(raw, mapping)
        self.stmts.append(Compute(out, scalar, tuple(self.known[r] for r in args)))
        self.known[root] = out
        return out

    def _compute_shape(self, root: Scalar, args: tuple[Block, ...]) -> tuple[int, ...]:
        varies: set[Var] = set()
        for node in _above_reads(root):
            if isinstance(node, IndexValue):
                varies.update(free_vars(node.index))
        shape = [s.size if s.var in varies else 1 for s in self.axes]
        for block in args:
            shape = [max(a, b) for a, b in zip(shape, block.shape, strict=True)]
        return tuple(shape)

    def _read(self, node: Read) -> Block:
        access = self.stage.stage.accesses.get(node)
        if access is None:
            return self._ready(node)
        indirect = tuple((v, self._block(s)) for v, s in node.indirect)
        varies = set(free_vars(access.offset)) | self.stage.held_along([access])
        varies.update(v for g in access.guards for v in free_vars(g.index))
        sizes = [s.size if s.var in varies else 1 for s in self.axes]
        for _, block in indirect:
            sizes = [max(a, b) for a, b in zip(sizes, block.shape, strict=True)]
        shape = tuple(sizes)
        mapping = positions(self.spans, shape)
        out = self.stage.parent.block(node.dtype, shape)
        self.stmts.append(
            Load(
                out,
                self.stage.parent.buffers[access.buffer],
                (self.stage.parent.offset(access, mapping, self.stage.spans),),
                guards_at(access, mapping),
                0 if node.fill is None else node.fill,
                indirect,
            )
        )
        return out

    def _ready(self, node: Read) -> Block:
        """The block of an earlier stage, with axes of one for what it does not have."""
        if not isinstance(node.source, StageRef):
            raise InternalError(f"no access for a read of operand {node.source}")
        block = self.stage.ready[node.source]
        common = self.stage.parent.group.common
        held = [s.var for s in self.stage.outer if s.axis and s.var in common]
        shape = tuple(s.size if s.var in held else 1 for s in self.axes)
        if block.shape == shape:
            return block
        out = self.stage.parent.block(block.dtype, shape)
        self.stmts.append(Relayout(out, block, tuple(range(len(block.shape)))))
        return out


def _above_reads(root: Scalar) -> list[Scalar]:
    """The nodes of `root` that are not below a read."""
    found: list[Scalar] = []
    stack = [root]
    while stack:
        node = stack.pop()
        found.append(node)
        if not isinstance(node, Read):
            stack.extend(children(node))
    return found
