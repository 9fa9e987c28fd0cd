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
    data_dependent,
    diagonal,
    grid,
    indexing,
    loss,
    magnitude,
    movement,
    normalization,
    pad,
    pool,
    quantize,
    quantized,
    reduce,
    resize,
    roi,
    scan,
    signal,
    sizes,
    softmax,
    unary,
    window,
)

_FAMILIES = (
    unary.OPS,
    arithmetic.OPS,
    activation.OPS,
    reduce.OPS,
    softmax.OPS,
    normalization.OPS,
    magnitude.OPS,
    scan.OPS,
    quantize.OPS,
    diagonal.OPS,
    loss.OPS,
    movement.OPS,
    pad.OPS,
    contract.OPS,
    window.OPS,
    pool.OPS,
    quantized.OPS,
    indexing.OPS,
    create.OPS,
    resize.OPS,
    data_dependent.OPS,
    control.OPS,
    grid.OPS,
    roi.OPS,
    signal.OPS,
    sizes.OPS,
)


def _join() -> Mapping[str, OpSpec]:
    table: dict[str, OpSpec] = {}
    for row in (row for family in _FAMILIES for row in family):
        if row.name in table:
            raise ValueError(f"two ops are called {row.name}")
        table[row.name] = row
    return MappingProxyType(table)


OPS: Mapping[str, OpSpec] = _join()
