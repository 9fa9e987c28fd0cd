"""Samples of the ops of `tcc.ops.algebra.unary`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.types import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8
from tcc.ops.algebra.unary import CastAttrs
from tcc.ops.shapes import FLOATS

from tests.ops.samples.sampling import Sample, Samples, unary_samples


def _cast_samples(rng: np.random.Generator) -> Iterator[Sample]:
    floats = rng.uniform(-100, 100, (3, 7)).astype(np.float32)
    integers = rng.integers(-1000, 1000, (13,))
    for to in (F16, F64, I8, I32, I64, BOOL, BF16):
        yield Sample((floats,), CastAttrs(to), f"f32_to_{to.name}")
    yield Sample((integers.astype(np.int64),), CastAttrs(F32), "i64_to_f32")
    yield Sample((integers.astype(np.int32),), CastAttrs(U8), "i32_to_u8")
    yield Sample((integers % 2 == 0,), CastAttrs(F32), "bool_to_f32")
    special = np.array([np.nan, np.inf, -np.inf, 3e38, -0.5], np.float32)
    yield Sample((special,), CastAttrs(I32), "special")
    yield Sample((np.zeros((0, 2), np.float32),), CastAttrs(F64), "empty")


_UNIT = (-0.999, 0.999)
# The ranges in which functions are defined or typically used; other functions use -4 to 4.
_DOMAINS = {
    "sqrt": (0.0, 9.0),
    "exp": (-20.0, 9.0),
    "log": (1e-3, 9.0),
    "sin": (-50.0, 50.0),
    "cos": (-50.0, 50.0),
    "tan": (-1.5, 1.5),
    "asin": _UNIT,
    "acos": _UNIT,
    "acosh": (1.01, 9.0),
    "atanh": _UNIT,
}

SAMPLES: Mapping[str, Samples] = {
    "cast": _cast_samples,
    **{name: unary_samples(FLOATS, *domain) for name, domain in _DOMAINS.items()},
}
