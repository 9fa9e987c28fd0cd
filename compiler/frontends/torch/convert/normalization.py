"""Converters of normalisations and softmax."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tcc.frontends.emit import constant, family, group_norm, widened
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.torch.context import Converters, Results, named
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
    x: Operand, weight: Operand | None, bias: Operand | None, shape: Sequence[Index]
) -> tuple[Operand, Operand]:
    """Returns the weight and the bias in the dtype of `x`, or ones and zeros if there is none."""
    scale = weight.cast(x.dtype) if weight else _ones(x, shape)
    return scale, bias.cast(x.dtype) if bias else _ones(x, shape, 0.0)


def _of_last_axes(x: Operand, count: int, weight: Operand | None) -> tuple[int, Operand]:
    """Returns the first of the last `count` axes, and the weight in the dtype of `x`."""
    axis = x.rank - count
    return axis, weight.cast(x.dtype) if weight else _ones(x, x.shape[axis:])


@family
def _layer_norm(
    outputs: int,
    input: Operand,
    normalized_shape: tuple[Index, ...],
    eps: float,
    weight: Operand | None = None,
    bias: Operand | None = None,
) -> Any:
    """Returns a layer norm with one result or three.

    Three `outputs` are the normalised tensor, the means and the reciprocals of the deviations.
    """
    axis, scale = _of_last_axes(input, len(normalized_shape), weight)
    shift = bias and bias.cast(input.dtype)
    attrs = {"axis": axis, "epsilon": eps, "outputs": outputs}
    results = input.emit_all("layer_normalization", scale, shift, **attrs)
    return results if outputs > 1 else results[0]


def _rms_norm(
    input: Operand,
    normalized_shape: tuple[Index, ...],
    weight: Operand | None = None,
    eps: float | None = None,
) -> Operand:
    axis, scale = _of_last_axes(input, len(normalized_shape), weight)
    # torch's default is the eps of the type that it computes in, which is f32 also for f16.
    computed = np.finfo(np.float64 if input.dtype is F64 else np.float32)
    epsilon = float(computed.eps) if eps is None else eps
    return input.rms_normalization(scale, axis=axis, epsilon=epsilon)


def _batch_norm(
    input: Operand,
    eps: float,
    training: bool = False,
    weight: Operand | None = None,
    bias: Operand | None = None,
    running_mean: Operand | None = None,
    running_var: Operand | None = None,
) -> Results:
    """Returns the normalised tensor.

    If the moments are those of the batch, it also returns the means and the reciprocals of the
    deviations.
    """
    moments: Results = (None, None)
    if training:
        if running_mean:
            raise Refusal("it learns", "call model.eval() before the export")
        mean, variance = _moments(input, tuple(n for n in range(input.rank) if n != 1))
    elif running_mean and running_var:
        mean, variance = running_mean.cast(input.dtype), running_var.cast(input.dtype)
    else:
        raise Refusal("it has no running moments")
    scale, shift = _scale_and_shift(input, weight, bias, mean.shape)
    normalized = input.batch_normalization(scale, shift, mean, variance, epsilon=eps)
    if training:
        moments = mean, _inverse_deviation(variance, eps)
    return normalized, *moments


def _moments(x: Operand, axes: tuple[int, ...]) -> tuple[Operand, Operand]:
    """Returns the mean and the variance over axes, in f32 or wider."""
    x = widened(x)
    mean = x.mean(axes, keepdims=True)
    gap = x - mean
    variance = (gap * gap).mean(axes)
    return mean.squeeze(axes), variance


def _inverse_deviation(variance: Operand, eps: float) -> Operand:
    return (variance + eps).sqrt().reciprocal()


def _group_norm(
    input: Operand,
    num_groups: int,
    eps: float,
    weight: Operand | None = None,
    bias: Operand | None = None,
) -> Operand:
    scale, shift = _scale_and_shift(input, weight, bias, (input.shape[1],))
    wide = input.unsqueeze(2) if input.rank == 2 else input
    return group_norm(wide, scale, shift, num_groups, eps)


def _native_group_norm(
    input: Operand,
    group: int,
    eps: float,
    weight: Operand | None = None,
    bias: Operand | None = None,
) -> Results:
    """Returns the normalised tensor, and the mean and the reciprocal of the deviation of each
    group."""
    batch, channels, *extent = input.shape
    split = input.reshape((batch, group, channels // group, *extent))
    mean, variance = _moments(split, tuple(range(2, split.rank)))
    return _group_norm(input, group, eps, weight, bias), mean, _inverse_deviation(variance, eps)


def _instance_norm(
    input: Operand,
    use_input_stats: bool,
    eps: float,
    weight: Operand | None = None,
    bias: Operand | None = None,
    running_mean: Operand | None = None,
    running_var: Operand | None = None,
) -> Operand | None:
    if not use_input_stats:
        return _batch_norm(input, eps, False, weight, bias, running_mean, running_var)[0]
    scale, shift = _scale_and_shift(input, weight, bias, (input.shape[1],))
    return input.group_normalization(scale, shift, channels=1, epsilon=eps)


CONVERTERS: Converters = {
    **named(_rms_norm, _group_norm, _native_group_norm, _instance_norm),
    "native_layer_norm": _layer_norm(3),
    "layer_norm": _layer_norm(1),
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "native_batch_norm": _batch_norm,
    "softmax.int": along_axis("softmax"),
    "_softmax": along_axis("softmax"),
    "log_softmax.int": along_axis("log_softmax"),
    "_log_softmax": along_axis("log_softmax"),
}
