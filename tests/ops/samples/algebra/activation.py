"""Samples of the ops of `tcc.ops.algebra.activation`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tcc.ir.op import NoAttrs
from tcc.ir.types import F16, F32, F64, I32, I64, U8
from tcc.ops.algebra.activation import (
    EluAttrs,
    GeluAttrs,
    HardSigmoidAttrs,
    LeakyReluAttrs,
    SeluAttrs,
    SiluAttrs,
)
from tcc.ops.shapes import FLOATS

from tests.ops.samples.sampling import Sample, Samples, draw, unary_samples


def _clip_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (F32, F64, F16, I32, I64, U8):
        x = draw(rng, dtype, (3, 7), -9, 9)
        lo, hi = np.asarray(1, dtype.carrier), np.asarray(5, dtype.carrier)
        yield Sample((x, lo, hi), NoAttrs(), dtype.name)
    x = draw(rng, F32, (13,), -9, 9)
    one, minus = np.asarray(1, np.float32), np.asarray(-1, np.float32)
    yield Sample((x, one), NoAttrs(), "low_only")
    yield Sample((x, None, one), NoAttrs(), "high_only")
    yield Sample((x,), NoAttrs(), "free")
    yield Sample((x, one, minus), NoAttrs(), "crossed")
    yield Sample(
        (np.array([np.nan, np.inf, -np.inf], np.float32), minus, one), NoAttrs(), "special"
    )
    yield Sample((x[:0], minus, one), NoAttrs(), "empty")


def _prelu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (F32, F64, F16, I32, I64):
        x, slope = draw(rng, dtype, (2, 3, 5), -9, 9), draw(rng, dtype, (3, 1), -2, 2)
        yield Sample((x, slope), NoAttrs(), dtype.name)
    x = draw(rng, F32, (3, 7), -9, 9)
    yield Sample((x, x), NoAttrs(), "full")
    yield Sample((x[:, :0], x[0, :1]), NoAttrs(), "empty")


def _activation(*attrs: Any, span: float = 8.0) -> Samples:
    """Returns samples that use each of `attrs`, mostly the first."""
    return unary_samples(FLOATS, -span, span, attrs=attrs or (NoAttrs(),))


SAMPLES: Mapping[str, Samples] = {
    "prelu": _prelu_samples,
    "clip": _clip_samples,
    **dict.fromkeys(("relu", "hard_swish", "softplus", "softsign", "mish"), _activation()),
    "sigmoid": _activation(span=100.0),
    "leaky_relu": _activation(LeakyReluAttrs(), LeakyReluAttrs(0.3)),
    "elu": _activation(EluAttrs(), EluAttrs(0.5)),
    "selu": _activation(SeluAttrs(), SeluAttrs(1.5, 0.8)),
    "hard_sigmoid": _activation(HardSigmoidAttrs(), HardSigmoidAttrs(0.5, 0.3)),
    "gelu": _activation(GeluAttrs(), GeluAttrs("tanh")),
    "silu": _activation(SiluAttrs(), SiluAttrs(1.7)),
}
