"""Samples of the ops of `tcc.ops.composite.resize`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tcc.ir.index import const
from tcc.ops.composite.resize import COORDINATES, MODES, NEAREST, ResizeAttrs
from tcc.ops.operands import dims

from tests.ops.samples.sampling import Sample, Samples


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((1, 2, 5, 7)).astype(np.float32)

    def attrs(h: int, w: int, **options: Any) -> ResizeAttrs:
        resize_attrs = ResizeAttrs(dims(1, 2, h, w), (None, None, None, None))
        return replace(resize_attrs, **options)

    for mode in MODES:
        for coordinate in COORDINATES[:5]:
            resize = attrs(8, 6, mode=mode, coordinate_mode=coordinate)
            yield Sample((x,), resize, f"{mode}-{coordinate}")
    for rounding in NEAREST:
        resize = attrs(9, 4, nearest_mode=rounding, coordinate_mode="asymmetric")
        yield Sample((x,), resize, rounding)
    first = attrs(9, 4, nearest_mode="floor", coordinate_mode="tf_half_pixel_for_nn")
    yield Sample((x,), first, "tensorflow")
    up = attrs(10, 21, scales=(1.0, 1.0, 2.0, 3.0))
    yield Sample((x,), up, "whole")
    yield Sample((x,), replace(up, coordinate_mode="asymmetric", nearest_mode="floor"), "yolo")
    yield Sample((x,), attrs(3, 4, scales=(1.0, 1.0, 0.6, 0.6), mode="linear"), "scales")
    aligned = attrs(3, 4, scales=(1.0, 1.0, 0.7, 0.6), coordinate_mode="align_corners")
    yield Sample((x,), replace(aligned, mode="cubic"), "scales-aligned")
    yield Sample((x,), replace(aligned, mode="linear", fractional=True), "fractional")
    kept_half = attrs(5, 4, scales=(1.0, 1.0, 1.1, 0.7), coordinate_mode="kept_half_pixel")
    yield Sample((x,), replace(kept_half, mode="linear"), "kept")
    yield Sample((x,), attrs(1, 1, mode="linear", coordinate_mode="align_corners"), "one")
    cubic = attrs(9, 8, mode="cubic", exclude_outside=True, cubic_coeff_a=-0.5)
    yield Sample((x,), cubic, "exclude")
    roi = ((0.0, 1.0), (0.0, 1.0), (0.25, 1.2), (0.5, 0.9))
    for mode in MODES[:2]:
        crop = attrs(4, 3, mode=mode, coordinate_mode="tf_crop_and_resize", roi=roi)
        yield Sample((x,), replace(crop, extrapolation_value=9.0), f"{mode}-crop")
    half = np.array([1, 1, 0.6, 0.6])
    with_scales = attrs(3, 4, scales=(None,) * 4)
    for mode in MODES:
        yield Sample((x, half), replace(with_scales, mode=mode), f"{mode}-given-scales")
    crop = attrs(4, 3, mode="linear", coordinate_mode="tf_crop_and_resize")
    places = np.array([0, 0, 0.25, 0.5, 1, 1, 1.2, 0.9])
    yield Sample((x, None, places), replace(crop, extrapolation_value=9.0), "given-roi")
    for mode, taps in (("linear", 4), ("cubic", 8)):
        wide_ = replace(with_scales, mode=mode, taps=const(taps))
        yield Sample((x, half), wide_, f"{mode}-antialias")
        sized = attrs(3, 5, mode=mode, taps=const(taps), exclude_outside=True)
        yield Sample((x,), sized, f"{mode}-antialias-sizes")
    image = rng.integers(0, 255, (3, 4), np.uint8)
    yield Sample((image,), ResizeAttrs(dims(6, 8), (2.0, 2.0)), "u8")


SAMPLES: Mapping[str, Samples] = {
    "resize": _samples,
}
