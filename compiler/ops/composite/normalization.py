"""Normalisations.

Mean and variance take two passes over the data; f16 and bf16 are computed in f32.
"""

from math import prod
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast
from tcc.ir.index import as_int, const
from tcc.ir.op import (
    Array,
    OutArrays,
    OutTypes,
    Tolerance,
    Trait,
)
from tcc.ir.types import F32, F64, TensorType
from tcc.ops.composite.moments import (
    Moments,
    NormAttrs,
    check_affine,
    last_axes,
    moments_of,
    normalization_op,
    reader,
    reciprocal_root,
    scaled,
    standardized,
)
from tcc.ops.formula import outside, read_aligned, wide
from tcc.ops.operands import require
from tcc.ops.reference import in_f32, widen_half
from tcc.ops.rows import op_row
from tcc.ops.shapes import (
    FLOATS,
    Point,
    agree,
    check_axis,
    check_dtype,
    check_rank,
    reduced_shape,
)


@frozen
class GroupNormAttrs:
    """Axis 1 is divided into groups of `channels` channels each."""

    channels: int
    epsilon: float = 1e-5


@frozen
class EpsilonAttrs:
    """`epsilon` is added to a variance before its square root."""

    epsilon: float = 1e-5


# ---- over the last axes --------------------------------------------------------------------------


def _layer_infer(
    attrs: NormAttrs, x: TensorType, scale: TensorType, bias: TensorType | None = None
) -> OutTypes:
    check_dtype(x.dtype, FLOATS)
    check_dtype(scale.dtype, (x.dtype,), "the scale")
    check_axis(attrs.axis, x.rank)
    check_affine(x, scale, bias)
    statistics = TensorType(F32, reduced_shape(x.shape, last_axes(attrs.axis, x.rank), True))
    return (x, statistics, statistics)[: attrs.outputs]


def _layer_expr(
    b: ExprBuilder,
    attrs: NormAttrs,
    x: TensorType,
    scale: TensorType,
    bias: TensorType | None,
) -> tuple[StageRef, ...]:
    axes = last_axes(attrs.axis, x.rank)
    moments = moments_of(b, x.shape, axes, reader(b))
    at = b.point(x)
    normal = moments.normal(wide(b.read(0, *at)), outside(at, axes), attrs.epsilon)
    shift = None if bias is None else wide(read_aligned(b, 2, bias, at))
    y = scaled(normal, wide(read_aligned(b, 1, scale, at)), shift)
    outputs = [b.stage(at, cast(y, x.dtype))]
    if attrs.outputs > 1:
        outputs += _layer_statistics(b, x, axes, moments, attrs.epsilon)
    return tuple(outputs[: attrs.outputs])


def _layer_statistics(
    b: ExprBuilder, x: TensorType, axes: tuple[int, ...], moments: Moments, epsilon: float
) -> list[StageRef]:
    shape = reduced_shape(x.shape, axes, True)
    at = b.iters(*shape)
    mean = b.stage(at, cast(moments.mean(outside(at, axes)), F32))
    at = b.iters(*shape)
    root = reciprocal_root(moments.variance(outside(at, axes)), epsilon)
    return [mean, b.stage(at, cast(root, F32))]


def _layer_reference(attrs: NormAttrs, x: Array, scale: Array, bias: Array | None) -> OutArrays:
    with np.errstate(all="ignore"):
        axes = last_axes(attrs.axis, x.ndim)
        normal, mean, root = standardized(widen_half(x), axes, attrs.epsilon)
        y = normal * scale if bias is None else normal * scale + bias
    results = (y.astype(x.dtype), mean.astype(np.float32), root.astype(np.float32))
    return results[: attrs.outputs]


# ---- per channel (axis 1) ------------------------------------------------------------------------


def _by_channel(values: Array, rank: int) -> Array:
    return values.reshape(-1, *[1] * (rank - 2))


def _check_channels(x: TensorType, *vectors: TensorType) -> TensorType:
    """Checks `x` and the operands after it; returns `x`.

    Each vector has one element per channel (axis 1).
    """
    check_dtype(x.dtype, FLOATS)
    check_rank(x)
    for n, vector in enumerate(vectors, 1):
        check_dtype(vector.dtype, FLOATS, f"operand {n}")
        if vector.rank != 1:
            raise ValueError(f"operand {n} has rank {vector.rank}, it needs 1")
        agree(x.shape[1], vector.shape[0], f"channels of operand {n}")
    return x


def _group_infer(
    attrs: GroupNormAttrs, x: TensorType, scale: TensorType, bias: TensorType
) -> TensorType:
    _check_channels(x, scale, bias)
    channels = as_int(x.shape[1] % attrs.channels)
    require(channels == 0, f"{x.shape[1].key} channels are no groups of {attrs.channels}")
    return x


def _group_expr(
    b: ExprBuilder, attrs: GroupNormAttrs, x: TensorType, scale: TensorType, bias: TensorType
) -> StageRef:
    size = attrs.channels
    shape = (x.shape[0], x.shape[1] // size, const(size), *x.shape[2:])

    def element(at: Point) -> Scalar:
        return wide(b.read(0, at[0], at[1] * size + at[2], *at[3:]))

    moments = moments_of(b, shape, last_axes(2, len(shape)), element)
    at = b.point(x)
    normal = moments.normal(wide(b.read(0, *at)), (at[0], at[1] // size), attrs.epsilon)
    y = scaled(normal, wide(b.read(1, at[1])), wide(b.read(2, at[1])))
    return b.stage(at, cast(y, x.dtype))


@in_f32
def _group_reference(attrs: GroupNormAttrs, x: Array, scale: Array, bias: Array) -> Array:
    shape = (x.shape[0], x.shape[1] // attrs.channels, attrs.channels * prod(x.shape[2:]))
    normal, _, _ = standardized(x.reshape(shape), (2,), attrs.epsilon)
    return normal.reshape(x.shape) * _by_channel(scale, x.ndim) + _by_channel(bias, x.ndim)


def _batch_infer(
    _: EpsilonAttrs,
    x: TensorType,
    scale: TensorType,
    bias: TensorType,
    mean: TensorType,
    variance: TensorType,
) -> TensorType:
    return _check_channels(x, scale, bias, mean, variance)


def _batch_element(b: ExprBuilder, at: Point, attrs: EpsilonAttrs, *types: TensorType) -> Scalar:
    compute = F64 if any(t.dtype is F64 for t in types) else F32
    scale, bias, mean, variance = (cast(b.read(n, at[1]), compute) for n in (1, 2, 3, 4))
    distance = cast(b.read(0, *at), compute) - mean
    return scaled(distance * reciprocal_root(variance, attrs.epsilon), scale, bias)


@in_f32
def _batch_reference(attrs: EpsilonAttrs, x: Array, *vectors: Array) -> Any:
    scale, bias, mean, variance = (_by_channel(v, x.ndim) for v in vectors)
    root = np.sqrt(variance + np.asarray(attrs.epsilon, variance.dtype))
    return (x - mean) / root * scale + bias


# ---- rows of the op table ------------------------------------------------------------------------


OPS = (
    normalization_op(
        "layer_normalization", NormAttrs,
        _layer_infer, _layer_reference, _layer_expr,
        "Centred and scaled to deviation 1 over the last axes, then times scale plus bias.",
    ),
    normalization_op(
        "group_normalization", GroupNormAttrs,
        _group_infer, _group_reference, _group_expr,
        "Centred and scaled over groups of channels, then times scale plus bias by channel.",
    ),
    op_row(
        "batch_normalization", EpsilonAttrs, _batch_infer, _batch_reference, FLOATS,
        "Inference: (x - mean) / sqrt(variance + epsilon) * scale + bias, by channel.",
        Tolerance.ACCUMULATE,
        element=_batch_element, traits=Trait.ELEMENTWISE,
    ),
)  # fmt: skip
