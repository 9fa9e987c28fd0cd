"""Shardings: how the ranks of a mesh axis hold a value.

whole           every rank has the value
split(1)        rank r of n has block r of n equal blocks along axis 1
partial(sum)    every rank has a value of the same shape; their sum is the value
"""

import re
from dataclasses import replace
from typing import TypeAlias

from tcc.frozen import frozen
from tcc.ir.index import as_int, const
from tcc.ir.types import TensorType

REDUCTIONS = ("sum", "prod", "max", "min")  # the monoids that collectives combine by


@frozen
class Whole:
    """Every rank has the value."""

    def __repr__(self) -> str:
        return "whole"


@frozen
class Split:
    """The ranks have equal blocks along `axis`, in order, of each of `groups` equal groups."""

    axis: int
    groups: int = 1

    def __repr__(self) -> str:
        return f"split({self.axis}, {self.groups})" if self.groups > 1 else f"split({self.axis})"


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
    rf"(whole)|split\((\d{{1,4}})(?:, (\d{{1,9}}))?\)|partial\(({'|'.join(REDUCTIONS)})\)"
)


def parse_sharding(text: str) -> Sharding:
    """Returns the sharding with this `repr`; raises ValueError for another text."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no sharding")
    word, axis, groups, reduction = match.groups()
    if word:
        return WHOLE
    return Split(int(axis), int(groups or 1)) if axis else Partial(reduction)


def local_type(type: TensorType, sharding: Sharding, ranks: int) -> TensorType:
    """Returns the type of the array that a rank holds.

    Raises ValueError where the ranks have no equal blocks.
    """
    if not isinstance(sharding, Split):
        return type
    axis = sharding.axis
    size = as_int(type.shape[axis]) if axis < type.rank else None
    if not size or size % (ranks * sharding.groups):
        raise ValueError(f"{type} has no {ranks} equal blocks for {sharding}")
    block = const(size // ranks)
    return replace(type, shape=(*type.shape[:axis], block, *type.shape[axis + 1 :]))
