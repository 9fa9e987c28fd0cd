"""Merges loops of a block kernel into axes, and computes the values of loops in a block.

    loops n, y, x of extents 2, 7, 7 as one axis of 98 positions in blocks of 64
      p = 64*tile + l0 ;  n = p // 49 ;  y = p // 7 % 7 ;  x = p % 7 ;  lanes with p < 98 are active

The size of a block is a power of two.  So the last block may reach beyond the end of the axis,
where a guard masks its lanes.
"""

from collections.abc import Sequence
from typing import TypeAlias

from tcc.frozen import frozen
from tcc.ir.expr import extent, nest_size
from tcc.ir.expr.scalar import IndexValue, Scalar, index_value, transform
from tcc.ir.index import (
    Index,
    Indices,
    Var,
    Vars,
    as_int,
    bounds,
    ceildiv,
    const,
    divisor_of,
    linear_in,
    substitute,
)
from tcc.ir.tile import Guard, lanes
from tcc.ir.tile.group import Access
from tcc.schedule.gpu.axes import join
from tcc.zipped import zip_equal


@frozen
class Axis:
    """Several loops, outermost first, that are merged into one axis and cut into blocks.

    `block` is the number of positions of a block.
    """

    loops: Vars
    block: int

    @property
    def name(self) -> str:
        """The loops' names, joined by "+"."""
        return join(self.loops)

    @property
    def total(self) -> Index:
        """The number of positions of the axis."""
        return nest_size(self.loops)

    @property
    def steps(self) -> Index:
        """The number of blocks that cover the axis."""
        return const(1) if self.whole else ceildiv(self.total, self.block)

    @property
    def whole(self) -> bool:
        """True if one block covers the axis, whatever the values of symbolic sizes."""
        top = bounds(self.total)[1]
        return top is not None and top <= self.block and as_int(self.total) != 0

    @property
    def ragged(self) -> bool:
        """True if the last block may reach beyond the end of the axis."""
        return self.block > 1 and (
            as_int(self.total) == 0 or divisor_of(self.total) % self.block != 0
        )


@frozen
class AxisRange:
    """The part of an axis that a block covers: positions `base` to `base + axis.block - 1`."""

    axis: Axis
    base: Index

    @property
    def lanes(self) -> bool:
        """True if the part has several positions, so that blocks have an axis for it."""
        return self.axis.block > 1


Parts: TypeAlias = tuple[AxisRange, ...]


@frozen
class BlockAxes:
    """The parts of axes that a block covers.  A block has an axis for each part of several
    positions."""

    parts: Parts

    @property
    def axes(self) -> Parts:
        """The parts with several positions."""
        return tuple(p for p in self.parts if p.lanes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a block that varies along all axes."""
        return tuple(p.axis.block for p in self.axes)

    def positions(self, shape: tuple[int, ...]) -> Indices:
        """Returns the position along each part, as a formula of the lane variables of a block of
        `shape`."""
        lane = iter(lanes(shape))
        return tuple(p.base + next(lane) if p.lanes else p.base for p in self.parts)

    def place(self, index: Index, shape: tuple[int, ...]) -> Index:
        """Returns `index` with each loop replaced by its value in a block of `shape`."""
        mapping: dict[Var, Index] = {}
        for part, position in zip_equal(self.parts, self.positions(shape)):
            mapping.update(_digits(part.axis.loops, position, index))
        return substitute(index, mapping)

    def scalar(self, root: Scalar, shape: tuple[int, ...]) -> Scalar:
        """Returns `root` with each loop in its indices replaced by its value in a block of
        `shape`."""

        def leaf(node: Scalar) -> Scalar:
            if isinstance(node, IndexValue):
                return index_value(self.place(node.index, shape), node.dtype)
            return node

        return transform(root, leaf)

    def varying(self, loops: Sequence[Var]) -> tuple[int, ...]:
        """Returns the shape of a block that varies only with `loops`: other axes have size 1."""
        return tuple(
            p.axis.block if any(v in loops for v in p.axis.loops) else 1 for p in self.axes
        )

    def guards(self, access: Access, shape: tuple[int, ...]) -> tuple[Guard, ...]:
        """Returns the guards of a load or store of a block of `shape`.

        They are the guards of the access, and guards that mask lanes beyond the end of an axis.
        """
        result = [
            Guard(self.place(g.index, shape), self.place(g.extent, shape)) for g in access.guards
        ]
        lane = iter(shape)
        for part, position in zip_equal(self.parts, self.positions(shape)):
            if part.lanes and next(lane) > 1 and part.axis.ragged:
                result.append(Guard(position, part.axis.total))
        return tuple(dict.fromkeys(result))


def _digits(loops: Sequence[Var], position: Index, index: Index) -> dict[Var, Index]:
    """Returns the value of each loop at a position of their axis.

    If an index depends on neighbouring loops only through their merged loop, as 32*y + x with x of
    extent 32, the last of them (x) gets the value of the merged loop, and the others get 0.  So
    consecutive positions stay consecutive in memory.
    """
    mapping: dict[Var, Index] = {}
    inner = const(1)
    end = len(loops)
    while end > 0:
        first = _first_merged(loops, end, index)
        size = nest_size(loops[first:end])
        value = position // inner
        mapping.update({v: const(0) for v in loops[first:end]})
        mapping[loops[end - 1]] = value if first == 0 else value % size
        inner, end = inner * size, first
    return mapping


def _first_merged(loops: Sequence[Var], stop: int, index: Index) -> int:
    """Returns the smallest p for which `index` depends on loops p to `stop` - 1 only through their
    merged loop."""
    first = stop - 1
    while first > 0:
        outer, inner = linear_in(index, loops[first - 1]), linear_in(index, loops[first])
        if outer is None or inner is None or outer[0] is not inner[0] * extent(loops[first]):
            return first
        first -= 1
    return first
