"""Tile group: the structure of one kernel before a schedule binds its sizes.

A group is an expression whose operands and results have been given storage: every read is an
offset into a flat buffer, with the guards under which it may touch memory.  Iterators are unified,
so that a stage and its readers name the same loop by the same variable, and adjacent loops that
run over storage as one are collapsed.

    common     iterators of every stage: the loops a kernel can run in parallel; stages that are
               cheap and no results may lack some, and are then repeated in every unit
    inner      the other iterators of a stage
    reduce     what its monoid combines

A `Schedule` (see `tcc.schedule`) says how large the block along each iterator is and which loops
are parallel; `tcc.passes.fuse.lower` binds the two into a `TileKernel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tcc.ir.index import Index, Var
from tcc.ir.scalar import Read, Scalar
from tcc.ir.tile import Guard, Scope
from tcc.ir.types import DType


@dataclass(frozen=True, slots=True)
class GroupBuffer:
    """A flat buffer of `size` elements: an operand or a result of the kernel.

    A `constant` one can be given any layout, so its strides do not speak for or against a loop.
    """

    dtype: DType
    size: Index
    scope: Scope
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """Where a read or a store touches a buffer: an offset in elements, and its guards."""

    buffer: int
    offset: Index
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class GroupStage:
    """One stage.  `accesses` gives the place of every read of an operand in `body`.

    `stores` has for each component the results it is written to (often none or one).
    """

    iters: tuple[Var, ...]
    reduce: tuple[Var, ...]
    monoid: str | None
    body: tuple[Scalar, ...]
    accesses: Mapping[Read, Access]
    stores: tuple[tuple[Access, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class TileGroup:
    """Stages in order over `buffers`; `sizes` are the size symbols the kernel needs."""

    buffers: tuple[GroupBuffer, ...]
    stages: tuple[GroupStage, ...]
    common: tuple[Var, ...]
    sizes: tuple[Var, ...]
