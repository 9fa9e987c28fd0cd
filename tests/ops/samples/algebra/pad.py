"""Samples of the ops of `tcc.ops.algebra.pad`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ops.algebra.pad import PadAttrs
from tcc.ops.operands import dims

from tests.ops.samples.sampling import Sample, Samples


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((3, 5, 2)).astype(np.float32)
    value = np.array(1.5, np.float32)
    yield Sample((x, value), PadAttrs(dims(1, 0, 2), dims(0, 3, 1), "constant"), "value")
    yield Sample((x,), PadAttrs(dims(0, 2, 0), dims(0, 0, 1), "constant"), "zero")
    yield Sample((x,), PadAttrs(dims(-1, 2, 0), dims(0, -3, 1), "constant"), "crop")
    for mode in ("edge", "reflect", "wrap"):
        yield Sample((x,), PadAttrs(dims(1, 0, 1), dims(2, 3, 0), mode), mode)
        # Rows of several blocks, longer than the borders: the first and the last block have
        # separate code.
        long = rng.standard_normal((3, 400)).astype(np.float32)
        yield Sample((long,), PadAttrs(dims(1, 3), dims(2, 5), mode), f"{mode}_long")
    y = rng.integers(-9, 9, (7,))
    yield Sample((y, np.array([3])), PadAttrs(dims(2), dims(2), "constant"), "i64")
    for before, after in ((-9, 4), (4, -9)):
        yield Sample((y,), PadAttrs(dims(before), dims(after), "constant"), f"beyond_{before}")
    yield Sample((y,), PadAttrs(dims(6), dims(5), "reflect"), "far")


SAMPLES: Mapping[str, Samples] = {
    "pad": _samples,
}
