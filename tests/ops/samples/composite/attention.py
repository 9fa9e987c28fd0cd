"""Samples of the ops of `tcc.ops.composite.attention`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from tcc.ir.index import const
from tcc.ops.composite.attention import AttentionAttrs, RotaryEmbeddingAttrs

from tests.ops.samples.sampling import Sample, Samples, normal


def _attention_samples(rng: np.random.Generator) -> Iterator[Sample]:
    f32 = partial(normal, rng)
    plain = AttentionAttrs(0.5, False, 0.0, const(0))
    yield Sample((f32(2, 3, 5, 4), f32(2, 3, 7, 4), f32(2, 3, 7, 6)), plain, "plain")
    causal = AttentionAttrs(0.3, True, 0.0, const(0))
    yield Sample((f32(1, 2, 5, 4), f32(1, 2, 5, 4), f32(1, 2, 5, 4)), causal, "causal")
    shared = (f32(1, 4, 3, 8), f32(1, 2, 7, 8), f32(1, 2, 7, 8))
    yield Sample((*shared, f32(3, 7)), plain, "shared")
    yield Sample(shared, AttentionAttrs(0.3, True, 0.0, const(4)), "offset")
    hidden = rng.random((1, 1, 3, 7)) > 0.5
    hidden[..., 0] = True
    yield Sample((*shared, hidden), AttentionAttrs(0.4, False, 2.0, const(0)), "hidden")


def _rotary_samples(rng: np.random.Generator) -> Iterator[Sample]:
    f32 = partial(normal, rng)
    positions = np.array([[0, 3, 1], [6, 2, 2]])
    for interleaved in (False, True):
        label = "interleaved" if interleaved else "halves"
        full, part = (RotaryEmbeddingAttrs(interleaved, n) for n in (8, 4))
        yield Sample((f32(2, 3, 3, 8), f32(7, 4), f32(7, 4), positions), full, label)
        yield Sample((f32(2, 1, 5, 8), f32(2, 5, 2), f32(2, 5, 2)), part, f"{label}-part")


SAMPLES: Mapping[str, Samples] = {
    "attention": _attention_samples,
    "rotary_embedding": _rotary_samples,
}
