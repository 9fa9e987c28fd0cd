"""Layers of experts, of ONNX Runtime's own domain: the best few of each token's experts, weighted.

    share, index = top_k(softmax(scores)) ; y[t] = sum(k) share[t, k] * expert[index[t, k]](x[t])

Weights are gathered by token; `tcc.passes.group_products` finds the tokens that share an expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tcc.frontends.onnx_context import Converter, NodeContext
from tcc.frontends.onnx_scope import Operand
from tcc.ir.index import Index, as_int, const

Results = Sequence["Operand | None"]

# Of input 2: the first product's matrices, [experts, out, in]; then its bias, those of the second,
# and of the product that gates the first.
_UP, _DOWN, _GATE = 2, 4, 6


def _moe(ctx: NodeContext) -> Results:
    x, scores = ctx.input(0), ctx.input(1)
    up = ctx.input(_UP)
    count = ctx.integer("k", 1)
    if ctx.flag("use_sparse_mixer"):
        raise ctx.fail("the sparse mixer is not supported")
    if scores.rank != 2 or up.rank != 3 or x.rank not in (2, 3):
        raise ctx.fail("scores have two axes, weights three and the input two or three")
    experts = as_int(scores.shape[1])
    if experts is not None and not 1 <= count <= experts:
        raise ctx.fail(f"k is {count}, of {experts} experts")
    rows, depth = scores.shape[0], x.shape[-1]
    shares = ctx.emit("softmax", scores, axis=1)
    share, index = ctx.emit_all(
        "top_k", [shares], axis=1, k=const(count), largest=True, sorted=True
    )
    if ctx.flag("normalize_routing_weights"):
        total = ctx.emit("reduce_sum", share, axes=(1,), keepdims=True)
        share = ctx.emit("div", share, total)
    chosen = _Experts(ctx, index)
    tokens = ctx.reshape(x, (rows, 1, 1, depth))
    hidden = _activated(ctx, chosen, tokens)
    made = chosen.product(hidden, _DOWN)
    weighted = ctx.emit("mul", made, ctx.reshape(share, (rows, count, 1, 1)))
    total = ctx.emit("reduce_sum", weighted, axes=(1,), keepdims=False)
    return [ctx.reshape(total, x.shape)]


class _Experts:
    """Products with the weights of each row's experts."""

    def __init__(self, ctx: NodeContext, index: Operand) -> None:
        self.ctx, self.index = ctx, index

    def product(self, rows: Operand, number: int) -> Operand:
        """`[tokens, k, 1, out]`: rows by the matrices of input `number`, and the bias after it."""
        ctx = self.ctx
        matrices = ctx.emit("gather", ctx.input(number), self.index, axis=0)
        made = ctx.emit("matmul", rows, ctx.transpose(matrices, (0, 1, 3, 2)))
        bias = ctx.optional(number + 1)
        if bias is None:
            return made
        own = ctx.emit("gather", bias, self.index, axis=0)
        return ctx.emit("add", made, ctx.reshape(own, made.shape))


def _activated(ctx: NodeContext, chosen: _Experts, tokens: Operand) -> Operand:
    """What the second product multiplies."""
    made = chosen.product(tokens, _UP)
    gated = ctx.optional(_GATE) is not None
    match ctx.text("activation_type", "relu"):
        case "relu":
            found = ctx.emit("relu", made)
        case "gelu":
            found = ctx.emit("gelu", made, approximate="tanh")
        case "silu":
            found = ctx.emit("silu", made, alpha=1.0)
        case "identity":
            found = made
        case "swiglu":
            return _swiglu(ctx, chosen, tokens, made)
        case other:
            raise ctx.fail(f"the activation {other!r} is not known")
    return ctx.emit("mul", found, chosen.product(tokens, _GATE)) if gated else found


def _swiglu(ctx: NodeContext, chosen: _Experts, tokens: Operand, made: Operand) -> Operand:
    """`g * sigmoid(alpha * g) * (l + beta)`, where `swiglu_fusion` says how both lie in the first
    product: in turns (1) or one after the other (2); else (0) the gating product is `l`."""
    fusion = ctx.integer("swiglu_fusion", 0)
    if fusion == 0:
        if ctx.optional(_GATE) is None:
            raise ctx.fail("swiglu without fusion needs a third product")
        gate, linear = made, chosen.product(tokens, _GATE)
    else:
        width = as_int(made.shape[3])
        if fusion not in (1, 2) or width is None or width % 2:
            raise ctx.fail(f"swiglu_fusion is {fusion} for {made.shape[3]} columns")
        gate, linear = (_half(ctx, made, n, width // 2, fusion == 1) for n in range(2))
    limit = ctx.real("swiglu_limit", inf)
    if limit != inf:
        above, below = (ctx.filled(v, made.dtype) for v in (limit, -limit))
        gate = ctx.emit("clip", gate, None, above)
        linear = ctx.emit("clip", linear, below, above)
    beta = ctx.real("activation_beta", 0.0)
    if beta:
        linear = ctx.emit("add", linear, ctx.filled(beta, made.dtype))
    shaped = ctx.emit("silu", gate, alpha=ctx.real("activation_alpha", 1.0))
    return ctx.emit("mul", shaped, linear)


def _half(ctx: NodeContext, made: Operand, number: int, width: int, turns: bool) -> Operand:
    """One of two values that lie in turns, or one after the other, along the last axis."""
    zero = const(0)
    start: Index = const(number if turns else number * width)
    return ctx.emit(
        "slice",
        made,
        starts=(zero, zero, zero, start),
        steps=(1, 1, 1, 2 if turns else 1),
        sizes=(*made.shape[:3], const(width)),
    )


def _quantised(ctx: NodeContext) -> Results:
    raise ctx.fail(
        "experts with quantised weights are not supported",
        "export the layer with weights of floats (MoE); --weights int8 stores them narrow",
    )


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("com.microsoft", "MoE"): _moe,
    ("com.microsoft", "QMoE"): _quantised,
}
