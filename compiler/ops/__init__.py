"""The op table: every op tcc knows, by name.

`OPS` joins the rows of the family modules, which are all that is imported here; a name that two
families use raises at import.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tcc.ir.op import OpSpec
from tcc.ops import (  # noqa: F401
    activation,
    arithmetic,
    attention,
    bits,
    blocks,
    contract,
    control,
    create,
    data_dependent,
    diagonal,
    expression,
    grid,
    indexing,
    levels,
    linalg,
    lists,
    loss,
    magnitude,
    movement,
    narrow,
    normalization,
    pad,
    phases,
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
    strings,
    tfidf,
    unary,
    window,
)

_ROWS = [row for _, family in sorted(globals().items()) for row in getattr(family, "OPS", ())]
OPS: Mapping[str, OpSpec] = MappingProxyType({row.name: row for row in _ROWS})
assert len(OPS) == len(_ROWS), "two ops of one name"
