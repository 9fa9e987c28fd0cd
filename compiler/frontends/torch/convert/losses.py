"""Converters of losses, which archives hold as traced: a function of each element, then a mean or
a sum; exported programs keep torch's own way of taking them apart."""

from __future__ import annotations

import math
from collections.abc import Callable

from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter
from tcc.ir.index import const
from tcc.ir.types import I64

Loss = Callable[..., Operand]
_REDUCTIONS = ("none", "mean", "sum")


def _loss(function: Loss, *names: str) -> Converter:
    """A function of the arguments of these names; `reduction` is none, mean or sum."""

    def convert(ctx: CallContext) -> Operand:
        dtype = ctx.result_dtype()
        found = function(ctx, *(ctx.operand(name, dtype) for name in names))
        if "weight" in ctx.arguments and ctx.has("weight"):
            found = ctx.emit("mul", found, ctx.operand("weight", dtype))
        return _reduced(ctx, found)

    return convert


def _reduced(ctx: CallContext, x: Operand) -> Operand:
    reduction = _REDUCTIONS[ctx.integer("reduction")]
    if reduction == "none":
        return x
    return ctx.emit(f"reduce_{reduction}", x, axes=tuple(range(x.rank)), keepdims=False)


def _of_gap(function: Loss) -> Converter:
    """A function of the difference and of its size."""

    def convert(ctx: CallContext, x: Operand, y: Operand) -> Operand:
        gap = ctx.emit("sub", x, y)
        return function(ctx, gap, ctx.emit("abs", gap))

    return _loss(convert, "self", "target")


def _bent(ctx: CallContext, size: Operand, bend: float) -> Operand:
    """Half the square up to `bend`, from there the tangent."""
    half, end = ctx.scalar(0.5, size), ctx.scalar(bend, size)
    square = ctx.emit("mul", half, ctx.emit("mul", size, size))
    line = ctx.emit("mul", end, ctx.emit("sub", size, ctx.scalar(bend / 2, size)))
    return ctx.where(ctx.emit("less", size, end), square, line)


def _smooth(ctx: CallContext, gap: Operand, size: Operand) -> Operand:
    beta = ctx.real("beta")
    return size if beta == 0 else ctx.emit("div", _bent(ctx, size, beta), ctx.scalar(beta, gap))


def _log(ctx: CallContext, x: Operand) -> Operand:
    """A logarithm of at least -100, as torch bounds those of probabilities."""
    return ctx.emit("max", ctx.emit("log", x), ctx.scalar(-100, x))


def _cross_entropy_of_two(ctx: CallContext, x: Operand, target: Operand) -> Operand:
    one = ctx.scalar(1, x)
    held = ctx.emit("mul", target, _log(ctx, x))
    missed = ctx.emit("sub", one, target)
    missed = ctx.emit("mul", missed, _log(ctx, ctx.emit("sub", one, x)))
    return ctx.emit("neg", ctx.emit("add", held, missed))


def _cross_entropy_of_logits(ctx: CallContext, x: Operand, target: Operand) -> Operand:
    one, loss = ctx.scalar(1, x), ctx.emit("softplus", ctx.emit("neg", x))
    if ctx.has("pos_weight"):
        more = ctx.emit("sub", ctx.operand("pos_weight", x.dtype), one)
        loss = ctx.emit("mul", loss, ctx.emit("add", one, ctx.emit("mul", more, target)))
    return ctx.emit("add", ctx.emit("mul", ctx.emit("sub", one, target), x), loss)


def _divergence(ctx: CallContext, x: Operand, target: Operand) -> Operand:
    if ctx.flag("log_target"):
        return ctx.emit("mul", ctx.emit("exp", target), ctx.emit("sub", target, x))
    zero = ctx.scalar(0, target)
    entropy = ctx.emit("mul", target, ctx.emit("log", target))
    entropy = ctx.where(ctx.emit("equal", target, zero), zero, entropy)
    return ctx.emit("sub", entropy, ctx.emit("mul", target, x))


def _soft_margin(ctx: CallContext, x: Operand, target: Operand) -> Operand:
    return ctx.emit("softplus", ctx.emit("neg", ctx.emit("mul", target, x)))


def _poisson(ctx: CallContext, x: Operand, target: Operand) -> Operand:
    if ctx.flag("log_input"):
        loss = ctx.emit("sub", ctx.emit("exp", x), ctx.emit("mul", target, x))
    else:
        log = ctx.emit("log", ctx.emit("add", x, ctx.scalar(ctx.real("eps"), x)))
        loss = ctx.emit("sub", x, ctx.emit("mul", target, log))
    if not ctx.flag("full"):
        return loss
    turn = ctx.emit("log", ctx.emit("mul", target, ctx.scalar(2 * math.pi, x)))
    more = ctx.emit("mul", target, ctx.emit("log", target))
    more = ctx.emit("sub", more, target)
    more = ctx.emit("add", more, ctx.emit("mul", turn, ctx.scalar(0.5, x)))
    large = ctx.emit("greater", target, ctx.scalar(1, x))
    return ctx.emit("add", loss, ctx.where(large, more, ctx.scalar(0, x)))


def _ranking(ctx: CallContext, x: Operand, y: Operand, target: Operand) -> Operand:
    gap = ctx.emit("mul", target, ctx.emit("sub", y, x))
    return ctx.emit("relu", ctx.emit("add", gap, ctx.scalar(ctx.real("margin"), x)))


# ---- labels --------------------------------------------------------------------------------------


def _of_labels(op: str) -> Converter:
    """The row `op` of scores and of the class that each row of them should have."""

    def convert(ctx: CallContext) -> Operand:
        x, labels = ctx.operand("self"), ctx.operand("target")
        if labels.dtype.is_float:
            return _of_shares(ctx, x, labels)
        if "label_smoothing" in ctx.arguments and ctx.real("label_smoothing") != 0:
            raise ctx.fail("smoothed labels are not supported", "give the classes' probabilities")
        single = x.rank == 1
        x, labels = (ctx.unsqueeze(part, 0) if single else part for part in (x, labels))
        operands = [x, ctx.cast(labels, I64)]
        if ctx.has("weight"):
            operands.append(ctx.operand("weight", x.dtype))
        reduction = _REDUCTIONS[ctx.integer("reduction")]
        ignored = ctx.integer("ignore_index")
        found = ctx.emit(op, *operands, reduction=reduction, ignore_index=ignored)
        return ctx.reshape(found, ()) if single else found

    return convert


def _of_shares(ctx: CallContext, x: Operand, shares: Operand) -> Operand:
    """Cross entropy with the probability of each class."""
    axis, smoothing = int(x.rank > 1), ctx.real("label_smoothing")
    if smoothing:
        count = ctx.cast(ctx.size_scalar(x.shape[axis]), x.dtype)
        even = ctx.emit("div", ctx.scalar(smoothing, x), count)
        shares = ctx.emit("add", ctx.emit("mul", shares, ctx.scalar(1 - smoothing, x)), even)
    loss = ctx.emit("mul", ctx.emit("log_softmax", x, axis=axis), shares)
    if ctx.has("weight"):
        weight = ctx.operand("weight", x.dtype)
        ones = [const(1)] * (x.rank - axis - 1)
        loss = ctx.emit("mul", loss, ctx.reshape(weight, [*weight.shape, *ones]))
    loss = ctx.emit("reduce_sum", ctx.emit("neg", loss), axes=(axis,), keepdims=False)
    return _reduced(ctx, loss) if loss.rank else loss


CONVERTERS: dict[str, Converter] = {
    "mse_loss": _of_gap(lambda ctx, gap, size: ctx.emit("mul", gap, gap)),
    "l1_loss": _of_gap(lambda ctx, gap, size: size),
    "smooth_l1_loss": _of_gap(_smooth),
    "huber_loss": _of_gap(lambda ctx, gap, size: _bent(ctx, size, ctx.real("delta"))),
    "binary_cross_entropy": _loss(_cross_entropy_of_two, "self", "target"),
    "binary_cross_entropy_with_logits": _loss(_cross_entropy_of_logits, "self", "target"),
    "kl_div": _loss(_divergence, "self", "target"),
    "soft_margin_loss": _loss(_soft_margin, "self", "target"),
    "poisson_nll_loss": _loss(_poisson, "input", "target"),
    "margin_ranking_loss": _loss(_ranking, "input1", "input2", "target"),
    "cross_entropy_loss": _of_labels("softmax_cross_entropy_loss"),
    **{
        name: _of_labels("negative_log_likelihood_loss")
        for name in ("nll_loss", "nll_loss2d", "nll_loss_nd")
    },
}
