"""Converters of normalisations and softmax."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tcc.frontends.emit import constant, family
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.torch.context import CallContext, Converters, Results, widened
from tcc.frontends.torch.convert.reduce import along_axis
from tcc.ir.index import Index, as_int
from tcc.ir.types import F64


def _ones(x: Operand, shape: Sequence[Index], value: float = 1.0) -> Operand:
    """Returns a tensor with `value` in all elements; it is a constant if the sizes are constant."""
    numbers = [size for d in shape if (size := as_int(d)) is not None]
    if len(numbers) != len(shape):
        return x.like(value).expand(tuple(shape))
    return constant(np.full(numbers, value).astype(x.dtype.carrier), x.dtype)


def _scale_and_shift(
    ctx: CallContext, x: Operand, shape: Sequence[Index]
) -> tuple[Operand, Operand]:
    """Returns the call's weight and bias, or ones and zeros if it has none."""
    weight, bias = ctx.optional("weight", x.dtype), ctx.optional("bias", x.dtype)
    return weight or _ones(x, shape), bias or _ones(x, shape, 0.0)


def _of_last_axes(ctx: CallContext) -> tuple[Operand, int, Operand]:
    """Returns the tensor, the first normalised axis, and the weight."""
    x = ctx.operand("input")
    axis = x.rank - len(ctx.indices("normalized_shape"))
    return x, axis, ctx.optional("weight", x.dtype) or _ones(x, x.shape[axis:])


@family
def _layer_norm(outputs: int, ctx: CallContext, eps: float) -> Any:
    """Gives one result or three.

    Three `outputs` are the normalised tensor, the means and the reciprocals of the deviations.
    """
    x, axis, weight = _of_last_axes(ctx)
    attrs = {"axis": axis, "epsilon": eps, "outputs": outputs}
    bias = ctx.optional("bias", x.dtype)
    results = x.emit_all("layer_normalization", weight, bias, **attrs)
    return results if outputs > 1 else results[0]


def _rms_norm(ctx: CallContext) -> Operand:
    x, axis, weight = _of_last_axes(ctx)
    # torch's default is the eps of the type that it computes in, which is f32 also for f16.
    computed = np.float64 if x.dtype is F64 else np.float32
    epsilon = ctx.real("eps", float(np.finfo(computed).eps))
    return x.rms_normalization(weight, axis=axis, epsilon=epsilon)


def _batch_norm(ctx: CallContext) -> Results:
    """Returns the normalised tensor.

    If the moments are those of the batch, it also returns the means and the reciprocals of the
    deviations.
    """
    x = ctx.operand("input")
    moments: Results = (None, None)
    if ctx.flag("training"):
        if ctx.has("running_mean"):
            raise Refusal("it learns", "call model.eval() before the export")
        mean, variance = _moments(x, tuple(n for n in range(x.rank) if n != 1))
    else:
        mean, variance = ctx.operand("running_mean", x.dtype), ctx.operand("running_var", x.dtype)
    weight, bias = _scale_and_shift(ctx, x, mean.shape)
    epsilon = ctx.real("eps")
    normalized = x.batch_normalization(weight, bias, mean, variance, epsilon=epsilon)
    if ctx.flag("training"):
        moments = mean, _inverse_deviation(ctx, variance)
    return normalized, *moments


def _moments(x: Operand, axes: tuple[int, ...]) -> tuple[Operand, Operand]:
    """Returns the mean and the variance over axes, in f32 or wider."""
    x = widened(x)
    mean = x.mean(axes, keepdims=True)
    gap = x - mean
    variance = (gap * gap).mean(axes)
    return mean.squeeze(axes), variance


def _inverse_deviation(ctx: CallContext, variance: Operand) -> Operand:
    raised = variance + ctx.real("eps")
    return raised.sqrt().reciprocal()


def _in_groups(ctx: CallContext, groups: int) -> Operand:
    x = ctx.operand("input")
    weight, bias = _scale_and_shift(ctx, x, (x.shape[1],))
    wide = x.unsqueeze(2) if x.rank == 2 else x
    return wide.group_normalization(weight, bias, num_groups=groups, epsilon=ctx.real("eps"))


def _native_group_norm(ctx: CallContext, x: Operand, group: int) -> Results:
    """Returns the normalised tensor, and the mean and the reciprocal of the deviation of each
    group."""
    split = x.reshape((x.shape[0], group, x.shape[1] // group, *x.shape[2:]))
    mean, variance = _moments(split, tuple(range(2, split.rank)))
    return _in_groups(ctx, group), mean, _inverse_deviation(ctx, variance)


def _instance_norm(ctx: CallContext, x: Operand, use_input_stats: bool) -> Operand | None:
    if not use_input_stats:
        return _batch_norm(ctx)[0]
    weight, bias = _scale_and_shift(ctx, x, (x.shape[1],))
    return x.instance_normalization(weight, bias, epsilon=ctx.real("eps"))


CONVERTERS: Converters = {
    "native_layer_norm": _layer_norm(3),
    "layer_norm": _layer_norm(1),
    "rms_norm": _rms_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "native_batch_norm": _batch_norm,
    "group_norm": lambda ctx: _in_groups(ctx, ctx.integer("num_groups")),
    "native_group_norm": _native_group_norm,
    "instance_norm": _instance_norm,
    "softmax.int": along_axis("softmax"),
    "_softmax": along_axis("softmax"),
    "log_softmax.int": along_axis("log_softmax"),
    "_log_softmax": along_axis("log_softmax"),
}
