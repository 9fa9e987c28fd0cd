"""Parts that normalisations share: mean and variance in two passes, checks, and op-table rows."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, index_value
from tcc.ir.op import Array, OpSpec, Tolerance, Trait
from tcc.ir.types import TensorType, element_count
from tcc.ops.formula import fn, outside, total, wide
from tcc.ops.rows import Function, op_row
from tcc.ops.shapes import (
    FLOATS,
    Point,
    check_broadcast,
)


@frozen
class NormAttrs:
    """Normalises over the axes from `axis` to the last.

    Layer normalisation may have more than one of the `outputs`. Then the mean and the reciprocal
    deviation follow the result, in f32, with size 1 along the normalised axes.
    """

    axis: int
    epsilon: float = 1e-5
    outputs: int = 1


# ---- building blocks of the expressions ----------------------------------------------------------


@frozen
class Moments:
    """The stages that compute the means and variances of `count` elements each.

    `sums` holds the sums of the elements, and `squares` the sums of the squared distances from the
    mean.
    """

    b: ExprBuilder
    sums: StageRef
    squares: StageRef
    count: Scalar

    def mean(self, at: Point) -> Scalar:
        return self.b.read(self.sums, *at) / self.count

    def variance(self, at: Point) -> Scalar:
        return self.b.read(self.squares, *at) / self.count

    def normal(self, value: Scalar, at: Point, epsilon: float) -> Scalar:
        """Returns `value` normalised to mean 0 and deviation 1."""
        return (value - self.mean(at)) * reciprocal_root(self.variance(at), epsilon)


def moments_of(
    b: ExprBuilder, shape: Point, axes: tuple[int, ...], element: Callable[[Point], Scalar]
) -> Moments:
    """Appends the stages that compute mean and variance of `element(point)` over `axes` of
    `shape`."""
    sums = total(b, shape, axes, "sum", element)
    dtype = b.read(sums, *outside(shape, axes)).dtype
    count = index_value(element_count(tuple(shape[n] for n in axes)), dtype)

    def centred(at: Point) -> Scalar:
        mean = b.read(sums, *outside(at, axes)) / count
        distance = element(at) - mean
        return distance * distance

    return Moments(b, sums, total(b, shape, axes, "sum", centred), count)


def reciprocal_root(value: Scalar, epsilon: float) -> Scalar:
    """Returns 1 / sqrt(value + epsilon)."""
    return 1.0 / fn("sqrt", value + epsilon)


def scaled(value: Scalar, scale: Scalar, bias: Scalar | None) -> Scalar:
    """Returns value * scale + bias."""
    scaled_value = value * scale
    return scaled_value if bias is None else scaled_value + bias


def reader(b: ExprBuilder) -> Callable[[Point], Scalar]:
    """Returns a function that reads the first operand at a point; f16 and bf16 become f32."""
    return lambda at: wide(b.read(0, *at))


# ---- NumPy references ----------------------------------------------------------------------------


def mean_of(x: Array, axes: tuple[int, ...]) -> Array:
    """Returns the mean over `axes`, which keep size 1; NaN if there are no elements."""
    count = prod(x.shape[n] for n in axes)
    return np.asarray(np.sum(x, axis=axes, keepdims=True) / np.asarray(count, x.dtype))


def standardized(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """Returns (x normalised over `axes`, its mean, its reciprocal deviation)."""
    mean = mean_of(x, axes)
    root = 1 / np.sqrt(mean_of((x - mean) ** 2, axes) + np.asarray(epsilon, x.dtype))
    return (x - mean) * root, mean, root


# ---- checks and the row of the op table ----------------------------------------------------------


def last_axes(axis: int, rank: int) -> tuple[int, ...]:
    """Returns `axis` and all axes after it."""
    return tuple(range(axis, rank))


def check_affine(x: TensorType, *operands: TensorType | None) -> None:
    """Checks that scale and bias (operands 1 and 2, if present) broadcast to `x`."""
    for n, operand in enumerate(operands, 1):
        if operand is not None:
            check_broadcast(operand.shape, x.shape, n)


def normalization_op(
    name: str,
    attrs: type[Any],
    infer: Function,
    reference: Function,
    expr: Function,
    doc: str,
) -> OpSpec:
    """Returns the op-table row of a normalisation."""
    return op_row(
        name, attrs, infer, reference, FLOATS, doc, Tolerance.ACCUMULATE, expr,
        traits=Trait.REDUCTION,
    )  # fmt: skip
