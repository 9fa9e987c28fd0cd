"""Shardings: how the ranks of a mesh axis hold a value.

whole           every rank has the value
split(1)        rank r of n has block r of n equal blocks along axis 1
split(1, block=4)   blocks of 4, of an axis that they cover with padding behind its end
split(1, copies=2)  ranks 0 and 1 have block 0, ranks 2 and 3 block 1
partial(sum)    every rank has a value of the same shape; their sum is the value
"""

import re
from dataclasses import replace
from math import prod
from typing import TypeAlias

from tcc.frozen import frozen
from tcc.ir.index import Index, as_int, const
from tcc.ir.narrow import packed_size
from tcc.ir.types import TensorType
from tcc.ops.shapes import replaced
from tcc.schedule.nest import typical

REDUCTIONS = ("sum", "prod", "max", "min")  # the monoids that collectives combine by


@frozen
class Whole:
    """Every rank has the value."""

    def __repr__(self) -> str:
        return "whole"


@frozen
class Split:
    """The ranks have equal blocks along `axis`, in order, of each of `groups` equal groups.

    `block` is 0 where the blocks cover a group exactly.  Otherwise it is the length of a block in
    elements, and the blocks end with padding: elements behind the end of the group, of any value.
    `copies` is the number of neighbour ranks that have the same block.
    """

    axis: int
    groups: int = 1
    block: int = 0
    copies: int = 1

    def length(self, size: Index, ranks: int) -> Index:
        """Returns the length of a block of an axis of `size` elements in each group.

        A symbolic size has blocks if it is a multiple by its form, as 4*n is for 2 ranks.
        Raises ValueError where the blocks of `ranks` ranks are not equal.
        """
        parts = self.parts(ranks)
        if self.block:
            group = as_int(size) or 0
            group = 0 if group % self.groups else group // self.groups
            if self.block < group < self.block * parts:
                return const(self.block)
        elif as_int(size) != 0:
            length = size // (parts * self.groups)
            if length * (parts * self.groups) is size:
                return length
        raise ValueError(f"{size} elements have no {ranks} equal blocks for {self}")

    def parts(self, ranks: int) -> int:
        """Returns the number of blocks of a group; raises ValueError if copies do not divide the
        ranks."""
        parts, remainder = divmod(ranks, self.copies)
        if remainder:
            raise ValueError(f"{ranks} ranks have no equal numbers of blocks for {self}")
        return parts

    def __repr__(self) -> str:
        fields = [str(self.axis)]
        fields += [str(self.groups)] * (self.groups > 1)
        fields += [f"block={self.block}"] * (self.block > 0)
        fields += [f"copies={self.copies}"] * (self.copies > 1)
        return f"split({', '.join(fields)})"


def even(size: Index, ranks: int) -> Split:
    """Returns the split of axis 0, of `size` elements, in one group and without copies.

    The blocks are padded if the ranks do not divide the size and it is larger than their number.
    """
    elements = as_int(size) or 0
    is_padded = elements > ranks and elements % ranks
    return Split(0, 1, -(-elements // ranks) if is_padded else 0)


@frozen
class Partial:
    """The value is the combination of all ranks' values by the monoid `reduction`."""

    reduction: str

    def __repr__(self) -> str:
        return f"partial({self.reduction})"


Sharding: TypeAlias = Whole | Split | Partial
Shardings: TypeAlias = tuple[Sharding, ...]
WHOLE = Whole()

_TEXT = re.compile(
    r"(whole)|split\((\d{1,4})(?:, (\d{1,9}))?(?:, block=(\d{1,9}))?(?:, copies=(\d{1,4}))?\)"
    rf"|partial\(({'|'.join(REDUCTIONS)})\)"
)


def parse_sharding(text: str) -> Sharding:
    """Returns the sharding with this `repr`; raises ValueError for another text."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no sharding")
    word, axis, groups, block, copies, reduction = match.groups()
    if word:
        return WHOLE
    if axis is None:
        return Partial(reduction)
    return Split(int(axis), int(groups or 1), int(block or 0), int(copies or 1))


def local_type(type: TensorType, sharding: Sharding, ranks: int) -> TensorType:
    """Returns the type of the array that a rank holds.

    Raises ValueError where the ranks have no equal blocks.
    """
    if not isinstance(sharding, Split):
        return type
    axis = sharding.axis
    if axis >= type.rank:
        raise ValueError(f"{type} has no {ranks} equal blocks for {sharding}")
    size = sharding.length(type.shape[axis], ranks) * sharding.groups
    return replace(type, shape=replaced(type.shape, axis, size))


def type_bytes(type: TensorType) -> int:
    """Returns the bytes of an array; a symbolic size counts as its typical value."""
    return packed_size(prod(map(typical, type.shape)), type.dtype)
