"""Builds the block kernel of a tile group under a block schedule, for GPUs.

    y[i, j] = max(sum(k) a[i, k] * b[k, j], 0)     blocks i 64, j 128, k 32   parallel i, j
      ->  parallel(i: 0..tiles, j: 0..tiles)  acc[64, 128]
          for k: acc += a[64, 32] * b[32, 128]
          store max(acc, 0) where both are inside

A tile computes one block of the parallel axes, and its stages pass blocks to each other.  If a
stage reads an earlier stage at another point than its own, a pointwise earlier stage is computed
again in the reader (`exchange`).  If the earlier stage is a reduction, the group is refused with
`NotBlocks`.  A streaming loop carries its accumulators, and rescales them.
"""

from collections.abc import Sequence

from tcc.ir.expr import known_extent
from tcc.ir.expr.scalar import StageRef
from tcc.ir.index import Index, as_int, const, free_vars, iterator
from tcc.ir.tile import Block, Blocks, TileKernel
from tcc.ir.tile.group import GroupStage, StreamLoop, TileGroup
from tcc.passes.tile.emitter import tile_buffers
from tcc.passes.tile.gpu.axes import Axis, AxisRange, BlockAxes, Parts
from tcc.passes.tile.gpu.body import BlockEmitter, EarlierBlock, matched, names
from tcc.passes.tile.gpu.exchange import Axes, exchanged
from tcc.passes.tile.gpu.skip import needed_steps
from tcc.passes.tile.gpu.stage import BlockStage, in_steps
from tcc.passes.tile.monoids import change
from tcc.schedule.gpu.choose import choose_blocks
from tcc.schedule.gpu.schedule import (
    TYPICAL_DEVICE,
    BlockProfile,
    BlockSchedule,
    NotBlocks,
)
from tcc.zipped import zip_equal

__all__ = ["NotBlocks", "blocks_fit", "lower_blocks"]


def lower_blocks(group: TileGroup, schedule: BlockSchedule, skips: bool = True) -> TileKernel:
    """Returns the block kernel of `group` under `schedule`.

    With `skips`, streaming loops skip masked blocks, even if these contain NaN or infinities.
    Raises `NotBlocks` if stages exchange values that blocks cannot hold.
    """
    return _Lowering(group, schedule, skips).kernel()


def blocks_fit(group: TileGroup, profile: BlockProfile = TYPICAL_DEVICE) -> bool:
    """Returns True if `group` can become a block kernel under the schedule that is chosen for
    it."""
    try:
        lower_blocks(group, choose_blocks(group, profile))
    except NotBlocks:
        return False
    return True


class _Lowering:
    """Lowers one group to a block kernel."""

    def __init__(self, group: TileGroup, schedule: BlockSchedule, skips: bool) -> None:
        self.skips = skips
        self.axes = Axes(group, schedule)
        self.group = group = exchanged(group, self.axes)
        self.grid: list[Index] = []
        self.tile_parts: list[AxisRange] = []
        for axis_ in self.axes.parallel:
            self.tile_parts.append(AxisRange(axis_, self._tile(axis_) * axis_.block))
        # Buffers are assumed to be aligned to their elements only, because any of them may be a
        # caller's array.
        self.emitter = BlockEmitter(b for b in tile_buffers(group) if not b.is_local)

    def _tile(self, axis_: Axis) -> Index:
        steps = axis_.steps
        if as_int(steps) == 1:
            return const(0)
        self.grid.append(iterator(f"p.{axis_.name}", steps))
        return self.grid[-1]

    def kernel(self) -> TileKernel:
        if all(known_extent(v) != 0 for v in self.group.common):
            self._lower_tile()
        axes = tuple(free_vars(tile)[0] for tile in self.grid)
        buffers, body = self.emitter.buffers, tuple(self.emitter.stmts)
        return TileKernel(buffers, (), self.group.sizes, axes, body)

    # ---- one tile -------------------------------------------------------------------------------

    def _lower_tile(self) -> None:
        stream = self.group.stream
        earlier: tuple[int, ...] = ()
        if stream is not None:
            for number in stream.before:
                self._stage(number, ())
            self._stream(stream)
            earlier = (*stream.before, *stream.stages)
        for number in range(len(self.group.stages)):
            if number not in earlier:
                self._stage(number, ())

    def _stage(self, number: int, streamed: Parts) -> None:
        """Emits a stage of the tile; `streamed` is the current block of the streaming loop, if any.

        If one block does not cover the stage's axes that are neither parallel nor streaming, a loop
        runs over their blocks, and no other stage can read the stage.
        """
        stage = self.group.stages[number]
        own_axes = self.axes.own(stage)
        if any(as_int(a.total) == 0 for a in own_axes):
            return
        stepped_axes = [a for a in own_axes if not a.whole]

        def computed(parts: Parts) -> tuple[BlockAxes, Blocks]:
            part_of = {p.axis.name: p for p in parts}
            inner = [part_of.get(a.name) or AxisRange(a, const(0)) for a in own_axes]
            frame = self._frame(stage, streamed, inner)
            lowered = BlockStage(self.emitter, stage, frame, self.axes.reduce(stage))
            blocks = lowered.run()
            lowered.store(blocks)
            return frame, blocks

        def step(parts: Parts, _: Blocks) -> Blocks:
            computed(parts)
            return ()

        if stepped_axes:
            in_steps(self.emitter, stepped_axes, (), step)
        else:
            self._keep(number, *computed(()))

    def _keep(self, number: int, frame: BlockAxes, blocks: Sequence[Block]) -> None:
        for component, block in enumerate(blocks):
            inner = self.axes.inner(self.group.stages[number], component)
            self.emitter.ready[StageRef(number, component)] = EarlierBlock(block, frame, inner)

    def _frame(
        self, stage: GroupStage, streamed: Sequence[AxisRange], inner: Sequence[AxisRange]
    ) -> BlockAxes:
        """Returns the parts of axes that a block of a stage covers.

        They are the parts of the tile and of the streaming loop that contain loops of the stage,
        and then `inner`.
        """
        parts = [p for p in (*self.tile_parts, *streamed) if set(p.axis.loops) & set(stage.iters)]
        return BlockAxes((*parts, *inner))

    # ---- streaming loops ------------------------------------------------------------------------

    def _stream(self, stream: StreamLoop) -> None:
        """Emits a streaming loop, which carries the accumulators of its stages."""
        along = Axis((stream.loop,), self.axes.block(stream.loop.name))
        accumulators = self.group.accumulators
        lowered = {n: self._accumulator(n, along) for n in accumulators}
        widths = [len(self.group.stages[n].body) for n in accumulators]
        start = tuple(b for n in accumulators for b in lowered[n].identity(lowered[n].frame.shape))

        def step(parts: Parts, old: Blocks) -> Blocks:
            remaining = list(old)
            pairs = zip_equal(accumulators, widths)
            carried = {n: tuple(remaining.pop(0) for _ in range(w)) for n, w in pairs}
            next_blocks: dict[int, Blocks] = {}
            for number in stream.stages:
                if number not in carried:
                    self._stage(number, parts)
                    continue
                scaled = self._scaled(stream, number, carried, next_blocks, lowered)
                next_blocks[number] = self._continued(lowered[number], parts, scaled)
                self._keep(number, lowered[number].frame, next_blocks[number])
            return tuple(b for n in accumulators for b in next_blocks[n])

        span = needed_steps(self.group, along, self.tile_parts) if self.skips else None
        results = list(in_steps(self.emitter, (along,), start, step, span))
        for number, width in zip_equal(accumulators, widths):
            blocks = tuple(results.pop(0) for _ in range(width))
            lowered[number].store(blocks)
            self._keep(number, lowered[number].frame, blocks)

    def _accumulator(self, number: int, along: Axis) -> BlockStage:
        stage = self.group.stages[number]
        own_axes = self.axes.own(stage)
        if not all(a.whole for a in own_axes):
            raise NotBlocks("an accumulator of a streaming loop is larger than a block")
        frame = self._frame(stage, (), [AxisRange(a, const(0)) for a in own_axes])
        return BlockStage(self.emitter, stage, frame, (along,))

    def _continued(self, stage: BlockStage, parts: Parts, old: Blocks) -> Blocks:
        """Returns the accumulators `old` combined with the terms of one block, `parts`, of the
        loop."""
        if stage.contraction is not None:
            return (stage.contract(parts, old[0]),)
        new = stage.across(stage.values(parts), parts)
        return stage.combine(old, new)

    def _scaled(
        self,
        stream: StreamLoop,
        number: int,
        old: dict[int, Blocks],
        new: dict[int, Blocks],
        lowered: dict[int, BlockStage],
    ) -> Blocks:
        """Returns the accumulators of stage `number`, rescaled for this block of the streaming
        loop.

        The factor depends on the change of a maximum, the accumulator of an earlier stage.  `old`
        has all accumulators before the block.  `new` has the accumulators after the block, as far
        as they are computed already.
        """
        rescale = next((r for r in stream.rescales if r.stage == number), None)
        if rescale is None:
            return old[number]
        state = rescale.total.stage
        before, after = old[state][0], new[state][0]
        body = change(rescale, before.dtype)
        factor = self.emitter.compute(body, (before, after), before.shape)
        earlier = EarlierBlock(factor, lowered[state].frame, None)
        frame = lowered[number].frame
        axes = matched(earlier, None, frame)
        if axes is None:
            raise NotBlocks("an accumulator depends on a state with loops of its own")
        aligned_factor = self.emitter.with_axes(factor, axes, names(frame))
        return tuple(self.emitter.function("mul", b, aligned_factor) for b in old[number])
