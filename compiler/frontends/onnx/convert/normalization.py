"""Converters of normalisations and losses."""

from tcc.frontends.onnx.context import Converter, Converters, NodeContext, Results
from tcc.frontends.scope import Operand
from tcc.ir.index import as_int, const
from tcc.ir.types import element_count


def _batch_norm(ctx: NodeContext) -> Results:
    if ctx.flag("training_mode"):
        return _training_norm(ctx)
    if ctx.opset < 14 and ctx.wanted > 1:
        raise ctx.fail("it is in training mode", "export the model for inference")
    return inference_norm(ctx)


def inference_norm(ctx: NodeContext) -> Results:
    """Converts BatchNormalization with the running moments."""
    operands = ctx.present(5)
    x = operands[0]
    if not ctx.flag("spatial", True):  # each position counts as a channel, with its own moments
        count = element_count(x.shape[1:])
        moments = [o.reshape((count,)) for o in operands[1:]]
        operands = [x.reshape((*x.shape[:1], count)), *moments]
    normalized = ctx.emit("batch_normalization", *operands, epsilon=ctx.real("epsilon"))
    return normalized.reshape(x.shape)


def _training_norm(ctx: NodeContext) -> Results:
    """Converts BatchNormalization with the batch's moments; also updates the running moments."""
    x, scale, bias = ctx.present(3)
    if x.rank < 2:
        raise ctx.fail(f"{x.type!r} has no axis of channels")
    axes = tuple(n for n in range(x.rank) if n != 1)
    mean = x.mean(axes, keepdims=True)
    deviation = x - mean
    squares = deviation * deviation
    variance = squares.mean(axes)
    moments = [mean.reshape((x.shape[1],)), variance]
    operands = (x, scale, bias, *moments)
    y = ctx.emit("batch_normalization", *operands, epsilon=ctx.real("epsilon"))
    momentum = ctx.real("momentum")
    running = []
    for n, moment in enumerate(moments):
        old = ctx.input(3 + n)
        old_part = old * momentum
        new = moment.cast(old.dtype) * (1 - momentum)
        running.append(old_part + new)
    return [y, *running]


def _layer_norm(op: str, affine: int) -> Converter:
    def convert(ctx: NodeContext) -> Results:
        x = ctx.input(0)
        _check_stash_type(ctx)
        return ctx.emit_all(
            op,
            [ctx.optional(n) for n in range(1 + affine)],
            axis=ctx.axis_of("axis", x.rank, -1),
            epsilon=ctx.real("epsilon", 1e-5),
            outputs=ctx.wanted,
        )

    return convert


def _check_stash_type(ctx: NodeContext) -> None:
    if ctx.integer("stash_type", 1) != 1:
        raise ctx.fail("only stash_type 1 (f32) is supported")


def _group_norm(ctx: NodeContext) -> Results:
    x, groups = ctx.input(0), ctx.integer("num_groups")
    scale, bias = ctx.input(1), ctx.input(2)
    channels = as_int(x.shape[1]) if x.rank > 1 else None
    if channels is None or groups < 1 or channels % groups:
        raise ctx.fail(f"{groups} groups do not divide the channels of {x.type!r}")
    if ctx.opset < 21:  # scale and bias have an entry for each group, not for each channel
        scale, bias = (_per_channel(o, channels // groups) for o in (scale, bias))
    _check_stash_type(ctx)
    epsilon = ctx.real("epsilon")
    return ctx.emit("group_normalization", x, scale, bias, num_groups=groups, epsilon=epsilon)


def _per_channel(values: Operand, repeat: int) -> Operand:
    groups = values.shape[0]
    spread = values.reshape((groups, 1)).expand((groups, const(repeat)))
    return spread.reshape((groups * repeat,))


def _loss(op: str) -> Converter:
    def convert(ctx: NodeContext) -> Results:
        ignored = ctx.integer("ignore_index") if ctx.has("ignore_index") else None
        return ctx.emit_all(
            op,
            ctx.inputs,
            reduction=ctx.text("reduction"),
            ignore_index=ignored,
            outputs=ctx.wanted,
        )

    return convert


def _simplified_norm(ctx: NodeContext) -> Results:
    x = ctx.input(0)
    _check_stash_type(ctx)
    axis = ctx.axis_of("axis", x.rank, -1)
    outputs = 2 if ctx.wants(1) else 1
    epsilon = ctx.real("epsilon", 1e-5)
    operands = [x, ctx.input(1)]
    return ctx.emit_all("rms_normalization", operands, axis=axis, epsilon=epsilon, outputs=outputs)


CONVERTERS: Converters = {
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm("layer_normalization", 2),
    "RMSNormalization": _layer_norm("rms_normalization", 1),
    "GroupNormalization": _group_norm,
    "NegativeLogLikelihoodLoss": _loss("negative_log_likelihood_loss"),
    "SoftmaxCrossEntropyLoss": _loss("softmax_cross_entropy_loss"),
    **dict.fromkeys(
        ("SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization"),
        _simplified_norm,
    ),
}
