"""Layers of experts, of ONNX Runtime's own domain: the best few of each token's experts, weighted.

    share, index = top_k(softmax(scores)) ; y[t] = sum(k) share[t, k] * expert[index[t, k]](x[t])

Weights are gathered by token; `tcc.passes.moe.grouped_gemm` finds the tokens that share an expert.
"""

from collections.abc import Callable, Sequence
from math import inf

import numpy as np
from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.onnx.contrib.packed_weights import level_type, unpacked
from tcc.frontends.scope import Operand
from tcc.ir.index import Index, as_int, const
from tcc.ir.types import F32
from tcc.record import entity

# The products in the order of their operands: the first, the second, and what gates the first.
_UP, _DOWN, _GATE = range(3)
_FIRST, _ZEROS, _ROUTED = 2, 11, 14


def _moe(ctx: NodeContext) -> Results:
    """From input 2 on, the matrices [experts, out, in] and the bias of each product."""
    shares = ctx.emit("softmax", _scores(ctx), axis=1)
    share, index = _best(ctx, shares)
    return _layer(ctx, 2, lambda product: ctx.input(_FIRST + 2 * product), share, index)


def _scores(ctx: NodeContext) -> Operand:
    scores = ctx.input(1)
    if scores.rank != 2 or ctx.input(_FIRST).rank != 3 or ctx.input(0).rank not in (2, 3):
        raise ctx.fail("scores have two axes, weights three and the input two or three")
    return scores


def _best(ctx: NodeContext, scores: Operand) -> Sequence[Operand]:
    """The best scores of each token and the experts that they are of."""
    count = ctx.integer("k", 1)
    experts = as_int(scores.shape[1])
    if experts is not None and not 1 <= count <= experts:
        raise ctx.fail(f"k is {count}, of {experts} experts")
    return ctx.emit_all("top_k", [scores], axis=1, k=const(count), largest=True, sorted=True)


def _layer(
    ctx: NodeContext,
    apart: int,
    matrices: Callable[[int], Operand],
    share: Operand,
    index: Operand,
) -> Results:
    """The experts' results by their shares; the operands of products are `apart`."""
    x, scores = ctx.present(2)
    count = ctx.integer("k", 1)
    if ctx.flag("use_sparse_mixer"):
        raise ctx.fail("the sparse mixer is not supported")
    rows, depth = scores.shape[0], x.shape[-1]
    if ctx.flag("normalize_routing_weights"):
        total = ctx.reduce("sum", share, 1, keepdims=True)
        share = share / total
    chosen = _Experts(ctx, index, apart, matrices)
    tokens = ctx.reshape(x, (rows, 1, 1, depth))
    hidden = _activated(ctx, chosen, tokens)
    made = chosen.product(hidden, _DOWN)
    weighted = made * ctx.reshape(share, (rows, count, 1, 1))
    total = ctx.reduce("sum", weighted, 1)
    return ctx.reshape(total, x.shape)


@entity
class _Experts:
    """Products with the weights of each row's experts."""

    ctx: NodeContext
    index: Operand
    apart: int
    matrices: Callable[[int], Operand]

    def has(self, product: int) -> bool:
        return self.ctx.optional(_FIRST + self.apart * product) is not None

    def product(self, rows: Operand, product: int) -> Operand:
        """`[tokens, k, 1, out]`: rows by the matrices of a product, and its bias."""
        ctx = self.ctx
        matrices = ctx.emit("gather", self.matrices(product), self.index, axis=0)
        made = rows @ ctx.transpose(matrices, (0, 1, 3, 2))
        bias = ctx.optional(_FIRST + self.apart * (product + 1) - 1)
        if bias is None:
            return made
        own = ctx.emit("gather", bias, self.index, axis=0)
        return made + ctx.reshape(own, made.shape)


def _activated(ctx: NodeContext, chosen: _Experts, tokens: Operand) -> Operand:
    """What the second product multiplies."""
    made = chosen.product(tokens, _UP)
    gated = chosen.has(_GATE)
    match ctx.text("activation_type", "relu"):
        case "relu":
            found = ctx.emit("relu", made)
        case "gelu":
            found = ctx.emit("gelu", made, approximate="tanh")
        case "silu":
            found = ctx.emit("silu", made)
        case "identity":
            found = made
        case "swiglu":
            return _swiglu(ctx, chosen, tokens, made)
        case other:
            raise ctx.fail(f"the activation {other!r} is not known")
    return found * chosen.product(tokens, _GATE) if gated else found


def _swiglu(ctx: NodeContext, chosen: _Experts, tokens: Operand, made: Operand) -> Operand:
    """`g * sigmoid(alpha * g) * (l + beta)`, where `swiglu_fusion` says how both lie in the first
    product: in turns (1) or one after the other (2); else (0) the gating product is `l`."""
    fusion = ctx.integer("swiglu_fusion", 0)
    if fusion == 0:
        if not chosen.has(_GATE):
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
        linear = linear + beta
    shaped = ctx.emit("silu", gate, alpha=ctx.real("activation_alpha", 1.0))
    return shaped * linear


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


# ---- levels -------------------------------------------------------------------------------------


def _quantised(ctx: NodeContext) -> Results:
    """From input 2 on, the levels, scales and bias of each product; then their zero points.  Shares
    are a softmax of the best scores alone, or given."""
    if ctx.text("quant_type", "int") != "int":
        raise ctx.fail(
            f"weights of type {ctx.text('quant_type', 'int')} are not supported",
            "export the layer with integer weights (quant_type 'int')",
        )
    if ctx.integer("weights_prepacked", 0) == 1:
        raise ctx.fail("weights packed for one execution provider are not supported")
    best, index = _best(ctx, _scores(ctx))
    routed = ctx.optional(_ROUTED)
    if routed is None:
        share = ctx.emit("softmax", best, axis=1)
    else:
        share = ctx.emit("gather_elements", routed, index, axis=1)
    return _layer(ctx, 3, lambda product: _dequantised(ctx, product), share, index)


def _dequantised(ctx: NodeContext, product: int) -> Operand:
    """The matrices [experts, out, in] of a product."""
    bits = ctx.integer(f"fc{product + 1}_expert_weight_bits", ctx.integer("expert_weight_bits", 4))
    dtype, first = level_type(ctx, bits), _FIRST + 3 * product
    levels = unpacked(ctx, first, "the weights", dtype)
    if levels.rank != 3:
        raise ctx.fail(f"weights {levels.type!r} have not three axes")
    experts, out, depth = (as_int(n) or 0 for n in levels.shape)
    block = ctx.integer("block_size", 0)
    blocks = -(-depth // block) if block > 0 else 1
    scale = ctx.cast(ctx.reshape(ctx.input(first + 1), (experts, out, blocks)), F32)
    if ctx.optional(_ZEROS + product) is None:
        middle = np.full((experts, out, blocks), 1 << (bits - 1), dtype.carrier)
        zero = ctx.constant(middle, dtype)
    else:
        row = blocks if block > 0 else out
        zero = unpacked(ctx, _ZEROS + product, "the zero points", dtype, row)
        zero = ctx.reshape(zero, (experts, out, blocks))
    step = block if block > 0 else max(depth, 1)
    made = ctx.emit("dequantize_linear", levels, scale, zero, axis=2, block_size=step)
    return ctx.cast(made, ctx.input(0).dtype)


CONVERTERS: Converters = {
    "MoE": _moe,
    "QMoE": _quantised,
}
