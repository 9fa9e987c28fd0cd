"""Ops that the ranks of a comm compute together; every rank has an operand of its own.

Where an operand or a result has a block for each rank, the blocks follow one another along axis 0.
"""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.index import as_int, const
from tcc.ir.op import (
    Array,
    NoAttrs,
    OpSpec,
    Trait,
)
from tcc.ir.program import COLLECTIVE_DTYPES, CollectiveKind, Reduction
from tcc.ir.types import I64, TensorType, tensor
from tcc.ops.operands import differ, none_negative, require
from tcc.ops.rows import op_row
from tcc.ops.shapes import Shape, check_dtype


@frozen
class CollectiveAttrs:
    """The ranks that take part, and the combination of their operands.

    `ranks` is the number of ranks; 0 stands for any number. `reduction` is the name of a
    `Reduction`. `root` is the rank whose operand a broadcast sends. `group` is the model's name for
    the group of ranks.

    `members` has the lists of ranks of a `RankGroup`; if it is empty, all ranks take part.

    `rows` is empty if all blocks have equally many rows. An all_gather or all_to_all may have
    unequal blocks. Then `rows` has the number of rows of each block of the operand, followed by
    the number of rows of each block of the result.
    """

    ranks: int = 0
    reduction: str = "sum"
    root: int = 0
    group: str = ""
    members: tuple[tuple[int, ...], ...] = ()
    rows: Shape = ()


def collective_kind(name: str) -> CollectiveKind:
    """Returns the kind of the op called `name`."""
    return CollectiveKind[name.upper()]


_REDUCTIONS = tuple(reduction.name.lower() for reduction in Reduction)


def _infer(kind: CollectiveKind, attrs: CollectiveAttrs, x: TensorType) -> TensorType:
    ranks = attrs.ranks
    check_dtype(x.dtype, COLLECTIVE_DTYPES)
    require(attrs.reduction in _REDUCTIONS, f"no reduction {attrs.reduction}")
    require({*map(len, attrs.members)} <= {ranks}, f"a group of another size than {ranks}")
    require(0 <= attrs.root < (ranks or 1 << 31), f"rank {attrs.root} of {ranks}")
    if not (kind.sends_blocks or kind.receives_blocks):
        return x
    require(ranks > 0 and x.rank > 0, f"{x} for {ranks} ranks has no blocks")
    first = x.shape[0]
    if attrs.rows:
        parts = ranks + (ranks if kind.sends_blocks else 1)
        require(kind.receives_blocks and len(attrs.rows) == parts, f"{len(attrs.rows)} blocks")
        none_negative(attrs.rows, "a block has less than no rows")
        sent, received = (
            sum(part, const(0)) for part in (attrs.rows[:-ranks], attrs.rows[-ranks:])
        )
        require(not differ(sent, first), f"its blocks have {sent.key} rows of {x}")
        return TensorType(x.dtype, (received, *x.shape[1:]))
    if kind.sends_blocks:
        require((as_int(first) or 0) % ranks == 0, f"axis 0 of {x} has no {ranks} equal blocks")
    if not kind.receives_blocks:
        first = first // ranks
    elif not kind.sends_blocks:
        first = first * ranks
    return TensorType(x.dtype, (first, *x.shape[1:]))


def _reference(_attrs: CollectiveAttrs | NoAttrs, *_operands: Array) -> NoReturn:
    raise UserError(
        "a collective is evaluated with all its ranks together",
        why="it needs what other ranks have",
        hint="compile the model and run it on all ranks",
    )


_TRAITS = Trait.OPAQUE | Trait.COLLECTIVE


def _row(kind: CollectiveKind, doc: str) -> OpSpec:
    return op_row(
        kind.name.lower(), CollectiveAttrs, partial(_infer, kind), _reference, COLLECTIVE_DTYPES,
        doc, call=None, traits=_TRAITS,
    )  # fmt: skip


OPS = (
    _row(CollectiveKind.ALL_REDUCE, "The reduction of all ranks' x, on every rank."),
    _row(CollectiveKind.REDUCE_SCATTER, "A rank's own block of the reduction of all ranks' x."),
    _row(CollectiveKind.ALL_GATHER, "The concatenated x of all ranks, on every rank."),
    _row(CollectiveKind.ALL_TO_ALL, "A rank's own block of every rank's x."),
    _row(CollectiveKind.BROADCAST, "The x of one rank, on every rank."),
    op_row(
        "rank", NoAttrs, lambda _: tensor(I64), _reference, (),
        "The number of the rank that computes it.",
        call=None, traits=_TRAITS,
    ),
)  # fmt: skip
