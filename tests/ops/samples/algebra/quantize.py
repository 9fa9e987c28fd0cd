"""Samples of the ops of `tcc.ops.algebra.quantize`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.narrow import FORMATS
from tcc.ir.op import NoAttrs
from tcc.ir.types import BF16, F16, F32, I2, I4, I8, I16, I32, U2, U4, U8, U16
from tcc.ops.algebra.quantize import DequantizeAttrs, QuantizeAttrs

from tests.ops.samples.sampling import Sample, Samples, draw

_NARROW = (I8, U8, I16, U16)
_PACKED = (I2, I4, U2, U4)


def _quantize_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = draw(rng, F32, (3, 7, 5), -90, 90)
    for to in (*_NARROW, *_PACKED):
        zero = np.asarray(11 if to in _NARROW else 1, to.carrier)
        scale = np.asarray(0.5 if to in _NARROW else 30, np.float32)
        given_zero = (zero,) if to in _NARROW else ()  # bytes do not tell packed types
        yield Sample((x, scale, *given_zero), QuantizeAttrs(to), f"tensor_{to.name}")
    for to in FORMATS:
        yield Sample((x, np.asarray(0.2, np.float32)), QuantizeAttrs(to), f"tensor_{to.name}")
        attrs = QuantizeAttrs(to, saturate=False)
        yield Sample((x, np.asarray(0.002, np.float32)), attrs, f"beyond_{to.name}")
    scales = rng.uniform(0.1, 2, (7,)).astype(np.float32)
    zeros = rng.integers(0, 200, (7,)).astype(np.uint8)
    yield Sample((x, scales, zeros), QuantizeAttrs(U8), "axis")
    yield Sample((x, scales), QuantizeAttrs(U8), "no_zero")
    blocks = rng.uniform(0.1, 2, (3, 3, 5)).astype(np.float32)
    zeros = rng.integers(-9, 9, (3, 3, 5)).astype(np.int8)
    yield Sample((x, blocks, zeros), QuantizeAttrs(I8, 1, 3), "block")
    half = draw(rng, F16, (13,), -90, 90)
    zero = np.asarray(3, np.int8)
    yield Sample((half, np.asarray(0.5, np.float16), zero), QuantizeAttrs(I8), "f16")
    for precision in (F16, BF16):
        attrs = QuantizeAttrs(I8, precision=precision)
        yield Sample((x, np.asarray(0.37, np.float32)), attrs, f"precision_{precision.name}")
    ties = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e9, -1e9], np.float32)
    yield Sample((ties, np.asarray(1, np.float32), zero), QuantizeAttrs(I8), "ties")


def _dequantize_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for source in (*_NARROW, I32):
        x = draw(rng, source, (3, 7, 5), -90, 90)
        zero = np.asarray(0 if source is I32 else 11, source.carrier)
        scale = np.asarray(0.05, np.float32)
        yield Sample((x, scale, zero), DequantizeAttrs(), f"tensor_{source.name}")
    x = draw(rng, U8, (3, 7, 5), 0, 255)
    scales = rng.uniform(0.1, 2, (7,)).astype(np.float32)
    zeros = rng.integers(0, 200, (7,)).astype(np.uint8)
    yield Sample((x, scales, zeros), DequantizeAttrs(), "axis")
    yield Sample((x, scales), DequantizeAttrs(), "no_zero")
    yield Sample((x, scales.astype(np.float16), zeros), DequantizeAttrs(), "f16")
    blocks = rng.uniform(0.1, 2, (3, 3, 5)).astype(np.float32)
    yield Sample((x, blocks), DequantizeAttrs(1, 3), "block")


def _dynamic_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for low, high in ((-3.0, 5.0), (1.0, 2.0), (-7.0, -1.0)):
        yield Sample((draw(rng, F32, (3, 17), low, high),), NoAttrs(), f"from_{low:g}")
    yield Sample((np.zeros((5,), np.float32),), NoAttrs(), "zeros")
    yield Sample((np.asarray(2.5, np.float32),), NoAttrs(), "scalar")


SAMPLES: Mapping[str, Samples] = {
    "quantize_linear": _quantize_samples,
    "dequantize_linear": _dequantize_samples,
    "dynamic_quantize_linear": _dynamic_samples,
}
