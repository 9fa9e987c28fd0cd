"""Samples of the ops of `tcc.ops.algebra.quantized`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tcc.ir.op import Array, NoAttrs
from tcc.ops.algebra.quantized import ConvIntegerAttrs

from tests.ops.samples.sampling import Sample, Samples


def _draw(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape, dtype)


def _matmul_integer_samples(rng: np.random.Generator) -> Iterator[Sample]:
    a, c = _draw(rng, np.uint8, 7, 13), _draw(rng, np.uint8, 13, 5)
    yield Sample((a, c), NoAttrs(), "plain")
    points = np.array(120, np.uint8), np.array(3, np.uint8)
    yield Sample((a, c, *points), NoAttrs(), "points")
    yield Sample((a, c, None, np.array(9, np.uint8)), NoAttrs(), "right")
    signed = _draw(rng, np.int8, 13, 5)
    yield Sample((a, signed, points[0], _draw(rng, np.int8, 5)), NoAttrs(), "columns")


_INTEGER = ConvIntegerAttrs((1, 2), (1, 0), (1, 1), (1, 1), 1)


def _conv_integer_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x, w = _draw(rng, np.uint8, 1, 2, 5, 7), _draw(rng, np.uint8, 3, 2, 3, 3)
    yield Sample((x, w), _INTEGER, "plain")
    yield Sample((x, w, np.array(128, np.uint8)), _INTEGER, "point")
    yield Sample((x, w), replace(_INTEGER, border=200), "border")
    signed = _draw(rng, np.int8, 3, 2, 3, 3)
    points = (np.array(7, np.uint8), np.zeros(3, np.int8))
    yield Sample((x, signed, *points), _INTEGER, "filters")


SAMPLES: Mapping[str, Samples] = {
    "matmul_integer": _matmul_integer_samples,
    "conv_integer": _conv_integer_samples,
}
