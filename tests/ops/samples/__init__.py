"""Samples: small test cases of every op of `tcc.ops`, in one module per family.

Ops without an entry in their family's `SAMPLES` get samples that follow from their row
(`defaults`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
from tcc.ir.op import OpSpec

from . import control, expression, random, sizes
from .algebra import (
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
from .composite import (
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
from .data import data_dependent, indexing, level_rows, lists, strings, tfidf
from .defaults import default_samples
from .sampling import Sample, Samples

_FAMILIES = (
    activation, arithmetic, attention, bits, contract, control, create, cumulative,
    data_dependent, diagonal, expression, grid, indexing, level_rows, levels, linalg,
    lists,
    magnitude, movement, narrow, normalization, pad, pool, quantize, quantized,
    random, reduce, resize, roi, signal, sizes, softmax, strings, tfidf, unary,
    window,
)  # fmt: skip
_ENTRIES = [entry for family in _FAMILIES for entry in family.SAMPLES.items()]
ENTRIES: Mapping[str, Samples] = MappingProxyType(dict(_ENTRIES))
assert len(ENTRIES) == len(_ENTRIES), "two entries for one op"


def samples_of(op: OpSpec, rng: np.random.Generator | None = None) -> Iterator[Sample]:
    """Yields the samples of a row: scalars, size one and zero, broadcasts, odd sizes.

    Arrays are drawn from `rng`, by default from a generator seeded with the CRC-32 of the name.
    Raises LookupError if the op has no entry and no samples follow from its row.
    """
    samples = ENTRIES.get(op.name) or default_samples(op)
    if samples is None:
        raise LookupError(
            f"op {op.name} has no samples: add an entry to the SAMPLES of its family in "
            "tests/ops/samples"
        )
    return samples(rng or np.random.default_rng(zlib.crc32(op.name.encode())))


__all__ = ["ENTRIES", "Sample", "Samples", "samples_of"]
