"""Softmax and related ops along one axis.

The largest element is subtracted first, so that no exponential overflows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast
from tcc.ir.op import Array, OpSpec, Tolerance, Trait
from tcc.ir.types import TensorType
from tcc.ops.composite.moments import reader
from tcc.ops.formula import fn, outside, total
from tcc.ops.reference import in_f32
from tcc.ops.rows import Function, op_row
from tcc.ops.shapes import (
    FLOATS,
    AxisAttrs,
    Point,
    Shape,
    check_axis,
    check_dtype,
)


def _infer(attrs: AxisAttrs, x: TensorType) -> TensorType:
    check_dtype(x.dtype, FLOATS)
    check_axis(attrs.axis, x.rank)
    return x


Element = Callable[[Point], Scalar]  # returns the scalar of an element at a point


def shares(b: ExprBuilder, shape: Shape, axis: int, element: Element) -> tuple[StageRef, StageRef]:
    """Appends and returns the stages of exp(x - m) and of its sum along `axis`.

    x is `element` at each point of `shape`, and m is the largest x along `axis`.
    """
    below = _below(b, shape, axis, element)
    at = b.iters(*shape)
    share = b.stage(at, fn("exp", below(at)))
    return share, total(b, shape, (axis,), "sum", lambda at: b.read(share, *at))


def _below(b: ExprBuilder, shape: Shape, axis: int, element: Element) -> Element:
    top = total(b, shape, (axis,), "max", element)
    return lambda at: element(at) - b.read(top, *outside(at, (axis,)))


def _softmax_expr(b: ExprBuilder, attrs: AxisAttrs, x: TensorType) -> StageRef:
    share, norm = shares(b, x.shape, attrs.axis, reader(b))
    at = b.point(x)
    row_sum = b.read(norm, *outside(at, (attrs.axis,)))
    # One division per row replaces one per element, because a division takes as long as an
    # exponential.
    part = b.read(share, *at) * (1.0 / row_sum)
    return b.stage(at, cast(part, x.dtype))


def _log_softmax_expr(b: ExprBuilder, attrs: AxisAttrs, x: TensorType) -> StageRef:
    axis = attrs.axis
    below = _below(b, x.shape, axis, reader(b))
    norm = total(b, x.shape, (axis,), "sum", lambda at: fn("exp", below(at)))
    at = b.point(x)
    row_log = fn("log", b.read(norm, *outside(at, (axis,))))
    return b.stage(at, cast(below(at) - row_log, x.dtype))


def _exponentials(x: Array, axis: int) -> tuple[Array, Array]:
    below = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return below, np.exp(below)


def _softmax(x: Array, axis: int) -> Any:
    _, e = _exponentials(x, axis)
    return e / np.sum(e, axis=axis, keepdims=True)


def _log_softmax(x: Array, axis: int) -> Any:
    below, e = _exponentials(x, axis)
    return below - np.log(np.sum(e, axis=axis, keepdims=True))


def _row(
    name: str,
    numpy: Callable[[Array, int], Array],
    expr: Function,
    doc: str,
) -> OpSpec:
    @in_f32
    def reference(attrs: AxisAttrs, x: Array) -> Array:
        return numpy(x, attrs.axis)

    return op_row(
        name, AxisAttrs, _infer, reference, FLOATS,
        doc, Tolerance.ACCUMULATE, expr,
        traits=Trait.REDUCTION,
    )  # fmt: skip


OPS = (
    _row(
        "softmax", _softmax, _softmax_expr,
        "exp(x) over its sum along the axis.",
    ),
    _row(
        "log_softmax", _log_softmax, _log_softmax_expr,
        "The logarithm of softmax.",
    ),
)  # fmt: skip
