"""Results of collectives on all ranks, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.ir.op import Array
from tcc.ir.program import CollectiveKind, Reduction
from tcc.ops.collective import CollectiveAttrs

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
