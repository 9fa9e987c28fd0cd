"""Converters of ONNX Runtime's expert layers: each token uses its k best experts, weighted.

    share, index = top_k(softmax(scores)) ; y[t] = sum(k) share[t, k] * expert[index[t, k]](x[t])

Weights are gathered by token; `tcc.passes.moe.grouped_gemm` finds the tokens that share an expert.
"""

from collections.abc import Callable, Sequence
from math import inf

import numpy as np
from tcc.frontends.emit import constant
from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.onnx.contrib.packed_weights import level_type, unpacked
from tcc.frontends.operand import Operand, Refusal
from tcc.frozen import entity
from tcc.ir.index import Index, as_int, const
from tcc.ir.types import F32

# The matmuls in the order of their operands: the first, the second, and the gate of the first.
_UP, _DOWN, _GATE = range(3)
_FIRST, _ZEROS, _ROUTED = 2, 11, 14


def _moe(ctx: NodeContext) -> Results:
    """Converts MoE.

    From input 2 on, each matmul has two inputs: its matrices [experts, out, in] and its bias.
    """
    share, index = _best(ctx, _scores(ctx).softmax(axis=1))
    return _layer(ctx, 2, lambda matmul: ctx.input(_FIRST + 2 * matmul), share, index)


def _scores(ctx: NodeContext) -> Operand:
    scores = ctx.input(1)
    if scores.rank != 2 or ctx.input(_FIRST).rank != 3 or ctx.input(0).rank not in (2, 3):
        raise Refusal("scores have two axes, weights three and the input two or three")
    return scores


def _best(ctx: NodeContext, scores: Operand) -> Sequence[Operand]:
    """Returns the k best scores of each token, and the indices of their experts: [token, k]."""
    count = ctx.integer("k", 1)
    experts = scores.extent(1)
    if experts is not None and not 1 <= count <= experts:
        raise Refusal(f"k is {count}, of {experts} experts")
    return scores.ordered(1, count)


def _layer(
    ctx: NodeContext,
    stride: int,
    matrices: Callable[[int], Operand],
    share: Operand,
    index: Operand,
) -> Results:
    """Returns the weighted sum of the experts' results.

    A matmul has `stride` inputs of the node, and `matrices(n)` are the matrices of matmul n.
    `share` and `index`, [token, k], are the weights and the indices of a token's experts.
    """
    x, scores = ctx.present(2)
    count = ctx.integer("k", 1)
    if ctx.flag("use_sparse_mixer"):
        raise Refusal("the sparse mixer is not supported")
    rows, depth = scores.shape[0], x.shape[-1]
    if ctx.flag("normalize_routing_weights"):
        share_sum = share.sum(1, keepdims=True)
        share = share / share_sum
    experts = _Experts(ctx, index, stride, matrices)
    hidden = _activated(ctx, experts, x.reshape((rows, 1, 1, depth)))
    combined = (experts.matmul(hidden, _DOWN) * share.reshape((rows, count, 1, 1))).sum(1)
    return combined.reshape(x.shape)


@entity
class _Experts:
    """The matmuls of each token with the matrices of its k experts, `index` [token, k].

    The fields `stride` and `matrices` are the arguments of `_layer`.
    """

    ctx: NodeContext
    index: Operand
    stride: int
    matrices: Callable[[int], Operand]

    def has(self, matmul: int) -> bool:
        return self.ctx.optional(_FIRST + self.stride * matmul) is not None

    def matmul(self, rows: Operand, matmul: int) -> Operand:
        """Multiplies rows with the experts' matrices of matmul number `matmul` and adds its bias.

        Returns `[tokens, k, 1, out]`.
        """
        ctx = self.ctx
        matrices = self.matrices(matmul).gather(self.index, axis=0)
        outputs = rows @ matrices.transpose((0, 1, 3, 2))
        bias = ctx.optional(_FIRST + self.stride * (matmul + 1) - 1)
        if not bias:
            return outputs
        gathered_bias = bias.gather(self.index, axis=0)
        return outputs + gathered_bias.reshape(outputs.shape)


def _activated(ctx: NodeContext, experts: _Experts, tokens: Operand) -> Operand:
    """Returns the activated rows, which the second matmul reads."""
    up = experts.matmul(tokens, _UP)
    gated = experts.has(_GATE)
    match ctx.text("activation_type", "relu"):
        case "relu":
            activated = up.relu()
        case "gelu":
            activated = up.gelu(approximate="tanh")
        case "silu":
            activated = up.silu()
        case "identity":
            activated = up
        case "swiglu":
            return _swiglu(ctx, experts, tokens, up)
        case other:
            raise Refusal(f"the activation {other!r} is not known")
    return activated * experts.matmul(tokens, _GATE) if gated else activated


def _swiglu(ctx: NodeContext, experts: _Experts, tokens: Operand, up: Operand) -> Operand:
    """Returns `g * sigmoid(alpha * g) * (l + beta)`.

    `swiglu_fusion` says where g and l are. With 1 they alternate along the columns of the first
    matmul's result `up`. With 2, g is its first half and l its second. With 0, g is `up`, and l is
    the result of the gate's matmul.
    """
    fusion = ctx.integer("swiglu_fusion", 0)
    if fusion == 0:
        if not experts.has(_GATE):
            raise Refusal("swiglu without fusion needs a third product")
        gate, linear = up, experts.matmul(tokens, _GATE)
    else:
        width = up.extent(3)
        if fusion not in (1, 2) or width is None or width % 2:
            raise Refusal(f"swiglu_fusion is {fusion} for {up.shape[3]} columns")
        gate, linear = (_half(up, n, width // 2, fusion == 1) for n in range(2))
    limit = ctx.real("swiglu_limit", inf)
    if limit != inf:
        above, below = (up.like(v) for v in (limit, -limit))
        gate = gate.clip(None, above)
        linear = linear.clip(below, above)
    beta = ctx.real("activation_beta", 0.0)
    if beta:
        linear = linear + beta
    shaped = gate.silu(alpha=ctx.real("activation_alpha", 1.0))
    return shaped * linear


def _half(up: Operand, number: int, width: int, alternate: bool) -> Operand:
    """Returns the half `number`, 0 or 1, of the columns of `up`; a half has `width` columns.

    The columns of the two halves alternate, or half 1 comes after half 0.
    """
    zero = const(0)
    start: Index = const(number if alternate else number * width)
    return up.slice(
        starts=(zero, zero, zero, start),
        steps=(1, 1, 1, 2 if alternate else 1),
        sizes=(*up.shape[:3], const(width)),
    )


# ---- quantised weights --------------------------------------------------------------------------


def _quantised(ctx: NodeContext, *, weights_prepacked: int = 0) -> Results:
    """Converts QMoE.

    From input 2 on, each matmul has three inputs: its levels (the integers of quantised weights),
    its scales and its bias. Later inputs are the zero points. The weights of a token's experts are
    an operand, or a softmax over the k best scores.
    """
    if ctx.text("quant_type", "int") != "int":
        raise Refusal(
            f"weights of type {ctx.text('quant_type', 'int')} are not supported",
            "export the layer with integer weights (quant_type 'int')",
        )
    if weights_prepacked == 1:
        raise Refusal("weights packed for one execution provider are not supported")
    best, index = _best(ctx, _scores(ctx))
    routed = ctx.optional(_ROUTED)
    share = routed.gather_elements(index, axis=1) if routed else best.softmax(axis=1)
    return _layer(ctx, 3, lambda matmul: _dequantised(ctx, matmul), share, index)


def _dequantised(ctx: NodeContext, matmul: int) -> Operand:
    """Returns the dequantised matrices [experts, out, in] of a matmul."""
    bits = ctx.integer(f"fc{matmul + 1}_expert_weight_bits", ctx.integer("expert_weight_bits", 4))
    dtype, first = level_type(bits), _FIRST + 3 * matmul
    levels = unpacked(ctx, first, "the weights", dtype)
    if levels.rank != 3:
        raise Refusal(f"weights {levels.type!r} have not three axes")
    experts, out, depth = (as_int(n) or 0 for n in levels.shape)
    block = ctx.integer("block_size", 0)
    blocks = -(-depth // block) if block > 0 else 1
    scale = ctx.input(first + 1).reshape((experts, out, blocks)).cast(F32)
    if ctx.optional(_ZEROS + matmul) is None:
        zero = constant(np.full((experts, out, blocks), 1 << (bits - 1), dtype.carrier), dtype)
    else:
        row = blocks if block > 0 else out
        zero = unpacked(ctx, _ZEROS + matmul, "the zero points", dtype, row)
        zero = zero.reshape((experts, out, blocks))
    step = block if block > 0 else max(depth, 1)
    return levels.dequantize_linear(scale, zero, axis=2, block_size=step).cast(ctx.input(0).dtype)


CONVERTERS: Converters = {
    "MoE": _moe,
    "QMoE": _quantised,
}
