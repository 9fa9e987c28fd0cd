"""Samples of the ops of `tcc.ops.composite.signal`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.index import const
from tcc.ir.types import F32, F64
from tcc.ops.composite.signal import DftAttrs, MelAttrs, SignalWindowAttrs, StftAttrs

from tests.ops.samples.sampling import Sample, Samples


def _dft_samples(rng: np.random.Generator) -> Iterator[Sample]:
    real = rng.standard_normal((2, 7, 1)).astype(np.float32)
    pair = rng.standard_normal((1, 6, 3, 2)).astype(np.float32)
    yield Sample((real,), DftAttrs(1, const(7), False, False), "real")
    yield Sample((real,), DftAttrs(1, const(7), False, True), "onesided")
    yield Sample((pair,), DftAttrs(1, const(6), False, False), "complex")
    yield Sample((pair,), DftAttrs(2, const(3), True, False), "inverse")
    yield Sample((real,), DftAttrs(1, const(9), False, False), "longer")
    yield Sample((pair,), DftAttrs(1, const(4), False, False), "shorter")
    yield Sample((pair,), DftAttrs(1, const(10), True, True), "real-inverse")
    half = rng.standard_normal((2, 7, 2)).astype(np.float32)
    yield Sample((half,), DftAttrs(1, const(12), True, True), "real-inverse12")


def _stft_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 33, 1)).astype(np.float32)
    window = rng.uniform(0, 1, 8).astype(np.float32)
    yield Sample((x, window), StftAttrs(const(5), const(8), True), "onesided")
    yield Sample((x,), StftAttrs(const(4), const(7), False), "whole")
    pair = rng.standard_normal((1, 17, 2)).astype(np.float32)
    yield Sample((pair, window), StftAttrs(const(3), const(8), False), "complex")


def _mel_samples(rng: np.random.Generator) -> Iterator[Sample]:
    coarse = tuple(np.array(v, np.float64) for v in (8192, 0, 4096))
    yield Sample(coarse, MelAttrs(const(8), const(16), F32), "coarse")
    fine = tuple(np.array(v, np.float64) for v in (8000, 100, 3000))
    yield Sample(fine, MelAttrs(const(4), const(64), F32), "fine")


def _window_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    for size, periodic in ((10, True), (13, False), (2, True), (0, True)):
        yield Sample((), SignalWindowAttrs(const(size), periodic, F32), f"{size}-{int(periodic)}")
    yield Sample((), SignalWindowAttrs(const(7), True, F64), "f64")


SAMPLES: Mapping[str, Samples] = {
    "dft": _dft_samples,
    "stft": _stft_samples,
    "mel_weight_matrix": _mel_samples,
    **dict.fromkeys(("hann_window", "hamming_window", "blackman_window"), _window_samples),
}
