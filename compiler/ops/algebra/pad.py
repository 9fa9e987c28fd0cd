"""Pad: surrounds a tensor with constants or with copies of its own elements."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, index_value, literal
from tcc.ir.index import Index, const, maximum, minimum, nonnegative
from tcc.ir.op import (
    Array,
    Trait,
)
from tcc.ir.types import BOOL, I64, TensorType
from tcc.ops.formula import choose
from tcc.ops.operands import inside, none_negative, require, sizes
from tcc.ops.rows import op_row
from tcc.ops.shapes import MOVED, Point, Shape
from tcc.zipped import zip_equal

_MODES = ("constant", "edge", "reflect", "wrap")


@frozen
class PadAttrs:
    """`before` and `after` have one entry per axis; a negative entry crops.

    Cropping comes before padding.
    """

    before: Shape
    after: Shape
    mode: str


def _infer(attrs: PadAttrs, x: TensorType, value: TensorType | None = None) -> TensorType:
    require(attrs.mode in _MODES, f"{attrs.mode[:40]!r} is none of {_MODES}")
    require(len(attrs.before) == len(attrs.after) == x.rank, f"pad needs two sizes per axis of {x}")
    if value is not None:
        require(value.dtype is x.dtype, f"pad value {value} is not of the type of {x}")
        require(value.rank <= 1, f"the pad value must be a scalar, not {value}")
    shape = tuple(
        d + before + after for d, before, after in zip_equal(x.shape, attrs.before, attrs.after)
    )
    none_negative(shape, f"pad crops more than {x} has")
    return TensorType(x.dtype, shape)


def _reference(attrs: PadAttrs, x: Array, value: Array | None) -> Array:
    before, after = sizes(attrs.before), sizes(attrs.after)
    if attrs.mode == "constant":
        return surrounded(x, 0 if value is None else value.reshape(()), before, after)
    cropped = tuple(
        slice(max(-b, 0), n - max(-a, 0)) for b, a, n in zip_equal(before, after, x.shape)
    )
    widths = [(max(b, 0), max(a, 0)) for b, a in zip_equal(before, after)]
    mode: Any = attrs.mode  # Any, because NumPy's stubs accept only literal modes
    return np.pad(x[cropped], widths, mode=mode)


def surrounded(x: Array, fill: object, before: Sequence[int], after: Sequence[int]) -> Array:
    """Returns `x` padded with `fill`; negative entries of `before` and `after` crop.

    The result may consist of `fill` alone.
    """
    y = np.full([b + n + a for b, n, a in zip_equal(before, x.shape, after)], fill, x.dtype)
    spans = [(max(0, -b), min(n, size - b)) for b, n, size in zip_equal(before, x.shape, y.shape)]
    if all(low < high for low, high in spans):
        places = (slice(low + b, high + b) for (low, high), b in zip_equal(spans, before))
        y[tuple(places)] = x[tuple(slice(low, high) for low, high in spans)]
    return y


def _element(
    b: ExprBuilder, i: Point, attrs: PadAttrs, x: TensorType, value: TensorType | None
) -> Scalar:
    if attrs.mode != "constant":
        at = [
            _source(attrs.mode, *axis) for axis in zip_equal(i, x.shape, attrs.before, attrs.after)
        ]
        return literal(0, x.dtype) if 0 in (x.static_shape or ()) else b.read(0, *at)
    at = [k - before for k, before in zip_equal(i, attrs.before)]
    body: Scalar = b.read(0, *at, fill=0)
    if value is not None:
        is_inside: Scalar = literal(True, BOOL)
        for k, dim in zip_equal(at, x.shape):
            is_inside &= inside(index_value(k, I64), dim)
        body = choose(is_inside, body, b.read(1, *([0] * value.rank)))
    return body


def _source(mode: str, index: Index, dim: Index, before: Index, after: Index) -> Index:
    """Returns the index into an axis of the input whose element is at `index` of the padded axis.

    `dim` is the input's size, and `before` and `after` are the padding; negative ones crop. The
    result is inside the part of the input that cropping leaves.
    """
    if before is const(0) and after is const(0):
        return index
    crop = maximum(-before, 0)
    size = dim - crop - maximum(-after, 0)
    k = index - maximum(before, 0)
    if mode == "edge":
        return crop + minimum(maximum(k, 0), size - 1)
    if mode == "wrap":
        return crop + k % size
    # Repeated reflection of n elements has period 2 * n - 2, or 1 if n is 1, because the end points
    # are not repeated. If both paddings are shorter than the axis, a single reflection suffices.
    period = maximum(2 * size - 2, 1)
    phase = maximum(k, -k) if nonnegative(size - 1 - maximum(before, after)) else k % period
    return crop + minimum(phase, period - phase)


OPS = (
    op_row(
        "pad", PadAttrs, _infer, _reference, MOVED,
        "Surrounds each axis with a constant, or with its own elements by `mode`.",
        element=_element, traits=Trait.MOVEMENT,
    ),
)  # fmt: skip
