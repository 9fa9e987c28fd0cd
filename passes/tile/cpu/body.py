"""Scalars of a stage on blocks, loads and arithmetic between them, and what surrounds the stage."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tcc.errors import InternalError
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
    Indirect,
    Load,
    Relayout,
    TileBuffer,
    guards_at,
)
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.passes.tile.bodies import ScalarBlocks, widened
from tcc.passes.tile.cpu.ranges import BlockRange, Regions, limits, positions
from tcc.passes.tile.cpu.scratch import Packed, Resident
from tcc.passes.tile.emitter import Emitter
from tcc.record import record
from tcc.schedule.cpu.along import loops_along, nest_along
from tcc.schedule.cpu.schedule import Nest
from tcc.schedule.nest import costly, depends, reads_here


@record
class Place:
    """Where a read finds elements: the `offset` varies with the iterators `varies`."""

    buffer: TileBuffer
    offset: Callable[[Mapping[Var, Index]], Index]
    varies: frozenset[Var]


@record
class Ready:
    """The block of an earlier stage, with an axis for each of `axes`."""

    block: Block
    axes: frozenset[Var]


@record
class Along:
    """A pointwise stage that is made along a reduction, in a nest that has its names of `loops`,
    which are given by those of the reduction."""

    number: int
    stage: GroupStage
    nest: Nest
    loops: Mapping[Var, Var]

    def spans(self, spans: Sequence[BlockRange]) -> tuple[BlockRange, ...]:
        """The stage's own `spans`, those of the reduction given."""
        return tuple(replace(s, var=self.loops.get(s.var, s.var)) for s in spans)


def stages_along(group: TileGroup, nest: Nest) -> tuple[Along, ...]:
    """The stages along the reduction of `nest`."""
    loops = loops_along(group, nest.along, group.stages[nest.stages[0]]) if nest.along else {}
    if loops is None:
        raise InternalError("a nest makes stages along a reduction that does not read them")
    own = nest_along(nest, loops)
    names = {new: old for old, new in loops.items()}
    return tuple(Along(n, group.stages[n], own, names) for n in nest.along)


@record
class Surroundings:
    """What a stage is computed in: its block of the nest's loops (`outer`), what the unit covers
    (`regions`), the part of split reductions at hand (`k_blocks`), memory, and the blocks that
    earlier stages of the nest just made (`ready`).  `packed` is the stage's factor that waits in
    scratch, `along` what is made along its reduction."""

    group: TileGroup
    stage: GroupStage
    nest: Nest
    outer: tuple[BlockRange, ...]
    regions: Regions
    k_blocks: Regions
    buffers: tuple[TileBuffer, ...]
    resident: Mapping[StageRef, Resident]
    ready: Mapping[StageRef, Ready]
    emitter: Emitter
    packed: Packed | None = None
    along: tuple[Along, ...] = ()

    @property
    def starts(self) -> dict[Var, Index]:
        """Where the block and the K-block at hand begin."""
        k_blocks = {r.var: r.base for r in self.k_blocks.values()}
        return {s.var: s.base for s in self.outer} | k_blocks

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
        beside = any(a.number == source.stage for a in self.along)
        if beside or (source in self.ready and reads_here(self.group, self.stage, node)):
            return None
        resident = self.resident[source]
        inner = const(0) if access is None else access.offset
        base = () if resident.base is None else free_vars(resident.base)
        varies = frozenset((*free_vars(inner), *base, *(v for v, _ in resident.steps)))
        return Place(
            resident.buffer,
            lambda m: resident.offset(m, substitute(inner, m), self.regions),
            varies,
        )


class StageScalars(ScalarBlocks):
    """Scalars of a stage on blocks with one axis for each span that has one.

    A block only has extent along the axes its value varies with (the others are one), so loads of
    per-channel operands are short and arithmetic broadcasts.
    """

    def __init__(self, around: Surroundings, spans: Sequence[BlockRange]) -> None:
        super().__init__()
        self.around, self.spans, self.emitter = around, spans, around.emitter
        self.axes = [s for s in spans if s.axis]
        self.fills: dict[Read, bool | int | float] = {}  # behind the ends of spans, where not 0

    def value(self, scalar: Scalar, shape: tuple[int, ...]) -> Block:
        """A block of exactly `shape` that holds `scalar`."""
        block = self.block(scalar)
        if block.shape == shape:
            return block
        out = self.emitter.fresh(block.dtype, shape)
        self.emitter.add(Broadcast(out, block))
        return out

    def apart(self, root: Scalar) -> Sequence[Scalar]:
        """Costly values that vary with fewer loops: loops around `root` do not make them again."""
        stage = self.around.stage
        found = [s for s in walk(root) if s is not root and costly(s)]
        whole = depends(stage, root) if found else frozenset()
        return [s for s in found if depends(stage, s) < whole]

    def computed(self, raw: Scalar, args: Blocks) -> Block:
        shape = self._shape(free_vars(*index_values(raw)), args)
        out = self.emitter.fresh(raw.dtype, shape)
        scalar = substitute_indices(raw, positions(self.spans, shape))
        self.emitter.add(Compute(out, scalar, args))
        return out

    def _shape(self, varies: Collection[Var], blocks: Iterable[Block]) -> tuple[int, ...]:
        return widened((s.size if s.var in varies else 1 for s in self.axes), blocks)

    def chosen(self, node: Read) -> Indirect:
        """The indirect variables of a read, with the blocks that choose them."""
        return tuple((v, self.block(s)) for v, s in node.indirect)

    def read(self, node: Read) -> Block:
        place = self.around.place(node)
        if place is None:
            return self._ready(node)
        access = self.around.stage.accesses.get(node)
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
            *limits([s for s, n in zip(self.axes, shape, strict=True) if n > 1], mapping),
        )
        self.emitter.add(Load(out, place.buffer, (place.offset(mapping),), guards, fill, indirect))
        return out

    def _ready(self, node: Read) -> Block:
        """The block of an earlier stage, with axes of one for what it does not have."""
        if not isinstance(node.source, StageRef):
            raise InternalError(f"no access for a read of operand {node.source}")
        made = self.around.ready[node.source]
        block = made.block
        shape = self._shape(made.axes, ())
        if block.shape == shape:
            return block
        out = self.emitter.fresh(block.dtype, shape)
        self.emitter.add(Relayout(out, block, tuple(range(len(block.shape)))))
        return out
