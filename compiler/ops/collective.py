"""Ops that the ranks of a comm compute together; every rank has its own operand.

Where an operand or a result has a block for each rank, the blocks follow each other along axis 0.
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
    Arrays,
    Infer,
    NoAttrs,
    OpSpec,
    OutArrays,
    OutTypes,
    Tolerance,
    Trait,
    Types,
)
from tcc.ir.program import COLLECTIVE_DTYPES, CollectiveKind, Reduction
from tcc.ir.types import I64, TensorType
from tcc.ops.operands import differ, none_negative, require, sizes
from tcc.ops.shapes import Shape, check_dtype, required


@frozen
class CollectiveAttrs:
    """`ranks` take part, or any number if it is 0.  `reduction` is the name of a `Reduction`,
    `root` the rank whose operand a broadcast sends, and `group` the model's name of the ranks.
    `members` are those of a `RankGroup`; without them all ranks take part.  `rows` are the rows of
    the blocks of x, and then of the result, in an all_gather or all_to_all; without them blocks are
    equal."""

    ranks: int = 0
    reduction: str = "sum"
    root: int = 0
    group: str = ""
    members: tuple[tuple[int, ...], ...] = ()
    rows: Shape = ()


def collective_kind(name: str) -> CollectiveKind:
    """Returns the kind of the op `name`."""
    return CollectiveKind[name.upper()]


_REDUCTIONS = tuple(reduction.name.lower() for reduction in Reduction)


def _infer(kind: CollectiveKind, types: Types, attrs: CollectiveAttrs) -> OutTypes:
    x, ranks = required(types, 0), attrs.ranks
    check_dtype(x.dtype, COLLECTIVE_DTYPES)
    require(attrs.reduction in _REDUCTIONS, f"no reduction {attrs.reduction}")
    require({*map(len, attrs.members)} <= {ranks}, f"a group of another size than {ranks}")
    require(0 <= attrs.root < (ranks or 1 << 31), f"rank {attrs.root} of {ranks}")
    if not (kind.sends_blocks or kind.receives_blocks):
        return (x,)
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
        return (TensorType(x.dtype, (received, *x.shape[1:])),)
    if kind.sends_blocks:
        require((as_int(first) or 0) % ranks == 0, f"axis 0 of {x} has no {ranks} equal blocks")
    if not kind.receives_blocks:
        first = first // ranks
    elif not kind.sends_blocks:
        first = first * ranks
    return (TensorType(x.dtype, (first, *x.shape[1:])),)


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
    """Combines operands in the order of the ranks; f16 in f32, integers modulo 2^64 before they are
    narrowed."""
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
    """Returns the results of all ranks for the operands of all ranks; `cuts` are the positions
    between the blocks of each operand, where blocks are not equal."""
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


def _reference(kind: CollectiveKind, arrays: Arrays, attrs: CollectiveAttrs) -> OutArrays:
    """Returns the result of rank 0 where all ranks have equal operands."""
    n = max(attrs.ranks, 1)
    cuts = [np.cumsum(sizes(attrs.rows[: n - 1]))] * n if attrs.rows else ()
    return (collected(kind, attrs, [required(arrays, 0)] * n, cuts)[0],)


def _row(kind: CollectiveKind, doc: str) -> OpSpec:
    infer: Infer = partial(_infer, kind)
    return OpSpec(
        kind.name.lower(), CollectiveAttrs, 1, infer, partial(_reference, kind),
        COLLECTIVE_DTYPES, doc, Tolerance.ACCUMULATE if kind.reduces else Tolerance.EXACT,
        traits=Trait.OPAQUE | Trait.COLLECTIVE,
    )  # fmt: skip


OPS = (
    _row(CollectiveKind.ALL_REDUCE, "The reduction of all ranks' x, on every rank."),
    _row(CollectiveKind.REDUCE_SCATTER, "A rank's own block of the reduction of all ranks' x."),
    _row(CollectiveKind.ALL_GATHER, "All ranks' x one behind another, on every rank."),
    _row(CollectiveKind.ALL_TO_ALL, "A rank's own block of every rank's x."),
    _row(CollectiveKind.BROADCAST, "The x of one rank, on every rank."),
    OpSpec(
        "rank",
        NoAttrs,
        0,
        lambda types, attrs: (TensorType(I64, ()),),
        lambda arrays, attrs: (np.zeros((), np.int64),),
        (),
        "The number of the rank that computes it.",
        traits=Trait.OPAQUE | Trait.COLLECTIVE,
    ),
)
