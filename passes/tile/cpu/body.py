"""Scalars of a stage on blocks: loads, and arithmetic between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from tcc.errors import InternalError
from tcc.ir.expr.scalar import (
    Read,
    Scalar,
    StageRef,
    substitute_indices,
)
from tcc.ir.index import Index, Var, free_vars
from tcc.ir.tile import (
    Block,
    Blocks,
    Broadcast,
    Compute,
    Indirect,
    Load,
    Relayout,
    Stmt,
    TileBuffer,
)
from tcc.ir.tile.group import GroupStage
from tcc.ir.types import DType
from tcc.passes.tile.bodies import ScalarBlocks, index_loops, widened
from tcc.passes.tile.cpu.ranges import BlockRange, guards_at, positions
from tcc.record import record


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


class Around(Protocol):
    """What a stage's body is evaluated in: see `tcc.passes.tile.cpu.stage.Surroundings`."""

    @property
    def stage(self) -> GroupStage: ...

    @property
    def outer(self) -> tuple[BlockRange, ...]: ...

    @property
    def ready(self) -> Mapping[StageRef, Ready]: ...

    @property
    def fresh(self) -> Callable[[DType, tuple[int, ...]], Block]: ...

    def place(self, node: Read) -> Place | None:
        """The memory of a read, None where it is a block in `ready`."""
        ...


class BodyEmitter(ScalarBlocks):
    """Statements for scalars of a stage on blocks with one axis for each span that has one.

    A block only has extent along the axes its value varies with (the others are one), so loads of
    per-channel operands are short and arithmetic broadcasts.
    """

    def __init__(self, around: Around, spans: Sequence[BlockRange]) -> None:
        super().__init__()
        self.around, self.spans = around, [*spans]
        self.axes = [s for s in spans if s.axis]
        self.stmts: list[Stmt] = []

    def value(self, scalar: Scalar, shape: tuple[int, ...]) -> Block:
        """A block of exactly `shape` that holds `scalar`."""
        block = self.block(scalar)
        if block.shape == shape:
            return block
        out = self.around.fresh(block.dtype, shape)
        self.stmts.append(Broadcast(out, block))
        return out

    def computed(self, raw: Scalar, args: Blocks) -> Block:
        shape = self._shape(set(index_loops(raw)), args)
        out = self.around.fresh(raw.dtype, shape)
        scalar = substitute_indices(raw, positions(self.spans, shape))
        self.stmts.append(Compute(out, scalar, args))
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
        varies = set(place.varies)
        if access is not None:
            varies.update(v for g in access.guards for v in free_vars(g.index))
        shape = self._shape(varies, (block for _, block in indirect))
        mapping = positions(self.spans, shape)
        out = self.around.fresh(node.dtype, shape)
        fill = 0 if node.fill is None else node.fill
        offset = (place.offset(mapping),)
        guards = () if access is None else guards_at(access, mapping)
        self.stmts.append(Load(out, place.buffer, offset, guards, fill, indirect))
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
        out = self.around.fresh(block.dtype, shape)
        self.stmts.append(Relayout(out, block, tuple(range(len(block.shape)))))
        return out
