"""Converters of com.microsoft's fused operators: activations, norms and matmuls.

SkipLayerNormalization(x, skip, gamma, beta, bias)  ->  layer_normalization(x + skip + bias)
"""

from collections.abc import Callable, Sequence
from functools import partial

from tcc.frontends.draws import dropped
from tcc.frontends.emit import counted, emit, full, group_norm
from tcc.frontends.onnx.context import Converters, NodeContext, Results, named
from tcc.frontends.onnx.convert.activations import activation
from tcc.frontends.onnx.convert.contract import gemm
from tcc.frontends.onnx.convert.random import seed_of
from tcc.frontends.onnx.convert.window import window_attrs
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.types import BOOL, F64, I32, I64

# ---- activations --------------------------------------------------------------------------------


def _gelu(x: Operand, bias: Operand | None = None, *, approximate: str = "none") -> Results:
    """Converts GELU of x, or of x + bias if there is a bias."""
    if bias:
        x = x + bias
    return x.gelu(approximate=approximate)


def _bias_split_gelu(x: Operand, bias: Operand) -> Results:
    """Multiplies the first half of x + bias with the GELU of the second half."""
    x = x + bias
    width = x.extent(-1)
    if width is None or width % 2:
        raise Refusal(f"the last axis of {x.type!r} has no two halves")
    linear, gate = (x.slice_axis(-1, n * width // 2, width // 2) for n in range(2))
    return linear * gate.gelu()


def _activated(x: Operand, name: str, params: Sequence[float]) -> Operand:
    """Applies the activation that a fused node names."""
    if name in ("", "Identity"):
        return x
    if name == "Clip":
        return x.clip(*params[:2])
    return activation(name.lower(), iter(params[:1]), iter(params[1:]))(x)


# ---- norms --------------------------------------------------------------------------------------


def _skip_norm(ctx: NodeContext, x: Operand, skip: Operand, *, op: str, bias: int) -> Results:
    """Returns the norm `op` of a sum as result 0, and the sum as result 3.

    The sum has the terms x, skip and, if present, the vector that is operand `bias`.
    """
    if ctx.wants(1) or ctx.wants(2):
        raise Refusal("moments are not given", "only training reads outputs 1 and 2")
    input_sum = x + skip
    vector = ctx.optional(bias)
    if vector:
        input_sum = input_sum + vector
    affine = [ctx.optional(n) for n in range(2, bias)]
    operands = [input_sum, *(o for o in affine if o is not None)]
    return [_norm(ctx, op, operands), None, None, input_sum]


def _norm(ctx: NodeContext, op: str, operands: Sequence[Operand]) -> Operand:
    axis, epsilon = operands[0].rank - 1, ctx.real("epsilon", 1e-12)
    return emit(op, *operands, axis=axis, epsilon=epsilon)


def embedded(
    ctx: NodeContext, table: Callable[[int], Operand], places: Operand | None = None
) -> Results:
    """Returns the norm of the embedding, the number of tokens of each sequence, and the embedding.

    The embedding is a sum of table rows: the row of a token, the row of its position and, if
    present, the row of its segment. `table(n)` returns operand n, from 2 to 6. `places` are the
    positions; by default they count from 0.
    """
    tokens, segments, mask = ctx.input(0), ctx.optional(1), ctx.optional(7)
    if tokens.rank != 2:
        raise Refusal(f"tokens have two axes, not {tokens.type!r}")
    if not places:
        places = counted(tokens.shape[1]).reshape((1, tokens.shape[1]))
    embedding = table(2).gather(tokens, axis=0)
    embedding = embedding + table(3).gather(places, axis=0)
    if segments:
        embedding = embedding + table(4).gather(segments, axis=0)
    normalized = _norm(ctx, "layer_normalization", [embedding, table(5), table(6)])
    counts = mask.equals(1).cast(I32).sum(1) if mask else full(0, I32, (tokens.shape[0],))
    return [normalized, counts, embedding]


def _group_norm(
    ctx: NodeContext,
    x: Operand,
    scale: Operand,
    bias: Operand,
    *,
    channels_last: bool = True,
    epsilon: float = 1e-5,
    groups: int,
    activation: bool,
) -> Results:
    """Converts GroupNorm: groups of channels, which are last by default, then SiLU if requested.

    Operands 3 and 4, if present, are added to x first. The sum is the second result.
    """
    for other in (ctx.optional(n) for n in (3, 4)):
        if other:
            if other.rank == 2 < x.rank:  # `other` is [image, channel]
                other = other.reshape((other.shape[0], *[1] * (x.rank - 2), other.shape[1]))
            x = x + other
    if x.rank < 2:
        raise Refusal(f"{x.type!r} has no axis of channels")
    first = x.moved(-1, 1) if channels_last else x
    y = group_norm(first, scale.cast(x.dtype), bias.cast(x.dtype), groups, epsilon)
    if activation:
        y = y.silu()
    return [y.moved(1, x.rank - 1) if channels_last else y, x]


def _bias_dropout(
    ctx: NodeContext,
    x: Operand,
    bias: Operand,
    residual: Operand | None = None,
    ratio: Operand | None = None,
    training: Operand | None = None,
) -> Results:
    """Converts BiasDropout: the dropout of x + bias, to which a residual may be added.

    Nothing is dropped outside of training. The second result is the mask of the elements that are
    not dropped.
    """
    y = x + bias
    drops = ctx.truth(training) if training else False
    mask = full(True, BOOL, y.shape)
    if drops is not False:
        training_flag, fixed = None if drops else training, seed_of(ctx, as_integer=True)
        y, mask = dropped(y, 0.5 if ratio is None else ratio, training_flag, fixed)
    return [y if residual is None else y + residual, mask]


# ---- matmuls ------------------------------------------------------------------------------------


def _inverse(x: Operand) -> Results:
    """Inverts matrices by elimination with pivots, in f64."""
    packed, pivots = x.cast(F64).emit_all("lu")
    size = packed.shape[-1]
    order = pivots.pivot_order(rows=size)
    rows = order.cast(I64).reshape((*order.shape, 1))
    half = packed.solve_triangular(rows.equals(counted(size)).cast(F64), upper=False, unit=True)
    return packed.solve_triangular(half, upper=True, unit=False).cast(x.dtype)


def _fused_matmul(
    ctx: NodeContext, a: Operand, b: Operand, *, alpha: float = 1.0, activation: str = ""
) -> Results:
    result = _transposed(ctx, a, "A") @ _transposed(ctx, b, "B")
    result = result if alpha == 1 else result * alpha
    return _activated(result, activation, _params(ctx))


def _transposed(ctx: NodeContext, x: Operand, side: str) -> Operand:
    """Transposes operand `side` of a matmul, "A" or "B", as the node's flags say."""
    if x.rank < 2:
        return x
    order = list(range(x.rank))
    if ctx.flag(f"transBatch{side}"):
        order = [*order[1:-1], 0, order[-1]]
    if ctx.flag(f"trans{side}"):
        order[-2:] = order[:-3:-1]
    return x.transpose(order)


def _fused_gemm(ctx: NodeContext, *, activation: str = "") -> Results:
    (result,) = ctx.run(gemm)
    assert result is not None
    return _activated(result, activation, _params(ctx))


def _params(ctx: NodeContext) -> list[float]:
    return [ctx.real(n) for n in ("activation_alpha", "activation_beta") if ctx.has(n)]


def _fused_conv(
    ctx: NodeContext,
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    other: Operand | None = None,
    *,
    activation_params: tuple[float, ...],
    activation: str = "",
) -> Results:
    result = x.conv(weight, bias, **window_attrs(ctx, x, weight))
    if other:
        result = result + other
    return _activated(result, activation, activation_params)


CONVERTERS: Converters = {
    **named(
        _gelu, _bias_split_gelu, _group_norm, _bias_dropout, _inverse, _fused_gemm, _fused_conv
    ),
    "BiasGelu": _gelu,
    "FastGelu": partial(_gelu, approximate="tanh"),
    "QuickGelu": lambda ctx, x: x.silu(alpha=ctx.real("alpha", 1.702)),
    "SkipLayerNormalization": partial(_skip_norm, op="layer_normalization", bias=4),
    "SkipSimplifiedLayerNormalization": partial(_skip_norm, op="rms_normalization", bias=3),
    "EmbedLayerNormalization": lambda ctx: embedded(ctx, ctx.input, ctx.optional(8)),
    "SkipGroupNorm": _group_norm,
    "FusedMatMul": _fused_matmul,
    "FusedMatMulActivation": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
}
