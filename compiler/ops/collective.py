"""Ops that the ranks of a comm compute together; every rank has an operand of its own.

Where an operand or a result has a block for each rank, the blocks follow one another along axis 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.index import as_int, const
from tcc.ir.op import (
    Array,
    NoAttrs,
    OpSpec,
    Tolerance,
    Trait,
)
from tcc.ir.program import COLLECTIVE_DTYPES, CollectiveKind, Reduction
from tcc.ir.types import I64, TensorType, tensor
from tcc.ops.operands import differ, none_negative, require, sizes
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


_COMBINE: Mapping[Reduction, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        Reduction.SUM: np.add,
        Reduction.PROD: np.multiply,
        Reduction.MIN: np.minimum,
        Reduction.MAX: np.maximum,
        Reduction.AVG: np.add,
    }
)


def _combined(reduction: Reduction, operands: Sequence[Array]) -> Array:
    """Returns the operands combined in the order of the ranks.

    f16 is combined in f32. Integers are combined modulo 2^64 and then narrowed.
    """
    carrier = operands[0].dtype
    wide = {"i": "i8", "u": "i8"}.get(carrier.kind, "f4" if carrier.itemsize == 2 else carrier)
    combined = reduce(_COMBINE[reduction], (x.astype(wide) for x in operands))
    if reduction is Reduction.AVG:
        n = len(operands)
        combined = (
            combined / n if carrier.kind == "f" else np.sign(combined) * (np.abs(combined) // n)
        )
    return combined.astype(carrier)


def collected(
    kind: CollectiveKind,
    attrs: CollectiveAttrs,
    operands: Sequence[Array],
    cuts: Sequence[Any] = (),
) -> list[Array]:
    """Returns the results of all ranks, given the operands of all ranks.

    `cuts` has for each operand the positions between its blocks; if empty, all blocks are equal.
    """
    n = len(operands)
    if kind.reduces:
        operands = [_combined(Reduction[attrs.reduction.upper()], operands)] * n
    if kind.sends_blocks:
        parts = [np.split(x, at) for x, at in zip(operands, cuts or [n] * n, strict=True)]
        if kind.receives_blocks:
            return [np.concatenate(rank_parts) for rank_parts in zip(*parts, strict=True)]
        return [rank_parts[rank] for rank, rank_parts in enumerate(parts)]
    if kind.receives_blocks:
        return [np.concatenate(operands)] * n
    return [operands[attrs.root]] * n


def _reference(kind: CollectiveKind, attrs: CollectiveAttrs, x: Array) -> Array:
    """Returns the result of rank 0 if all ranks have the same operand."""
    n = max(attrs.ranks, 1)
    cuts = [np.cumsum(sizes(attrs.rows[: n - 1]))] * n if attrs.rows else ()
    return collected(kind, attrs, [x] * n, cuts)[0]


def _row(kind: CollectiveKind, doc: str) -> OpSpec:
    return op_row(
        kind.name.lower(), CollectiveAttrs, partial(_infer, kind), partial(_reference, kind),
        COLLECTIVE_DTYPES, doc, Tolerance.ACCUMULATE if kind.reduces else Tolerance.EXACT,
        call=None, traits=Trait.OPAQUE | Trait.COLLECTIVE,
    )  # fmt: skip


OPS = (
    _row(CollectiveKind.ALL_REDUCE, "The reduction of all ranks' x, on every rank."),
    _row(CollectiveKind.REDUCE_SCATTER, "A rank's own block of the reduction of all ranks' x."),
    _row(CollectiveKind.ALL_GATHER, "The concatenated x of all ranks, on every rank."),
    _row(CollectiveKind.ALL_TO_ALL, "A rank's own block of every rank's x."),
    _row(CollectiveKind.BROADCAST, "The x of one rank, on every rank."),
    op_row(
        "rank", NoAttrs, lambda _: tensor(I64), lambda _: np.zeros((), np.int64), (),
        "The number of the rank that computes it.",
        call=None, traits=Trait.OPAQUE | Trait.COLLECTIVE,
    ),
)  # fmt: skip
