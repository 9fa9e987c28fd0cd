"""The op table: every op tcc knows, by name.

`OPS` joins the rows of the family modules; a name that two families use raises at import.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tcc.ir.op import OpSpec
from tcc.ops import (
    activation,
    arithmetic,
    contract,
    control,
    create,
    indexing,
    movement,
    pad,
    pool,
    quantized,
    reduce,
    sampling,
    sizes,
    unary,
    window,
)

_FAMILIES = (
    unary.OPS,
    arithmetic.OPS,
    activation.OPS,
    reduce.OPS,
    movement.OPS,
    pad.OPS,
    contract.OPS,
    window.OPS,
    pool.OPS,
    indexing.OPS,
    create.OPS,
    control.OPS,
    sizes.OPS,
    quantized.OPS,
    sampling.OPS,
)


def _join() -> Mapping[str, OpSpec]:
    table: dict[str, OpSpec] = {}
    for row in (row for family in _FAMILIES for row in family):
        if row.name in table:
            raise ValueError(f"two ops are called {row.name}")
        table[row.name] = row
    return MappingProxyType(table)


OPS: Mapping[str, OpSpec] = _join()
