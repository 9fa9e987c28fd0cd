"""Converters of normalisations and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter, Results
from tcc.ir.index import Index, as_int
from tcc.ir.types import F64


def _ones(ctx: CallContext, x: Operand, shape: Sequence[Index], value: float = 1.0) -> Operand:
    """One value in a whole shape; a constant where the sizes are known."""
    known = [size for d in shape if (size := as_int(d)) is not None]
    if len(known) != len(shape):
        return ctx.expand(ctx.filled(value, x.dtype), tuple(shape))
    return ctx.constant(np.full(known, value).astype(x.dtype.carrier), x.dtype)


def _layer_norm_outputs(ctx: CallContext, outputs: int) -> Sequence[Operand]:
    x = ctx.operand("input")
    axis = x.rank - len(ctx.indices("normalized_shape"))
    weight = ctx.optional("weight", x.dtype)
    if weight is None:
        weight = _ones(ctx, x, x.shape[axis:])
    bias = ctx.optional("bias", x.dtype)
    epsilon = ctx.real("eps")
    return ctx.emit_all(
        "layer_normalization", [x, weight, bias], axis=axis, epsilon=epsilon, outputs=outputs
    )


def _layer_norm(ctx: CallContext) -> Operand:
    return _layer_norm_outputs(ctx, 1)[0]


def _native_layer_norm(ctx: CallContext) -> Results:
    """The normalised tensor, its means and its inverse deviations."""
    return ctx.typed(*_layer_norm_outputs(ctx, 3))


def _rms_norm(ctx: CallContext) -> Operand:
    x = ctx.operand("input")
    axis = x.rank - len(ctx.indices("normalized_shape"))
    weight = ctx.optional("weight", x.dtype)
    if weight is None:
        weight = _ones(ctx, x, x.shape[axis:])
    computed = np.float64 if x.dtype is F64 else np.float32  # of f16 too, whose own is larger
    epsilon = ctx.real("eps") if ctx.has("eps") else float(np.finfo(computed).eps)
    return ctx.emit("rms_normalization", x, weight, axis=axis, epsilon=epsilon, outputs=1)


def _batch_norm(ctx: CallContext) -> Operand:
    x = ctx.operand("input")
    if ctx.arguments.get("training"):
        if ctx.has("running_mean"):
            raise ctx.fail("it learns", "call model.eval() before the export")
        mean, variance = _moments(ctx, x, _channel_axes(x))
    else:
        mean, variance = ctx.operand("running_mean", x.dtype), ctx.operand("running_var", x.dtype)
    weight, bias = ctx.optional("weight", x.dtype), ctx.optional("bias", x.dtype)
    if weight is None:
        weight = _ones(ctx, x, mean.shape)
    if bias is None:
        bias = _ones(ctx, x, mean.shape, 0.0)
    epsilon = ctx.real("eps")
    return ctx.emit("batch_normalization", x, weight, bias, mean, variance, epsilon=epsilon)


def _channel_axes(x: Operand) -> tuple[int, ...]:
    return tuple(n for n in range(x.rank) if n != 1)


def _moments(ctx: CallContext, x: Operand, axes: tuple[int, ...]) -> tuple[Operand, Operand]:
    """The mean and the variance over axes, in f32 or wider."""
    x = ctx.widened(x)
    mean = ctx.reduce("mean", x, axes, keepdims=True)
    gap = x - mean
    variance = ctx.reduce("mean", gap * gap, axes)
    return ctx.squeeze(mean, axes), variance


def _native_batch_norm(ctx: CallContext) -> Results:
    """The normalised tensor; of the batch's own moments also the means and inverse deviations."""
    x, found = ctx.operand("input"), _batch_norm(ctx)
    if not ctx.arguments.get("training"):
        empty = ctx.constant(np.zeros(0, x.dtype.carrier), x.dtype)
        return [found, empty, empty]
    mean, variance = _moments(ctx, x, _channel_axes(x))
    return ctx.typed(found, mean, _inverse_deviation(ctx, variance))


def _inverse_deviation(ctx: CallContext, variance: Operand) -> Operand:
    raised = variance + ctx.real("eps")
    return ctx.emit("reciprocal", ctx.emit("sqrt", raised))


def _in_groups(ctx: CallContext, groups: int) -> Operand:
    x = ctx.operand("input")
    weight, bias = ctx.optional("weight", x.dtype), ctx.optional("bias", x.dtype)
    channels = (x.shape[1],)
    weight = _ones(ctx, x, channels) if weight is None else weight
    bias = _ones(ctx, x, channels, 0.0) if bias is None else bias
    wide = ctx.unsqueeze(x, 2) if x.rank == 2 else x
    found = ctx.emit(
        "group_normalization", wide, weight, bias, num_groups=groups, epsilon=ctx.real("eps")
    )
    return ctx.squeeze(found, (2,)) if x.rank == 2 else found


def _group_norm(ctx: CallContext) -> Operand:
    return _in_groups(ctx, ctx.integer("num_groups"))


def _native_group_norm(ctx: CallContext) -> Results:
    """The normalised tensor and each group's mean and inverse deviation."""
    x, groups = ctx.operand("input"), ctx.integer("group")
    apart = ctx.reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    mean, variance = _moments(ctx, apart, tuple(range(2, apart.rank)))
    return ctx.typed(_in_groups(ctx, groups), mean, _inverse_deviation(ctx, variance))


def _instance_norm(ctx: CallContext) -> Operand:
    x = ctx.operand("input")
    if not ctx.flag("use_input_stats"):
        return _batch_norm(ctx)
    weight, bias = ctx.optional("weight", x.dtype), ctx.optional("bias", x.dtype)
    channels = (x.shape[1],)
    weight = _ones(ctx, x, channels) if weight is None else weight
    bias = _ones(ctx, x, channels, 0.0) if bias is None else bias
    return ctx.emit("instance_normalization", x, weight, bias, epsilon=ctx.real("eps"))


def _softmax(op: str) -> Converter:
    def convert(ctx: CallContext) -> Operand:
        x = ctx.operand(ctx.first(), ctx.result_dtype())
        if not x.rank:
            wide = ctx.emit(op, ctx.reshape(x, (1,)), axis=0)
            return ctx.reshape(wide, ())
        return ctx.emit(op, x, axis=ctx.axis_of("dim", x.rank))

    return convert


CONVERTERS: dict[str, Converter] = {
    "native_layer_norm": _native_layer_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "_native_batch_norm_legit": _native_batch_norm,
    "_native_batch_norm_legit_no_training": _native_batch_norm,
    "native_batch_norm": _native_batch_norm,
    "group_norm": _group_norm,
    "native_group_norm": _native_group_norm,
    "instance_norm": _instance_norm,
    "softmax.int": _softmax("softmax"),
    "_softmax": _softmax("softmax"),
    "log_softmax.int": _softmax("log_softmax"),
    "_log_softmax": _softmax("log_softmax"),
}
