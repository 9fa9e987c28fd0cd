"""Computes the scalars of a stage as blocks, by loads and arithmetic.

`Surroundings` has what the blocks depend on: the loops around the stage, and its buffers.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.expr.scalar import (
    Read,
    Scalar,
    StageRef,
    index_values,
    substitute_indices,
    walk,
)
from tcc.ir.index import Index, Var, const, free_vars, substitute
from tcc.ir.tile import (
    Block,
    Blocks,
    Broadcast,
    Compute,
    Load,
    Relayout,
    TileBuffer,
    guards_at,
)
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.passes.tile.bodies import ScalarBlocks, widened
from tcc.passes.tile.cpu.ranges import BlockRange, Regions, limits, positions
from tcc.passes.tile.cpu.scratch import Packed, Resident
from tcc.passes.tile.emitter import StatementEmitter
from tcc.schedule.cpu.along import loops_along, nest_along
from tcc.schedule.cpu.schedule import Nest
from tcc.schedule.nest import costly, depends, reads_here
from tcc.zipped import zip_equal


@frozen
class ReadPlace:
    """The place in memory that a read accesses.

    `offset` returns an element's place in `buffer` from the values of iterators.  The place depends
    only on the iterators `varies`.
    """

    buffer: TileBuffer
    offset: Callable[[Mapping[Var, Index]], Index]
    varies: frozenset[Var]


@frozen
class Ready:
    """The block with the result of an earlier stage, and the iterators for which the block has an
    axis."""

    block: Block
    axes: frozenset[Var]


@frozen
class Along:
    """A pointwise stage that is computed inside the loops of the reduction that reads it.

    `number` is the stage's number.  `nest` is the reduction's nest, with its loops renamed to the
    loops of `stage`.  `loops` maps the loops of the reduction to the loops of `stage`.
    """

    number: int
    stage: GroupStage
    nest: Nest
    loops: Mapping[Var, Var]

    def spans(self, spans: Sequence[BlockRange]) -> tuple[BlockRange, ...]:
        """Returns the reduction's `spans` as spans of the stage's loops."""
        return tuple(replace(s, var=self.loops.get(s.var, s.var)) for s in spans)


def stages_along(group: TileGroup, nest: Nest) -> tuple[Along, ...]:
    """Returns the pointwise stages that `nest` computes inside the loops of its reduction."""
    loops = loops_along(group, nest.along, group.stages[nest.stages[0]]) if nest.along else {}
    if loops is None:
        raise InternalError("a nest makes stages along a reduction that does not read them")
    pointwise_nest = nest_along(nest, loops)
    names = {new: old for old, new in loops.items()}
    return tuple(Along(n, group.stages[n], pointwise_nest, names) for n in nest.along)


@frozen
class Surroundings:
    """The context in which one block of a stage is computed.

    `outer`: the current blocks of the nest's loops.
    `regions`: the part of each loop that the tile covers.
    `k_blocks`: the current K-block of each reduced loop that is cut into K-blocks.
    `resident`: the memory of components that are stored for later nests.
    `ready`: the blocks that earlier stages of the nest have just computed.
    `packed`: the packed operand of the stage, or None.
    `along`: if the stage is a reduction, the stages that are computed inside its loops.
    """

    group: TileGroup
    stage: GroupStage
    nest: Nest
    outer: tuple[BlockRange, ...]
    regions: Regions
    k_blocks: Regions
    buffers: tuple[TileBuffer, ...]
    resident: Mapping[StageRef, Resident]
    ready: Mapping[StageRef, Ready]
    emitter: StatementEmitter
    packed: Packed | None = None
    along: tuple[Along, ...] = ()

    @property
    def starts(self) -> dict[Var, Index]:
        """Returns the first position of the current block or K-block along each loop."""
        k_blocks = {r.var: r.base for r in self.k_blocks.values()}
        return {s.var: s.base for s in self.outer} | k_blocks

    def place(self, node: Read) -> ReadPlace | None:
        """Returns the place in memory of a read; None if `ready` has its block."""
        access = self.stage.accesses.get(node)
        source = node.source
        if isinstance(source, int):
            assert access is not None
            index = access.offset
            return ReadPlace(
                self.buffers[access.buffer],
                lambda m: substitute(index, m),
                frozenset(free_vars(index)),
            )
        computed_along = any(a.number == source.stage for a in self.along)
        if computed_along or (source in self.ready and reads_here(self.group, self.stage, node)):
            return None
        resident = self.resident[source]
        inner = const(0) if access is None else access.offset
        base = () if resident.base is None else free_vars(resident.base)
        varies = frozenset((*free_vars(inner), *base, *(v for v, _ in resident.steps)))
        return ReadPlace(
            resident.buffer,
            lambda m: resident.offset(m, substitute(inner, m), self.regions),
            varies,
        )


class CoreStageScalars(ScalarBlocks):
    """Computes scalars of a stage as blocks (small arrays) over `spans`.

    A span is the range of a loop that a block covers.  A block has an axis for each span with
    `axis` set.  The axis has size 1 if the block's values do not vary along the span.  So loads of
    per-channel operands are short, and arithmetic broadcasts.
    """

    def __init__(self, context: Surroundings, spans: Sequence[BlockRange]) -> None:
        super().__init__()
        self.context, self.spans, self.emitter = context, spans, context.emitter
        self.axes = [s for s in spans if s.axis]
        # Maps a read to the value that it loads for elements of the block beyond the end of a span;
        # 0 for reads that are not in the dict.
        self.fills: dict[Read, bool | int | float] = {}

    def value(self, scalar: Scalar, shape: tuple[int, ...]) -> Block:
        """Returns a block that holds `scalar`, broadcast to `shape`."""
        block = self.block(scalar)
        if block.shape == shape:
            return block
        out = self.emitter.fresh(block.dtype, shape)
        self.emitter.add(Broadcast(out, block))
        return out

    def separate_parts(self, root: Scalar) -> Sequence[Scalar]:
        """Returns the costly parts of `root` that vary with fewer loops than `root`.

        Each gets a block of its own, so that it is not computed again for each point of `root`.
        """
        stage = self.context.stage
        costly_parts = [s for s in walk(root) if s is not root and costly(s)]
        loops = depends(stage, root) if costly_parts else frozenset()
        return [s for s in costly_parts if depends(stage, s) < loops]

    def computed(self, raw: Scalar, args: Blocks) -> Block:
        shape = self._shape(free_vars(*index_values(raw)), args)
        out = self.emitter.fresh(raw.dtype, shape)
        scalar = substitute_indices(raw, positions(self.spans, shape))
        self.emitter.add(Compute(out, scalar, args))
        return out

    def _shape(self, varies: Collection[Var], blocks: Iterable[Block]) -> tuple[int, ...]:
        return widened((s.size if s.var in varies else 1 for s in self.axes), blocks)

    def read(self, node: Read) -> Block:
        place = self.context.place(node)
        if place is None:
            return self._ready(node)
        access = self.context.stage.accesses.get(node)
        indirect = self.chosen(node)
        guarded = () if access is None else (g.index for g in access.guards)
        varies = place.varies.union(free_vars(*guarded))
        shape = self._shape(varies, (block for _, block in indirect))
        mapping = positions(self.spans, shape)
        out = self.emitter.fresh(node.dtype, shape)
        fill = self.fills.get(node, 0 if node.fill is None else node.fill)
        inside = () if access is None else guards_at(access.guards, mapping)
        guards = (
            *inside,
            *limits([s for s, n in zip_equal(self.axes, shape) if n > 1], mapping),
        )
        self.emitter.add(Load(out, place.buffer, (place.offset(mapping),), guards, fill, indirect))
        return out

    def _ready(self, node: Read) -> Block:
        """Returns the block of an earlier stage, with an axis of size 1 for each loop along which
        that stage has no loop."""
        if not isinstance(node.source, StageRef):
            raise InternalError(f"no access for a read of operand {node.source}")
        earlier = self.context.ready[node.source]
        block = earlier.block
        shape = self._shape(earlier.axes, ())
        if block.shape == shape:
            return block
        out = self.emitter.fresh(block.dtype, shape)
        self.emitter.add(Relayout(out, block, tuple(range(len(block.shape)))))
        return out
