"""A mesh: the ranks of a job as an array with one axis for each way to divide work.

Mesh((2, 3))     rank = 3 * i + j, for i in 0..2 and j in 0..3
axis(0)          3 groups of 2 ranks: (0, 3), (1, 4), (2, 5)
axis(1)          2 groups of 3 ranks: (0, 1, 2), (3, 4, 5)
"""

from itertools import product
from math import prod
from typing import TypeVar

from tcc.frozen import frozen
from tcc.ir.index import Index

Number = TypeVar("Number", int, Index)


@frozen
class MeshAxis:
    """An axis of a mesh: the groups of ranks whose positions differ along this axis only.

    `ranks` is the number of ranks of each group, `stride` the distance of two neighbours.
    `members` are the groups, as collectives take them; empty if all ranks are one group.
    """

    ranks: int
    stride: int = 1
    members: tuple[tuple[int, ...], ...] = ()

    @property
    def all_ranks(self) -> int:
        """The number of ranks of all groups together."""
        return sum(map(len, self.members)) or self.ranks

    def place(self, rank: Number) -> Number:
        """Returns the place of a rank in its group."""
        return rank // self.stride % self.ranks


@frozen
class Mesh:
    """Ranks in row-major order; `sizes` are the numbers of ranks along the axes, at least 1."""

    sizes: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """The number of all ranks."""
        return prod(self.sizes)

    @property
    def axes(self) -> tuple[MeshAxis, ...]:
        """The axes of the mesh, in order; each has its groups of ranks."""
        return tuple(map(self.axis, range(len(self.sizes))))

    def axis(self, number: int) -> MeshAxis:
        """Returns axis `number` of the mesh, with its groups of ranks."""
        size, stride = self.sizes[number], prod(self.sizes[number + 1 :])
        if size == self.ranks:
            return MeshAxis(size, stride)
        firsts = product(range(0, self.ranks, size * stride), range(stride))
        members = tuple(
            tuple(outer + inner + stride * place for place in range(size))
            for outer, inner in firsts
        )
        return MeshAxis(size, stride, members)
