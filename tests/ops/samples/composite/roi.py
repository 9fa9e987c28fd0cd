"""Samples of the ops of `tcc.ops.composite.roi`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ops.composite.roi import MaxRoiPoolAttrs, RoiAlignAttrs

from tests.ops.samples.sampling import Sample, Samples


def _align_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 2, 7, 9)).astype(np.float32)
    rois = np.array([[0, 0, 5, 5], [1.5, 2.25, 8, 6.5], [-1, 3, 4, 9]], np.float32)
    batches = np.array([0, 1, 1])
    reversed_box = (x, np.array([[5, 5, 2, 2]], np.float32), batches[:1])
    yield Sample(reversed_box, RoiAlignAttrs("avg", 3, 2, 0, 1.0, True), "turned")
    for label, attrs in (
        ("fixed", RoiAlignAttrs("avg", 3, 2, 2, 1.0, True)),
        ("adaptive", RoiAlignAttrs("avg", 2, 3, 0, 0.75, False)),
        ("max", RoiAlignAttrs("max", 2, 2, 2, 1.0, True)),
    ):
        yield Sample((x, rois, batches), attrs, label)


def _pool_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 2, 7, 9)).astype(np.float32)
    rois = np.array([[0, 0, 0, 5, 5], [1, 2, 1, 8, 6], [1, 6, 6, 6, 6]], np.float32)
    yield Sample((x, rois), MaxRoiPoolAttrs((2, 3), 1.0), "whole")
    yield Sample((x, rois), MaxRoiPoolAttrs((2, 2), 0.75), "scaled")
    halves = np.array([[0, 0, 0, 5, 5], [1, -1, -3, 3, 2]], np.float32)
    for scale in (0.5, 0.7):
        attrs = MaxRoiPoolAttrs((2, 3), float(np.float32(scale)))
        yield Sample((x, halves), attrs, f"halves_{scale}")


SAMPLES: Mapping[str, Samples] = {
    "roi_align": _align_samples,
    "max_roi_pool": _pool_samples,
}
