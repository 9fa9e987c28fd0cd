"""Normalisations that do not subtract the mean: root mean square, local response."""

from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast, index_value
from tcc.ir.op import Array, OnnxBinding
from tcc.ir.types import F32, F64, TensorType, element_count
from tcc.ops.composite.moments import (
    NormAttrs,
    check_affine,
    last_axes,
    mean_of,
    normalization_op,
    reciprocal_root,
)
from tcc.ops.formula import fn, outside, read_aligned, total, wide
from tcc.ops.reference import in_f32, widen_half
from tcc.ops.shapes import (
    FLOATS,
    Point,
    check_axis,
    check_dtype,
    check_rank,
)


@frozen
class LrnAttrs:
    """The result is x / (bias + alpha / size * s) ** beta.

    s is the sum of the squares over the `size` channels around the element's channel.
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0


def _rms_infer(attrs: NormAttrs, x: TensorType, scale: TensorType) -> TensorType:
    check_dtype(x.dtype, FLOATS)
    check_dtype(scale.dtype, FLOATS, "the scale")
    check_axis(attrs.axis, x.rank)
    check_affine(x, scale)
    return TensorType(scale.dtype, x.shape)


def _rms_expr(b: ExprBuilder, attrs: NormAttrs, x: TensorType, scale: TensorType) -> StageRef:
    compute = F64 if F64 in (x.dtype, scale.dtype) else F32
    axes = last_axes(attrs.axis, x.rank)

    def square(at: Point) -> Scalar:
        value = cast(b.read(0, *at), compute)
        return value * value

    squares = total(b, x.shape, axes, "sum", square)
    at = b.point(x)
    count = index_value(element_count(x.shape[attrs.axis :]), compute)
    mean = b.read(squares, *outside(at, axes)) / count
    normal = cast(b.read(0, *at), compute) * reciprocal_root(mean, attrs.epsilon)
    y = normal * cast(read_aligned(b, 1, scale, at), compute)
    return b.stage(at, cast(y, scale.dtype))


def _rms_reference(attrs: NormAttrs, x: Array, scale: Array) -> Any:
    wide_x = widen_half(x)
    with np.errstate(all="ignore"):
        mean = mean_of(wide_x**2, last_axes(attrs.axis, x.ndim))
        normal = wide_x / np.sqrt(mean + np.asarray(attrs.epsilon, wide_x.dtype))
        return (normal * scale).astype(scale.dtype)


# ---- local response ------------------------------------------------------------------------------


def _lrn_infer(attrs: LrnAttrs, x: TensorType) -> TensorType:
    check_dtype(x.dtype, FLOATS)
    check_rank(x)
    if attrs.size < 1:
        raise ValueError(f"size is {attrs.size}, it needs to be at least 1")
    return x


def _lrn_expr(b: ExprBuilder, attrs: LrnAttrs, x: TensorType) -> StageRef:
    at = b.point(x)
    (k,) = b.iters(attrs.size)
    channel = at[1] + k - (attrs.size - 1) // 2
    neighbour = wide(b.read(0, at[0], channel, *at[2:], fill=0.0))
    squares = b.sum(at, neighbour * neighbour, over=(k,))
    at = b.point(x)
    sums = b.read(squares, *at) * (attrs.alpha / attrs.size)
    base = sums + attrs.bias
    return b.stage(at, cast(wide(b.read(0, *at)) / fn("pow", base, attrs.beta), x.dtype))


@in_f32
def _lrn_reference(attrs: LrnAttrs, x: Array) -> Any:
    before, channels = (attrs.size - 1) // 2, x.shape[1]
    sums = np.zeros_like(x)
    for c in range(channels):
        low, high = max(0, c - before), min(channels, c - before + attrs.size)
        sums[:, c] = np.sum(x[:, low:high] ** 2, axis=1)
    base = (attrs.bias + attrs.alpha / attrs.size * sums).astype(x.dtype)
    return x / base ** np.asarray(attrs.beta, x.dtype)


OPS = (
    normalization_op(
        "rms_normalization", NormAttrs,
        _rms_infer, _rms_reference, _rms_expr,
        "Divided by the root of the mean square over the last axes, then times scale.",
    ),
    normalization_op(
        "lrn", LrnAttrs, _lrn_infer, _lrn_reference, _lrn_expr,
        "Divided by a power of the sum of squares over neighbouring channels.",
        onnx=OnnxBinding("LRN"),
    ),
)  # fmt: skip
