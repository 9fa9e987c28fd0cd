"""Scalars of a stage on blocks: loads, and arithmetic between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from tcc.errors import InternalError
from tcc.ir.expr.scalar import (
    Apply,
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
from tcc.ir.index import Index, Var, free_vars
from tcc.ir.tile import Block, Broadcast, Compute, Indirect, Load, Relayout, Stmt, TileBuffer
from tcc.ir.tile.group import GroupStage
from tcc.ir.types import DType
from tcc.passes.tile.cpu.ranges import BlockRange, guards_at, positions


@dataclass(frozen=True, slots=True)
class Place:
    """Where a read finds elements: the `offset` varies with the iterators `varies`."""

    buffer: TileBuffer
    offset: Callable[[Mapping[Var, Index]], Index]
    varies: frozenset[Var]


@dataclass(frozen=True, slots=True)
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


class BodyEmitter:
    """Statements for scalars of a stage on blocks with one axis for each span that has one.

    A block only has extent along the axes its value varies with (the others are one), so loads of
    per-channel operands are short and arithmetic broadcasts.
    """

    def __init__(self, around: Around, spans: Sequence[BlockRange]) -> None:
        self.around, self.spans = around, [*spans]
        self.axes = [s for s in spans if s.axis]
        self.stmts: list[Stmt] = []
        self.known: dict[Scalar, Block] = {}

    def value(self, scalar: Scalar, shape: tuple[int, ...]) -> Block:
        """A block of exactly `shape` that holds `scalar`."""
        block = self._block(scalar)
        if block.shape == shape:
            return block
        out = self.around.fresh(block.dtype, shape)
        self.stmts.append(Broadcast(out, block))
        return out

    def share(self, bodies: Sequence[Scalar]) -> None:
        """Computes what several of `bodies` need, so that it is there once."""
        seen: dict[Scalar, int] = {}
        for node in (n for body in bodies for n in walk(body)):
            seen[node] = seen.get(node, 0) + 1
        for node, count in seen.items():
            if count > 1 and isinstance(node, Apply | Cast):
                self._block(node)

    def _block(self, root: Scalar) -> Block:
        for node in walk(root):
            if isinstance(node, Read) and node not in self.known:
                self.known[node] = self._read(node)
        if root in self.known:
            return self.known[root]
        args: dict[Scalar, int] = {}

        @cache  # parts that occur many times would double the work at each level
        def body(node: Scalar) -> Scalar:
            if node in self.known:
                return argument(args.setdefault(node, len(args)), node.dtype)
            return rebuild(node, body)

        raw = body(root)
        shape = self._compute_shape(root, tuple(self.known[r] for r in args))
        out = self.around.fresh(root.dtype, shape)
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

    def chosen(self, node: Read) -> Indirect:
        """The indirect variables of a read, with the blocks that choose them."""
        return tuple((v, self._block(s)) for v, s in node.indirect)

    def _read(self, node: Read) -> Block:
        place = self.around.place(node)
        if place is None:
            return self._ready(node)
        access = self.around.stage.accesses.get(node)
        indirect = self.chosen(node)
        varies = set(place.varies)
        if access is not None:
            varies.update(v for g in access.guards for v in free_vars(g.index))
        sizes = [s.size if s.var in varies else 1 for s in self.axes]
        for _, block in indirect:
            sizes = [max(a, b) for a, b in zip(sizes, block.shape, strict=True)]
        shape = tuple(sizes)
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
        shape = tuple(s.size if s.var in made.axes else 1 for s in self.axes)
        if block.shape == shape:
            return block
        out = self.around.fresh(block.dtype, shape)
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
