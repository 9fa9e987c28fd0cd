"""Converters of com.microsoft's fused operators: activations, norms and products.

SkipLayerNormalization(x, skip, gamma, beta, bias)  ->  layer_normalization(x + skip + bias)
"""

from collections.abc import Callable, Sequence
from functools import partial

from tcc.frontends.draws import dropped
from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.onnx.convert.activations import activation
from tcc.frontends.onnx.convert.random import seed_of
from tcc.frontends.onnx.convert.window import window_attrs
from tcc.frontends.scope import Operand
from tcc.ir.index import Index, as_int
from tcc.ir.types import BOOL, F64, I32, I64


def positions(ctx: NodeContext, count: Operand | None, size: Index) -> Operand:
    """The numbers `count`, `count + 1`, ... of `size` places, i64; from 0 on without a count."""
    found = ctx.counted(size)
    return found if count is None else found + ctx.cast(count, I64)


# ---- activations --------------------------------------------------------------------------------


def _gelu(ctx: NodeContext, approximate: str = "none") -> Results:
    """GELU, of the sum with a bias where there is one."""
    x, bias = ctx.input(0), ctx.optional(1)
    if bias is not None:
        x = x + bias
    return ctx.emit("gelu", x, approximate=approximate)


def _split_gelu(ctx: NodeContext) -> Results:
    """The first half of x + bias times the GELU of the second."""
    x = ctx.input(0) + ctx.input(1)
    width = as_int(x.shape[-1])
    if width is None or width % 2:
        raise ctx.fail(f"the last axis of {x.type!r} has no two halves")
    linear, gate = (ctx.slice_axis(x, x.rank - 1, n * width // 2, width // 2) for n in range(2))
    return linear * ctx.emit("gelu", gate)


def _activated(ctx: NodeContext, x: Operand, name: str, params: Sequence[float]) -> Operand:
    """`x` after the activation that a fused node names."""
    if name in ("", "Identity"):
        return x
    if name == "Clip":
        return ctx.emit("clip", x, *params[:2])
    return activation(ctx, name.lower(), iter(params[:1]), iter(params[1:]))(ctx, x)


# ---- norms --------------------------------------------------------------------------------------


def _skip_norm(ctx: NodeContext, op: str, bias: int) -> Results:
    """A norm of the sum of two values and, as operand `bias`, a vector; and this sum."""
    x, skip = ctx.present(2)
    if ctx.wants(1) or ctx.wants(2):
        raise ctx.fail("moments are not given", "only training reads outputs 1 and 2")
    total = x + skip
    vector = ctx.optional(bias)
    if vector is not None:
        total = total + vector
    affine = [ctx.optional(n) for n in range(2, bias)]
    operands = [total, *(o for o in affine if o is not None)]
    return [_norm(ctx, op, operands), None, None, total]


def _norm(ctx: NodeContext, op: str, operands: Sequence[Operand]) -> Operand:
    axis, epsilon = operands[0].rank - 1, ctx.real("epsilon", 1e-12)
    return ctx.emit(op, *operands, axis=axis, epsilon=epsilon)


def embedded(
    ctx: NodeContext, table: Callable[[int], Operand], places: Operand | None = None
) -> Results:
    """The norm of a token's, a place's and, where there are any, a segment's row; `table` gives
    operands 2 to 6."""
    tokens, segments, mask = ctx.input(0), ctx.optional(1), ctx.optional(7)
    if tokens.rank != 2:
        raise ctx.fail(f"tokens have two axes, not {tokens.type!r}")
    if places is None:
        places = ctx.reshape(positions(ctx, None, tokens.shape[1]), (1, tokens.shape[1]))
    total = ctx.emit("gather", table(2), tokens, axis=0)
    total = total + ctx.emit("gather", table(3), places, axis=0)
    if segments is not None:
        total = total + ctx.emit("gather", table(4), segments, axis=0)
    found = _norm(ctx, "layer_normalization", [total, table(5), table(6)])
    if mask is None:
        counts = ctx.full(0, I32, (tokens.shape[0],))
    else:
        ones = ctx.cast(mask.equals(1), I32)
        counts = ctx.reduce("sum", ones, 1)
    return [found, counts, total]


def _group_norm(ctx: NodeContext) -> Results:
    """Groups of channels, which are last by default; then SiLU where that is asked for.  Operands 3
    and 4 are added before; the sum is the second result."""
    x, scale, bias = ctx.present(3)
    for other in (ctx.optional(n) for n in (3, 4)):
        if other is not None:
            if other.rank == 2 < x.rank:  # one number for a channel of each image
                other = ctx.reshape(other, (other.shape[0], *[1] * (x.rank - 2), other.shape[1]))
            x = x + other
    if x.rank < 2:
        raise ctx.fail(f"{x.type!r} has no axis of channels")
    last = ctx.flag("channels_last", True)
    order = (0, x.rank - 1, *range(1, x.rank - 1))
    first = ctx.transpose(x, order) if last else x
    operands = [first, *(ctx.cast(o, x.dtype) for o in (scale, bias))]
    epsilon = ctx.real("epsilon", 1e-5)
    groups = ctx.integer("groups")
    y = ctx.emit("group_normalization", *operands, num_groups=groups, epsilon=epsilon)
    if ctx.flag("activation"):
        y = ctx.emit("silu", y)
    return [ctx.transpose(y, (0, *range(2, x.rank), 1)) if last else y, x]


def _bias_dropout(ctx: NodeContext) -> Results:
    """What is left of `x` + bias, + residual: nothing is dropped outside of training."""
    total = ctx.input(0) + ctx.input(1)
    residual, ratio, training = (ctx.optional(n) for n in (2, 3, 4))
    drops = False if training is None else ctx.truth(training)
    mask = ctx.full(True, BOOL, total.shape)
    if drops is not False:
        asked, fixed = None if drops else training, seed_of(ctx, whole=True)
        total, mask = dropped(ctx, total, 0.5 if ratio is None else ratio, asked, fixed)
    return [total if residual is None else total + residual, mask]


# ---- products -----------------------------------------------------------------------------------


def _inverse(ctx: NodeContext) -> Results:
    """By elimination with pivots, in f64."""
    packed, pivots = ctx.emit_all("lu", [ctx.cast(ctx.input(0), F64)])
    size = packed.shape[-1]
    order = ctx.emit("pivot_order", pivots, rows=size)
    rows = ctx.reshape(ctx.cast(order, I64), (*order.shape, 1))
    swapped = ctx.cast(rows.equals(positions(ctx, None, size)), F64)
    half = ctx.emit("solve_triangular", packed, swapped, upper=False, unit=True)
    found = ctx.emit("solve_triangular", packed, half, upper=True, unit=False)
    return ctx.cast(found, ctx.input(0).dtype)


def _fused_matmul(ctx: NodeContext) -> Results:
    a, c = (_transposed(ctx, ctx.input(n), "AB"[n]) for n in range(2))
    found = a @ c
    alpha = ctx.real("alpha", 1.0)
    found = found if alpha == 1 else found * alpha
    return _activated(ctx, found, ctx.text("activation", ""), _params(ctx))


def _transposed(ctx: NodeContext, x: Operand, side: str) -> Operand:
    """A factor, with its rows among the batch axes or behind the columns where flags say so."""
    if x.rank < 2:
        return x
    order = list(range(x.rank))
    if ctx.flag(f"transBatch{side}"):
        order = [*order[1:-1], 0, order[-1]]
    if ctx.flag(f"trans{side}"):
        order[-2:] = order[:-3:-1]
    return ctx.transpose(x, order)


def _fused_gemm(ctx: NodeContext) -> Results:
    made = ctx.emit(
        "gemm",
        *ctx.inputs,
        alpha=ctx.real("alpha", 1.0),
        beta=ctx.real("beta", 1.0),
        trans_a=ctx.flag("transA"),
        trans_b=ctx.flag("transB"),
    )
    return _activated(ctx, made, ctx.text("activation", ""), _params(ctx))


def _params(ctx: NodeContext) -> list[float]:
    return [ctx.real(n) for n in ("activation_alpha", "activation_beta") if ctx.has(n)]


def _fused_conv(ctx: NodeContext) -> Results:
    x, weight, bias, other = ctx.input(0), ctx.input(1), ctx.optional(2), ctx.optional(3)
    made = ctx.emit("conv", x, weight, bias, **window_attrs(ctx, x, weight))
    if other is not None:
        made = made + other
    params = ctx.reals("activation_params")
    return _activated(ctx, made, ctx.text("activation", ""), params)


CONVERTERS: Converters = {
    "Gelu": _gelu,
    "BiasGelu": _gelu,
    "FastGelu": partial(_gelu, approximate="tanh"),
    "QuickGelu": lambda ctx: ctx.emit("silu", ctx.input(0), alpha=ctx.real("alpha", 1.702)),
    "BiasSplitGelu": _split_gelu,
    "SkipLayerNormalization": partial(_skip_norm, op="layer_normalization", bias=4),
    "SkipSimplifiedLayerNormalization": partial(_skip_norm, op="rms_normalization", bias=3),
    "EmbedLayerNormalization": lambda ctx: embedded(ctx, ctx.input, ctx.optional(8)),
    "GroupNorm": _group_norm,
    "SkipGroupNorm": _group_norm,
    "BiasDropout": _bias_dropout,
    "Inverse": _inverse,
    "FusedMatMul": _fused_matmul,
    "FusedMatMulActivation": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "FusedConv": _fused_conv,
}
