"""Samples of the ops of `tcc.ops.data.tfidf`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ops.data.tfidf import MODES, TfIdfAttrs

from tests.ops.samples.sampling import Sample, Samples


def _samples(_rng: np.random.Generator) -> Iterator[Sample]:
    pool = np.array([2, 3, 5, 4, 5, 6, 7, 8, 6, 7])
    places, weights = (0, 1, 2, 3, 4, 5, 6), (1.0, 2.0, 3.0, 1.5, 0.5, 1.0, 1.0)
    rows = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]])
    for mode in MODES:
        attrs = TfIdfAttrs(mode, 1, 2, 5, (0, 4), places, weights)
        yield Sample((rows, pool), attrs, mode)
    yield Sample((rows[0].astype(np.int32), pool), TfIdfAttrs("TF", 2, 2, 0, (0, 4), places, ()))
    words = np.array(["a", "b", "a", "b"], object)
    attrs = TfIdfAttrs("TF", 1, 2, 1, (0, 2), (0, 1, 2), ())
    yield Sample((np.array(["b", "a", "b"], object), words), attrs, "strings")


SAMPLES: Mapping[str, Samples] = {
    "tf_idf": _samples,
}
