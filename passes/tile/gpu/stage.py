"""Lowers one stage of a block kernel: pointwise work, a reduction, or a contraction.

A reduction runs over its loops in blocks.  Its accumulators have a lane for each element of a
block, and lanes are combined only once, at the end.  Masked lanes hold the identity.  A contraction
becomes a `Contract` if only one factor has the result's rows, and only the other has its columns.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from tcc.frozen import frozen
from tcc.ir.expr.scalar import Cast, Read, Scalar, literal, walk
from tcc.ir.index import Index, Var, as_int, const
from tcc.ir.tile import Block, Blocks, Contract, Reduce, Store
from tcc.ir.tile.group import GroupStage
from tcc.ir.tile.verify_gpu import LEAST_SIDE
from tcc.ir.types import BF16, F16, F32, FLOAT8, I8, I32
from tcc.passes.tile.gpu.axes import Axis, AxisRange, BlockAxes, Parts
from tcc.passes.tile.gpu.body import BlockEmitter, GpuStageScalars
from tcc.passes.tile.monoids import combinations, identities, identity_blocks
from tcc.schedule.gpu.axes import factors
from tcc.schedule.gpu.work import LEAST_BYTES
from tcc.schedule.nest import depends
from tcc.zipped import zip_equal

_NARROW = (BF16, F16, I8, *FLOAT8)


@frozen
class BlockContraction:
    """A matmul of blocks, with the names of its axes.

    The factor `a` has the axes (*batch, m, k), and `b` the axes (*batch, k, n).
    """

    a: Scalar
    b: Scalar
    batch: tuple[str, ...]
    m: str
    n: str
    k: str

    @property
    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the axes of `a`, and those of `b`."""
        return (*self.batch, self.m, self.k), (*self.batch, self.k, self.n)


def matmul_of(
    stage: GroupStage, frame: BlockAxes, reduce: Sequence[Axis]
) -> BlockContraction | None:
    """Returns the matmul that a stage computes over `frame`; None if it does not compute one.

    `reduce` are the axes along which the stage reduces.
    """
    pair = factors(stage)
    wide = [r for r in reduce if r.block > 1]
    if pair is None or stage.body[0].dtype not in (F32, I32) or len(wide) != 1:
        return None
    a, b = pair.a, pair.b
    # Products of values cast from one type of 16 or 8 bits are exact, so matrix units need no cast.
    if isinstance(a, Cast) and isinstance(b, Cast) and a.arg.dtype is b.arg.dtype in _NARROW:
        a, b = a.arg, b.arg
    if a.dtype is not b.dtype or a.dtype not in (F32, *_NARROW):
        return None
    first, second = pair.loops(stage)
    along = [(_meets(p.axis, first), _meets(p.axis, second), p) for p in frame.axes]
    if not (_meets(wide[0], first) and _meets(wide[0], second)):
        return None
    batch = [p for x, y, p in along if x and y]
    one_sided = [(x, p) for x, y, p in along if x is not y]
    if len(one_sided) != 2 or one_sided[0][0] is one_sided[1][0] or len(batch) + 2 != len(along):
        return None
    if len(batch) > 1 or (batch and batch[0] is not frame.axes[0]):
        return None
    shortest = LEAST_BYTES if a.dtype.bits == 8 else LEAST_SIDE
    if min(p.axis.block for _, p in one_sided) < LEAST_SIDE or wide[0].block < shortest:
        return None
    if not one_sided[0][0]:
        a, b = b, a
    batch_names = tuple(p.axis.name for p in batch)
    return BlockContraction(
        a, b, batch_names, one_sided[0][1].axis.name, one_sided[1][1].axis.name, wide[0].name
    )


def _meets(axis: Axis, loops: frozenset[Var]) -> bool:
    return any(v in loops for v in axis.loops)


class BlockStage:
    """Lowers one block of a stage.

    The block has the axes `frame`, and the stage reduces along the axes `reduce`.
    """

    def __init__(
        self, emitter: BlockEmitter, stage: GroupStage, frame: BlockAxes, reduce: Sequence[Axis]
    ) -> None:
        self.emitter, self.stage, self.frame = emitter, stage, frame
        self.reduce = tuple(reduce)
        self.origin = tuple(AxisRange(axis, const(0)) for axis in self.reduce)
        self.contraction = matmul_of(stage, frame, reduce)

    def run(self) -> Blocks:
        """Returns the blocks of the components, of size 1 along axes that they do not vary with."""
        if self.stage.monoid is None:
            body = GpuStageScalars(self.emitter, self.stage, self.frame)
            body.share(self.stage.body)
            return tuple(map(body.block, self.stage.body))
        if any(as_int(r.total) == 0 for r in self.reduce):
            return self.identity(self.frame.shape)
        return self._reduced() if self.contraction is None else self._contracted()

    def store(self, blocks: Sequence[Block]) -> None:
        """Stores the components that are results of the kernel."""
        shape = self.frame.shape
        for block, targets in zip_equal(blocks, self.stage.stores):
            for target in targets:
                if target.buffer >= len(self.emitter.buffers):
                    continue  # only later stages read it, as a block
                guards = self.frame.guards(target, shape)
                offset = self.frame.place(target.offset, shape)
                value = self.emitter.spread(block, shape)
                buffer = self.emitter.buffers[target.buffer]
                self.emitter.add(Store(buffer, (offset,), value, guards))

    # ---- identities and combinations ------------------------------------------------------------

    def identity(self, shape: tuple[int, ...]) -> Blocks:
        """Returns blocks of the monoid's identity."""
        return identity_blocks(self.emitter, self.stage, shape)

    def combine(self, old: Sequence[Block], new: Sequence[Block]) -> Blocks:
        """Returns the combination of `old` and `new` by the monoid, element by element."""
        args, shape = (*old, *new), old[0].shape
        return tuple(self.emitter.compute(body, args, shape) for body in combinations(self.stage))

    # ---- reductions -----------------------------------------------------------------------------

    def _reduced(self) -> Blocks:
        if _is_one(self.reduce):
            return self.across(self.values(self.origin), self.origin)
        wide = BlockAxes((*self.frame.parts, *self.origin))
        start = self.identity(wide.shape)
        self._positions_ahead(self.stage.body, wide)

        def step(parts: Parts, old: Blocks) -> Blocks:
            return self.combine(old, self.values(parts))

        accumulators = in_steps(self.emitter, self.reduce, start, step)
        return self.across(accumulators, self.origin)

    def _positions_ahead(self, roots: Sequence[Scalar], frame: BlockAxes) -> None:
        """Loads data-dependent indices that are equal in all steps before the first step.

        Otherwise each step would load the indices first, and wait for them before its other loads.
        """
        body = GpuStageScalars(self.emitter, self.stage, frame)
        for node in walk(*roots):
            for _, position in node.indirect if isinstance(node, Read) else ():
                if not depends(self.stage, position) & {*self.stage.reduce}:
                    body.block(position)

    def values(self, parts: Sequence[AxisRange]) -> Blocks:
        """Returns the terms of the reduction over `parts`, with the identity in lanes beyond the
        ends."""
        frame = BlockAxes((*self.frame.parts, *parts))
        body = GpuStageScalars(self.emitter, self.stage, frame)
        body.share(self.stage.body)
        active = body.active([p for p in parts if p.lanes])
        blocks = []
        for scalar, neutral in zip_equal(self.stage.body, identities(self.stage)):
            block = body.block(scalar)
            if active is not None:
                block = self.emitter.function("select", active, block, last=(neutral,))
            blocks.append(self.emitter.spread(block, frame.shape))
        return tuple(blocks)

    def across(self, blocks: Sequence[Block], parts: Sequence[AxisRange]) -> Blocks:
        """Returns `blocks` combined along `parts` by the monoid.

        Before, they cover the frame and `parts`; afterwards the frame only.
        """
        assert self.stage.monoid is not None
        rank = len(self.frame.axes)
        frame = BlockAxes((*self.frame.parts, *parts))
        along = tuple(range(rank, len(frame.axes)))
        if not along:
            return tuple(blocks)
        shape = (*self.frame.shape, *(1 for _ in along))
        outs = tuple(self.emitter.fresh(b.dtype, shape) for b in blocks)
        self.emitter.add(Reduce(outs, self.stage.monoid, tuple(blocks), along))
        order = tuple(range(len(shape)))
        return tuple(self.emitter.reshaped(out, self.frame.shape, order) for out in outs)

    # ---- contractions ---------------------------------------------------------------------------

    def _contracted(self) -> Blocks:
        def step(parts: Parts, old: Blocks) -> Blocks:
            return (self.contract(parts, old[0]),)

        start = self.identity(self.frame.shape)
        if _is_one(self.reduce):
            return step(self.origin, start)
        assert self.contraction is not None
        every = (*self.frame.parts, *self.origin)
        for factor, labels in zip_equal(
            (self.contraction.a, self.contraction.b), self.contraction.labels
        ):
            self._positions_ahead((factor,), _reordered(every, labels))
        return in_steps(self.emitter, self.reduce, start, step)

    def contract(self, parts: Sequence[AxisRange], acc: Block) -> Block:
        """Returns `acc` plus the contraction along `parts`."""
        matmul = self.contraction
        assert matmul is not None
        every = (*self.frame.parts, *parts)
        a_axes, b_axes = matmul.labels
        a = self._factor(matmul.a, _reordered(every, a_axes), parts)
        b = self._factor(matmul.b, _reordered(every, b_axes), parts)
        out = self.emitter.fresh(acc.dtype, acc.shape)
        labels = (*matmul.batch, matmul.m, matmul.n)
        self.emitter.add(Contract(out, acc, a, b, labels, a_axes, b_axes))
        return out

    def _factor(self, factor: Scalar, frame: BlockAxes, parts: Sequence[AxisRange]) -> Block:
        """Returns the block of a factor over `frame`, with zeros in lanes beyond the end of the
        sum."""
        body = GpuStageScalars(self.emitter, self.stage, frame)
        block = body.block(factor)
        # A load from memory gives zeros in masked lanes.
        if not isinstance(factor, Read) or not isinstance(factor.source, int) or factor.fill:
            summed = [p for p in frame.axes if p in parts]
            active = body.active(summed)
            if active is not None:
                zero = literal(0, factor.dtype)
                block = self.emitter.function("select", active, block, last=(zero,))
        return self.emitter.spread(block, frame.shape)


def in_steps(
    emitter: BlockEmitter,
    axes: Sequence[Axis],
    start: Blocks,
    step: Callable[[Parts, Blocks], Blocks],
    span: tuple[Index, Index] | None = None,
) -> Blocks:
    """Adds a loop over the blocks of `axes`, and returns the carried blocks after it.

    The last axis changes fastest.  `start` are the carried blocks before the first iteration.
    `step` gets the parts of the axes in one iteration and the carried blocks, and returns the
    carried blocks after it.  `span` is (first block, block after the last) of the loop; None means
    all blocks.
    """
    count = prod((axis.steps for axis in axes), start=const(1))
    counter = emitter.counter(count)
    first, stop = span or (const(0), count)
    return emitter.carry(counter, first, stop, 1, start, partial(step, parts_at(axes, counter)))


def parts_at(axes: Sequence[Axis], number: Index) -> Parts:
    """Returns the part of each axis in block `number`, where the last axis changes fastest."""
    parts: list[AxisRange] = []
    inner = const(1)
    for n, axis in reversed(list(enumerate(axes))):
        digit = number // inner
        if any(as_int(other.steps) != 1 for other in axes[:n]):
            digit = digit % axis.steps
        parts.insert(0, AxisRange(axis, digit * axis.block))
        inner = inner * axis.steps
    return tuple(parts)


def _is_one(axes: Sequence[Axis]) -> bool:
    return all(a.whole for a in axes)


def _reordered(parts: Sequence[AxisRange], order: Sequence[str]) -> BlockAxes:
    """Returns `parts` as the axes of a block: the parts that `order` names, in that order, then the
    other parts, each cut to its first position."""
    by_name = {p.axis.name: p for p in parts}
    unlisted = (p for p in parts if p.axis.name not in order)
    flat = (AxisRange(Axis(p.axis.loops, 1), p.base) for p in unlisted)
    return BlockAxes((*(by_name[name] for name in order), *flat))
