"""Pooling over regions of interest.

How many elements a region averages depends on data, so the ops are C functions.
"""

from collections.abc import Sequence
from math import ceil, copysign, floor

import numpy as np
from tcc.frozen import frozen
from tcc.ir.index import const
from tcc.ir.op import (
    Array,
    OnnxBinding,
    Tolerance,
    Trait,
)
from tcc.ir.types import F32, F64, I64, TensorType
from tcc.ops.operands import dims, require
from tcc.ops.reference import in_f32
from tcc.ops.rows import op_row
from tcc.ops.shapes import agree


@frozen
class RoiAlignAttrs:
    """`mode` is "avg" or "max"; `half_pixel` shifts the regions by half a pixel.

    A `sampling_ratio` of 0 takes as many samples as the region has pixels.
    """

    mode: str
    output_height: int
    output_width: int
    sampling_ratio: int
    spatial_scale: float
    half_pixel: bool


@frozen
class MaxRoiPoolAttrs:
    pooled_shape: tuple[int, ...]
    spatial_scale: float


def _check_regions(corners: Array, scale: float, batches: Array, x: Array) -> None:
    """Raises ValueError for regions that the C functions refuse.

    Coordinates must be finite and not too large, and batch numbers must be below x's batch size.
    """
    if not np.all(np.abs(corners.astype(np.float64) * scale) <= 2.0**31):
        raise ValueError("a region's coordinate is not finite or too large")
    if not np.all((batches >= 0) & (batches < x.shape[0])):
        raise ValueError(f"a region's batch is none of {x.shape[0]}")


# ---- roi_align -----------------------------------------------------------------------------------


def _align_infer(
    attrs: RoiAlignAttrs, x: TensorType, rois: TensorType, batches: TensorType
) -> TensorType:
    require(batches.rank == 1 and batches.dtype is I64, f"{batches} must be a vector of i64")
    require(
        0 <= attrs.sampling_ratio < 2**31,
        f"the sampling ratio {attrs.sampling_ratio} is outside i32",
    )
    require(attrs.mode in ("avg", "max"), f"unknown mode {attrs.mode}")
    return _cells(x, rois, 4, (attrs.output_height, attrs.output_width))


def _cells(x: TensorType, rois: TensorType, numbers: int, cells: Sequence[int]) -> TensorType:
    """Returns the result's type for regions `rois` and pooled sizes `cells`.

    `numbers` is the required size of axis 1 of `rois`: the count of numbers that describe a region.
    """
    require(x.rank == 4, f"regions lie in [batch, channel, height, width], not in {x}")
    require(rois.rank == 2, f"regions {rois} must be [n, {numbers}]")
    agree(rois.shape[1], const(numbers), "the numbers of a region")
    require(rois.dtype is x.dtype, f"{rois} and {x} differ in type")
    return TensorType(x.dtype, (rois.shape[0], x.shape[1], *dims(*cells)))


def _corner_weights(at: float, size: int) -> list[tuple[int, float]]:
    if at < -1.0 or at > size:
        return []
    at = max(at, 0.0)
    low = min(int(at), size - 1)
    high = min(low + 1, size - 1)
    fraction = 0.0 if low == size - 1 else at - low
    return [(low, 1 - fraction), (high, fraction)]


@in_f32
def _align_reference(attrs: RoiAlignAttrs, x: Array, rois: Array, batches: Array) -> Array:
    oh, ow = attrs.output_height, attrs.output_width
    y = np.zeros((len(rois), x.shape[1], oh, ow), np.float64)
    if y.size:
        _check_regions(rois, attrs.spatial_scale, batches, x)
    for r, c, ph, pw in np.ndindex(*y.shape):
        shift = 0.5 if attrs.half_pixel else 0.0
        x1, y1, x2, y2 = (float(v) * attrs.spatial_scale - shift for v in rois[r])
        height, width = y2 - y1, x2 - x1
        if not attrs.half_pixel:
            height, width = max(height, 1.0), max(width, 1.0)
        rows = attrs.sampling_ratio or max(ceil(height / oh), 0)
        columns = attrs.sampling_ratio or max(ceil(width / ow), 0)
        terms = []
        for row, column in np.ndindex(rows, columns):
            ty = y1 + (ph + (row + 0.5) / rows) * height / oh
            tx = x1 + (pw + (column + 0.5) / columns) * width / ow
            corners = [
                float(x[batches[r], c, a, b]) * wa * wb
                for a, wa in _corner_weights(ty, x.shape[2])
                for b, wb in _corner_weights(tx, x.shape[3])
            ]
            terms.append(corners or [0.0])
        if attrs.mode == "avg":
            y[r, c, ph, pw] = sum(map(sum, terms)) / max(len(terms), 1)
        else:
            y[r, c, ph, pw] = (
                float(np.max([v for t in terms for v in t], initial=-np.inf)) if terms else 0.0
            )
    return y


# ---- max_roi_pool --------------------------------------------------------------------------------


def _pool_infer(attrs: MaxRoiPoolAttrs, x: TensorType, rois: TensorType) -> TensorType:
    require(len(attrs.pooled_shape) == 2, f"cells {attrs.pooled_shape} are not two-dimensional")
    return _cells(x, rois, 5, attrs.pooled_shape)


def _round(x: float) -> int:
    """Returns `x` rounded to the nearest integer; ties are rounded away from zero."""
    return int(copysign(floor(abs(x) + 0.5), x))


def _pool_reference(attrs: MaxRoiPoolAttrs, x: Array, rois: Array) -> Array:
    y = np.zeros((len(rois), x.shape[1], *attrs.pooled_shape), x.dtype)
    if y.size:
        _check_regions(rois[:, 1:], attrs.spatial_scale, rois[:, 0], x)
    for r, c, ph, pw in np.ndindex(*y.shape):
        # The coordinates are first rounded to the type of `rois`. This rounding decides which
        # coordinates are ties when they are rounded to pixels.
        scaled = (rois[r, 1:].astype(np.float64) * attrs.spatial_scale).astype(rois.dtype)
        x1, y1, x2, y2 = (_round(float(v)) for v in scaled)
        spans = []
        for p, parts, low, high, extent in (
            (ph, attrs.pooled_shape[0], y1, y2, x.shape[2]),
            (pw, attrs.pooled_shape[1], x1, x2, x.shape[3]),
        ):
            step = np.float32(max(high - low + 1, 1)) / np.float32(parts)
            start, end = floor(p * step) + low, ceil((p + 1) * step) + low
            spans.append(slice(min(max(start, 0), extent), min(max(end, 0), extent)))
        part = x[int(rois[r, 0]), c, spans[0], spans[1]]
        y[r, c, ph, pw] = part.max() if part.size else 0
    return y


OPS = (
    op_row(
        "roi_align", RoiAlignAttrs, _align_infer, _align_reference,
        (F32, F64),
        "Bilinear samples of each region, averaged or maximised per cell; (x, regions, batches).",
        Tolerance.ACCUMULATE,
        traits=Trait.OPAQUE,
    ),
    op_row(
        "max_roi_pool", MaxRoiPoolAttrs, _pool_infer, _pool_reference,
        (F32, F64),
        "The maximum of each cell of each region; regions are (batch, x1, y1, x2, y2).",
        traits=Trait.OPAQUE, onnx=OnnxBinding("MaxRoiPool"),
    ),
)  # fmt: skip
