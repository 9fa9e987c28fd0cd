"""Samples of the ops of `tcc.ops.algebra.window`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from tcc.ops.algebra.window import Col2ImAttrs, ConvAttrs, ConvTransposeAttrs
from tcc.ops.operands import dims

from tests.ops.samples.sampling import Sample, Samples, normal


def _conv_samples(rng: np.random.Generator) -> Iterator[Sample]:
    f32 = partial(normal, rng)
    attrs = ConvAttrs((1, 1), (1, 1), (1, 1), (1, 1), 1)
    yield Sample((f32(2, 3, 7, 5), f32(4, 3, 3, 3), f32(4)), attrs, "same")
    uneven = ConvAttrs((2, 3), (0, 2), (1, 0), (2, 1), 1)
    yield Sample((f32(1, 2, 9, 11), f32(3, 2, 2, 3)), uneven, "uneven")
    depthwise = ConvAttrs((2, 1), (1, 0), (1, 0), (1, 1), 6)
    yield Sample((f32(1, 6, 7, 4), f32(6, 1, 3, 1), f32(6)), depthwise, "depthwise")
    grouped = ConvAttrs((1, 1), (0, 0), (0, 0), (1, 1), 2)
    yield Sample((f32(2, 4, 5, 5), f32(6, 2, 3, 3)), grouped, "grouped")
    line = ConvAttrs((2,), (3,), (1,), (1,), 1)
    yield Sample((f32(2, 3, 17), f32(5, 3, 4), f32(5)), line, "1d")
    cube = ConvAttrs((1, 2, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1), 1)
    yield Sample((f32(1, 2, 4, 5, 3), f32(2, 2, 2, 3, 2)), cube, "3d")
    pointwise = ConvAttrs((1, 1), (0, 0), (0, 0), (1, 1), 1)
    halves = (f32(1, 7, 3, 3).astype(np.float16), f32(5, 7, 1, 1).astype(np.float16))
    yield Sample(halves, pointwise, "f16")


def _transpose_samples(rng: np.random.Generator) -> Iterator[Sample]:
    f32 = partial(normal, rng)
    plain = ConvTransposeAttrs((1, 1), (0, 0), (0, 0), (1, 1), (0, 0), 1)
    yield Sample((f32(1, 2, 3, 4), f32(2, 3, 3, 3), f32(3)), plain, "plain")
    strided = ConvTransposeAttrs((2, 3), (1, 0), (0, 2), (1, 1), (1, 0), 1)
    yield Sample((f32(2, 3, 4, 5), f32(3, 2, 3, 4)), strided, "strided")
    grouped = ConvTransposeAttrs((2, 1), (1, 1), (1, 1), (1, 2), (0, 0), 2)
    yield Sample((f32(1, 4, 5, 5), f32(4, 3, 4, 3), f32(6)), grouped, "grouped")
    line = ConvTransposeAttrs((4,), (2,), (2,), (1,), (0,), 1)
    yield Sample((f32(1, 3, 7), f32(3, 2, 8)), line, "1d")
    wider = ConvTransposeAttrs((2,), (-1,), (-2,), (1,), (0,), 1)
    yield Sample((f32(1, 2, 5), f32(2, 1, 3)), wider, "wider")


def _col2im_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 12, 20)).astype(np.float32)
    yield Sample((x,), Col2ImAttrs((1, 1), (0, 0), (0, 0), (1, 1), dims(5, 6), (2, 2)))
    padded = Col2ImAttrs((2, 2), (1, 0), (1, 1), (1, 1), dims(5, 7), (3, 2))
    yield Sample((rng.standard_normal((1, 6, 12)).astype(np.float32),), padded, "padded")


SAMPLES: Mapping[str, Samples] = {
    "conv": _conv_samples,
    "conv_transpose": _transpose_samples,
    "col2im": _col2im_samples,
}
