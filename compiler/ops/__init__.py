"""The op table: a row for every op of tcc, by the op's name.

`OPS` holds the rows of all families. Two rows with one name raise an error at import.
"""

from collections.abc import Mapping
from types import MappingProxyType

from tcc.ir.op import OpSpec
from tcc.ops import collective, control, expression, random, sizes
from tcc.ops.algebra import (
    activation,
    arithmetic,
    bits,
    contract,
    create,
    cumulative,
    diagonal,
    levels,
    movement,
    narrow,
    pad,
    pool,
    quantize,
    quantized,
    reduce,
    unary,
    window,
)
from tcc.ops.composite import (
    attention,
    grid,
    linalg,
    magnitude,
    normalization,
    resize,
    roi,
    signal,
    softmax,
)
from tcc.ops.data import data_dependent, indexing, level_rows, lists, strings, tfidf

_FAMILIES = (
    activation, arithmetic, attention, bits, contract, control, create,
    data_dependent, diagonal, expression, grid, indexing, level_rows, levels, linalg, lists,
    magnitude, movement, narrow, normalization, pad, pool, quantize, quantized, reduce, resize, roi,
    cumulative, signal, sizes, softmax, strings, tfidf, unary, window,
    collective, random,
)  # fmt: skip
_ROWS = [row for family in _FAMILIES for row in family.OPS]
OPS: Mapping[str, OpSpec] = MappingProxyType({row.name: row for row in _ROWS})
assert len(OPS) == len(_ROWS), "two ops of one name"
