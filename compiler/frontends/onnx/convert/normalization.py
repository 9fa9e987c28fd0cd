"""Converters of normalisations and losses."""

from tcc.frontends.emit import family, group_norm, widened
from tcc.frontends.onnx.context import Axis, Converters, NodeContext, Results, named
from tcc.frontends.onnx.functions import call, typed_body
from tcc.frontends.onnx.rows import emit_row
from tcc.frontends.operand import Operand, Operands, Refusal
from tcc.ir.index import const
from tcc.ir.types import element_count


def _batch_normalization(ctx: NodeContext, *, training_mode: bool) -> Results:
    if training_mode:
        return _training_norm(ctx)
    if ctx.opset < 14 and ctx.wanted > 1:
        raise Refusal("it is in training mode", "export the model for inference")
    return inference_norm(ctx)


def inference_norm(ctx: NodeContext) -> Results:
    """Converts BatchNormalization with the running moments."""
    operands = ctx.present(5)
    x = operands[0]
    if not ctx.flag("spatial", True):  # each position counts as a channel, with its own moments
        count = element_count(x.shape[1:])
        moments = [o.reshape((count,)) for o in operands[1:]]
        operands = [x.reshape((*x.shape[:1], count)), *moments]
    (normalized,) = emit_row("batch_normalization", *operands)
    return normalized.reshape(x.shape)


def _training_norm(ctx: NodeContext) -> Results:
    """Converts BatchNormalization with the batch's moments; also updates the running moments."""
    x, scale, bias = ctx.present(3)
    if x.rank < 2:
        raise Refusal(f"{x.type!r} has no axis of channels")
    axes = tuple(n for n in range(x.rank) if n != 1)
    mean = x.mean(axes, keepdims=True)
    deviation = x - mean
    variance = (deviation * deviation).mean(axes)
    moments = [mean.reshape((x.shape[1],)), variance]
    (y,) = emit_row("batch_normalization", x, scale, bias, *moments)
    momentum = ctx.real("momentum")
    running = []
    for n, moment in enumerate(moments):
        old = ctx.input(3 + n)
        old_part = old * momentum
        new = moment.cast(old.dtype) * (1 - momentum)
        running.append(old_part + new)
    return [y, *running]


@family
def _layer_norm(op: str, affine: int, ctx: NodeContext) -> Results:
    _check_stash_type(ctx)
    axis = ctx.axis_of("axis", ctx.input(0).rank, -1)
    operands = (ctx.optional(n) for n in range(1 + affine))
    return emit_row(op, *operands, axis=axis, outputs=ctx.wanted)


def _check_stash_type(ctx: NodeContext) -> None:
    if ctx.integer("stash_type", 1) != 1:
        raise Refusal("only stash_type 1 (f32) is supported")


def _group_normalization(
    ctx: NodeContext,
    x: Operand,
    scale: Operand,
    bias: Operand,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
) -> Results:
    channels = x.extent(1) if x.rank > 1 and num_groups > 0 else None
    if ctx.opset < 21 and channels:  # scale and bias have an entry for each group
        scale, bias = (_per_channel(o, channels // num_groups) for o in (scale, bias))
    _check_stash_type(ctx)
    return group_norm(x, scale, bias, num_groups, epsilon)


def _per_channel(values: Operand, repeat: int) -> Operand:
    return values.unsqueeze(values.rank).expand((*values.shape, const(repeat))).flat()


def _instance_normalization(
    x: Operand, scale: Operand, bias: Operand, *, epsilon: float
) -> Results:
    return x.group_normalization(scale, bias, channels=1, epsilon=epsilon)


def _lp_normalization(x: Operand, *, axis: Axis, p: int) -> Results:
    if p not in (1, 2):
        raise Refusal(f"p is {p}; the norms are 1 and 2")
    wide = widened(x)
    norm = wide.reduce(f"l{p}", axis, keepdims=True)
    return norm.equals(0).select(0, wide / norm).cast(x.dtype)


def _mean_variance_normalization(x: Operand, *, axes: tuple[int, ...]) -> Results:
    wide = widened(x)
    distance = wide - wide.mean(axes, keepdims=True)
    deviation = (distance * distance).mean(axes, keepdims=True).sqrt()
    # ONNX adds the epsilon to the deviation, not to the variance.
    return (distance / (deviation + 1e-9)).cast(x.dtype)


def _local_response(x: Operand, *, size: int, alpha: float, beta: float, bias: float) -> Results:
    """Divides by a power of the mean square of the `size` channels around each channel."""
    if x.rank < 2 or size < 1:
        raise Refusal(f"{size} channels of {x.type!r}")
    wide, before, flat = widened(x), (size - 1) // 2, x.rank - 2
    means = (
        (wide * wide)
        .unsqueeze(1)
        .average_pool(
            strides=(1,) * (1 + flat),
            before=(before, *[0] * flat),
            after=(size - 1 - before, *[0] * flat),
            dilations=(1,) * (1 + flat),
            kernel=(size, *[1] * flat),
            count_include_pad=True,
        )
    )
    return (wide / (means.squeeze((1,)) * alpha + bias) ** wide.like(beta)).cast(x.dtype)


def _loss(ctx: NodeContext, *, reduction: str) -> Operands:
    """Inlines the body that ONNX defines, which takes each unknown reduction for a sum."""
    body = typed_body(ctx)
    if body is None or reduction not in ("none", "sum", "mean"):
        raise Refusal(f"there is no reduction '{reduction[:40]}' of these operands")
    return call(ctx, body)


_SIMPLIFIED = "SimplifiedLayerNormalization"
_ROOT_MEAN_SQUARES = ("RMSNormalization", _SIMPLIFIED, f"com.microsoft.{_SIMPLIFIED}")

CONVERTERS: Converters = {
    **named(
        _batch_normalization,
        _group_normalization,
        _instance_normalization,
        _lp_normalization,
        _mean_variance_normalization,
    ),
    "LRN": _local_response,
    "LayerNormalization": _layer_norm("layer_normalization", 2),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), _loss),
    **dict.fromkeys(_ROOT_MEAN_SQUARES, _layer_norm("rms_normalization", 1)),
}
