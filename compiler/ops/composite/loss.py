"""Classification losses: negative log likelihood, and softmax cross entropy on top of it.

Scores have shape (n, classes, d...), labels (n, d...), weights (classes). A negative label counts
from the last class.
"""

from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, Source, StageRef, cast, literal
from tcc.ir.op import (
    Array,
    OutArrays,
    OutTypes,
    Tolerance,
    Trait,
)
from tcc.ir.types import I32, I64, TensorType
from tcc.ops.composite.moments import reader
from tcc.ops.composite.softmax import log_shares
from tcc.ops.formula import choose, fn, outside, wide, widened
from tcc.ops.operands import wrapped
from tcc.ops.reference import in_f32
from tcc.ops.rows import op_row
from tcc.ops.shapes import (
    FLOATS,
    Point,
    agree_shapes,
    check_dtype,
    check_rank,
)


@frozen
class LossAttrs:
    """`reduction` is "none", "sum" or "mean"; the mean is weighted by the weights of the labels.

    Labels equal to `ignore_index` have weight 0. Softmax cross entropy may have two `outputs`; the
    second output holds the log-probabilities.
    """

    reduction: str = "mean"
    ignore_index: int | None = None
    outputs: int = 1

    def __post_init__(self) -> None:
        if self.reduction not in ("none", "sum", "mean"):
            raise ValueError(f"there is no reduction {self.reduction!r}")


def _infer(
    attrs: LossAttrs, x: TensorType, labels: TensorType, weights: TensorType | None = None
) -> OutTypes:
    check_dtype(x.dtype, FLOATS, "the scores")
    check_dtype(labels.dtype, (I32, I64), "the labels")
    check_rank(x, "the scores")
    agree_shapes(outside(x.shape, (1,)), labels.shape, "scores and labels")
    if weights is not None:
        check_dtype(weights.dtype, (x.dtype,), "the weights")
        agree_shapes(weights.shape, (x.shape[1],), "weights and classes")
    shape = labels.shape if attrs.reduction == "none" else ()
    return (TensorType(x.dtype, shape), x)[: attrs.outputs]


# ---- expressions --------------------------------------------------------------------------------


def _likelihood_expr(
    b: ExprBuilder,
    attrs: LossAttrs,
    x: TensorType,
    labels: TensorType,
    weights: TensorType | None = None,
    logs: Source = 0,
) -> StageRef:
    """Appends the stages of the loss; `logs` holds the log-probabilities."""

    def term(at: Point) -> tuple[Scalar, Scalar]:
        """Returns (weighted loss, weight) at one point of the labels."""
        label: Scalar = b.read(1, *at)
        if attrs.ignore_index is not None:
            ignored = fn("eq", label, attrs.ignore_index)
            label = choose(ignored, 0, label)
        place = b.position(wrapped(label, x.shape[1]), x.shape[1])
        loss = -wide(b.read(logs, at[0], place, *at[1:]))
        weight: Scalar = literal(1.0, widened(x.dtype))
        if weights is not None:
            weight = wide(b.read(2, place))
            loss *= weight
        if attrs.ignore_index is not None:
            loss, weight = choose(ignored, 0.0, loss), choose(ignored, 0.0, weight)
        return loss, weight

    at = b.point(labels)
    if attrs.reduction == "none":
        return b.stage(at, cast(term(at)[0], x.dtype))
    value: Scalar = b.read(b.sum((), term(at)[0], over=at))
    if attrs.reduction == "mean":
        at = b.point(labels)
        value = value / b.read(b.sum((), term(at)[1], over=at))
    return b.stage((), cast(value, x.dtype))


def _entropy_expr(
    b: ExprBuilder,
    attrs: LossAttrs,
    x: TensorType,
    labels: TensorType,
    weights: TensorType | None = None,
) -> tuple[StageRef, ...]:
    log_share = log_shares(b, x.shape, 1, reader(b))
    at = b.point(x)
    logs = b.stage(at, log_share(at))
    loss = _likelihood_expr(b, attrs, x, labels, weights, logs)
    if attrs.outputs == 1:
        return (loss,)
    at = b.point(x)
    return loss, b.stage(at, cast(b.read(logs, *at), x.dtype))


# ---- NumPy references ----------------------------------------------------------------------------


@in_f32
def _likelihood_reference(
    attrs: LossAttrs, logs: Array, labels: Array, weights: Array | None = None
) -> Any:
    loss, weight = np.zeros(labels.shape, logs.dtype), np.ones(labels.shape, logs.dtype)
    for at in np.ndindex(labels.shape):
        label = int(labels[at])
        if label == attrs.ignore_index:
            weight[at] = 0
            continue
        if weights is not None:
            weight[at] = weights[label]
        loss[at] = -logs[(at[0], label, *at[1:])] * weight[at]
    if attrs.reduction == "none":
        return loss
    loss_sum = np.sum(loss)
    return loss_sum / np.sum(weight) if attrs.reduction == "mean" else loss_sum


@in_f32
def _entropy_reference(
    attrs: LossAttrs, x: Array, labels: Array, weights: Array | None = None
) -> OutArrays:
    below = x - np.max(x, axis=1, keepdims=True)
    logs = below - np.log(np.sum(np.exp(below), axis=1, keepdims=True))
    return (*_likelihood_reference(attrs, logs, labels, weights), logs)[: attrs.outputs]


OPS = (
    op_row(
        "negative_log_likelihood_loss", LossAttrs, _infer, _likelihood_reference,
        FLOATS,
        "Minus the weighted log probability of each label, reduced or not.",
        Tolerance.ACCUMULATE,
        _likelihood_expr, traits=Trait.REDUCTION,
    ),
    op_row(
        "softmax_cross_entropy_loss", LossAttrs, _infer, _entropy_reference,
        FLOATS,
        "Negative log likelihood of the softmax of the scores over axis 1.",
        Tolerance.ACCUMULATE,
        _entropy_expr, traits=Trait.REDUCTION,
    ),
)  # fmt: skip
