"""Samples of the ops of `tcc.ops.algebra.arithmetic`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.op import NoAttrs
from tcc.ir.types import BOOL, DTYPES, F16, F32, F64, I32, I64
from tcc.ops.algebra.arithmetic import BitShiftAttrs, ModAttrs
from tcc.ops.shapes import INTEGERS, NUMERIC

from tests.ops.samples.sampling import Sample, Samples, binary_samples, draw


def _pow_samples(rng: np.random.Generator) -> Iterator[Sample]:
    base = rng.uniform(0.1, 3.0, (3, 7))
    exponent = rng.uniform(-3.0, 3.0, (7,))
    for a, b in ((F32, F32), (F64, F64), (F16, F16), (F32, F64)):
        pair = base.astype(a.carrier), exponent.astype(b.carrier)
        yield Sample(pair, NoAttrs(), f"{a.name}_{b.name}")
    integers = rng.integers(-4, 5, (3, 7))
    small = rng.integers(0, 4, (7,))
    for a, b in ((F32, I32), (F32, I64), (I32, I32), (I64, I64), (I32, F32)):
        yield Sample(
            (integers.astype(a.carrier), small.astype(b.carrier)), NoAttrs(), f"{a.name}_{b.name}"
        )
    square = np.array(2.0, np.float32)
    yield Sample((base.astype(np.float32), square), NoAttrs(), "square")


def _where_samples(rng: np.random.Generator) -> Iterator[Sample]:
    condition = rng.integers(0, 2, (3, 7)) == 1
    for dtype in (F32, F64, F16, I32, I64, DTYPES["u8"], BOOL):
        x, y = draw(rng, dtype, (3, 7), -9, 9), draw(rng, dtype, (7,), -9, 9)
        yield Sample((condition, x, y), NoAttrs(), dtype.name)
    nan = np.full((2, 1, 1), np.nan, np.float32)
    yield Sample((condition, nan, np.float32(1) + nan * 0), NoAttrs(), "broadcast")
    yield Sample((condition[:0], nan[0], nan[0]), NoAttrs(), "empty")


_MOD = (ModAttrs(), ModAttrs(True))
_SHIFTS = (BitShiftAttrs("LEFT"), BitShiftAttrs("RIGHT"))

SAMPLES: Mapping[str, Samples] = {
    "pow": _pow_samples,
    "where": _where_samples,
    "div": binary_samples(NUMERIC, -90.0, 90.0),
    "mod": binary_samples(NUMERIC, -20.0, 20.0, right=(1.0, 7.0), attrs=_MOD, special=False),
    "equal": binary_samples((*NUMERIC, BOOL), -1.5, 1.5),
    "bit_shift": binary_samples(
        INTEGERS,
        0.0,
        100.0,
        right=(0.0, 9.0),
        attrs=_SHIFTS,
    ),
}
