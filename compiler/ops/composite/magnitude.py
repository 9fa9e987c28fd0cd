"""Normalisations that do not subtract the mean: the root mean square."""

from typing import Any

import numpy as np
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast, index_value
from tcc.ir.op import Array
from tcc.ir.types import F32, F64, TensorType, element_count
from tcc.ops.composite.moments import (
    NormAttrs,
    check_affine,
    last_axes,
    mean_of,
    normalization_op,
    reciprocal_root,
)
from tcc.ops.formula import outside, read_aligned, total
from tcc.ops.reference import widen_half
from tcc.ops.shapes import (
    FLOATS,
    Point,
    check_axis,
    check_dtype,
)


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


OPS = (
    normalization_op(
        "rms_normalization", NormAttrs,
        _rms_infer, _rms_reference, _rms_expr,
        "Divided by the root of the mean square over the last axes, then times scale.",
    ),
)  # fmt: skip
