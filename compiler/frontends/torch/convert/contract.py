"""Converters of contractions: matmuls, linear layers, einsum, attention."""

import math

import numpy as np
from tcc.frontends.einsum import einsum
from tcc.frontends.emit import checked_axes, constant, family, p_norm, widened
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.torch.context import (
    CallContext,
    Converter,
    Converters,
    Integers,
    Results,
)
from tcc.frontends.torch.convert.create import counted, grid
from tcc.ir.index import const
from tcc.ir.types import BOOL, I64


def _matmul(a: str, b: str) -> Converter:
    return lambda ctx: ctx.operand(a) @ ctx.operand(b)


def _linear(x: Operand, weight: Operand, bias: Operand | None = None) -> Operand:
    transposed = weight if weight.rank < 2 else weight.swap_axes(0, 1)
    matmul = x @ transposed
    return matmul + bias if bias else matmul


def _scaled(ctx: CallContext, x: Operand, name: str) -> Operand:
    """Multiplies `x` by the number in the argument `name`, if the call has it."""
    if ctx.real(name) == 1:
        return x
    return x * ctx.operand(name, x.dtype)


@family
def _add_matmul(lhs: str, rhs: str, batched: bool, ctx: CallContext, beta: float) -> Operand:
    """Returns beta * self + alpha * (lhs @ rhs); `batched` sums over the batch."""
    matmul = ctx.operand(lhs) @ ctx.operand(rhs)
    if batched:
        matmul = matmul.sum(0)
    matmul = _scaled(ctx, matmul, "alpha")
    if beta == 0:
        return matmul
    return matmul + _scaled(ctx, ctx.operand("self"), "beta")


# ---- attention -----------------------------------------------------------------------------------


def _scale(ctx: CallContext, q: Operand) -> float:
    """Returns the factor of the scores, by default 1 / sqrt(width of a head)."""
    width = q.extent(-1)
    if width is None:
        raise Refusal("the head size must be known")
    return ctx.real("scale", 1 / math.sqrt(width or 1))


def _attention(
    ctx: CallContext,
    query: Operand,
    key: Operand,
    value: Operand,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Operand | None = None,
    enable_gqa: bool = False,
) -> Operand:
    """Returns softmax(q k' * scale + mask) v; groups of queries may share heads of keys and
    values."""
    if dropout_p != 0:
        raise Refusal("it draws random numbers", "call model.eval() before the export")
    q, k, v, mask, batch = query, key, value, attn_mask, query.shape[:-2]
    scale = _scale(ctx, q)
    if q.rank != 4:
        heads = math.prod(batch, start=const(1))

        def merge_batch(x: Operand) -> Operand:
            return x.expand((*batch, *x.shape[-2:])).reshape((heads, 1, *x.shape[-2:]))

        q, k, v = map(merge_batch, (q, k, v))
        if mask and mask.rank > 2:
            mask = merge_batch(mask)
    if q.rank == 4 and not enable_gqa:
        k, v = (x.expand((*q.shape[:2], *x.shape[-2:])) for x in (k, v))
    if mask and mask.dtype is not BOOL:
        mask = mask.cast(q.dtype)
    attended = q.attention(k, v, mask, scale=scale, is_causal=is_causal)
    if mask:
        attended = _without_masked_rows(attended, mask)
    return attended.reshape((*batch, *attended.shape[-2:]))


def _without_masked_rows(attended: Operand, mask: Operand) -> Operand:
    """Returns attention with zeros where the mask hides all keys from a query; the op returns NaN
    there."""
    if mask.array is not None:
        is_visible = mask.array if mask.dtype is BOOL else mask.array > -np.inf
        if is_visible.any(-1).all():
            return attended
    low = ~mask if mask.dtype is BOOL else mask.equals(-math.inf)
    return low.min(-1, keepdims=True).select(0, attended)


def attention_scores(ctx: CallContext, q: Operand, k: Operand) -> tuple[Operand, float]:
    """Returns the scores before the softmax, and the scale of the matmul."""
    scale = _scale(ctx, q)
    scores = q @ k.swap_axes(2, 3) * scale
    if ctx.flag("is_causal"):
        row, column = grid(q.shape[2], k.shape[2])
        scores = (column <= row).select(scores, -math.inf)
    mask = ctx.operand("attn_mask") if ctx.has("attn_mask") else None
    if not mask:
        return scores, scale
    if mask.dtype is BOOL:
        return mask.select(scores, -math.inf), scale
    return scores + mask.cast(scores.dtype), scale


def _attention_and_sums(ctx: CallContext) -> Results:
    """Returns attention, and the logarithms of the sums of its exponentials if a gradient needs
    them."""
    attended = ctx.run(_attention)
    if 1 not in ctx.call.used_results:
        return attended, None
    scores, _ = attention_scores(ctx, *(widened(ctx.operand(n)) for n in ("query", "key")))
    return attended, scores.reduce("log_sum_exp", 3)


def _distances(x1: Operand, x2: Operand, p: float) -> Operand:
    """Returns the p-norms of the differences of all pairs of rows."""
    return p_norm(x1.unsqueeze(x1.rank - 1) - x2.unsqueeze(x2.rank - 2), p, (-1,), False)


def _pair_distances(x: Operand, p: float) -> Operand:
    """Returns the p-norms of the differences of all pairs of rows of one matrix."""
    rows = x.extent(0)
    if rows is None:
        raise Refusal("the number of rows must be known")
    first, second = np.triu_indices(rows, 1)
    first_rows, second_rows = (x.gather(constant(n), axis=0) for n in (first, second))
    return p_norm(first_rows - second_rows, p, (1,), False)


def _trilinear(ctx: CallContext, sumdim: tuple[int, ...]) -> Operand:
    """Multiplies three tensors, each with additional axes, and sums over some axes."""
    parts = []
    for name in ("1", "2", "3"):
        part = ctx.operand(f"i{name}")
        for axis in sorted(ctx.integers(f"expand{name}")):
            part = part.unsqueeze(axis)
        parts.append(part)
    products = parts[0] * parts[2] * parts[1]
    axes = checked_axes(sumdim, products.rank)
    return products.sum(tuple(sorted(axes)))


@family
def _grouped(rows: str, weights: str, ctx: CallContext, offs: Integers) -> Operand:
    """Returns grouped matmuls, in which each group of consecutive rows has its own
    matrix.

    `offs` are the ends of the groups.
    """
    x, weight = ctx.operand(rows), ctx.operand(weights)
    if x.rank != 2 or weight.rank != 3:
        raise Refusal(f"its operands are {x.type!r} and {weight.type!r}")
    if ctx.has("bias") or ctx.has("out_dtype"):
        raise Refusal("a bias or an element type of its own is not supported")
    places = counted(x.shape[0]).unsqueeze(1)
    group = (offs <= places).cast(I64).sum(1)
    count = weight.extent(0)
    if not count:
        raise Refusal("the number of matrices must be known")
    matrices = weight.gather(group.minimum(count - 1), axis=0)
    outputs = (x.unsqueeze(1) @ matrices).squeeze((1,))
    return (group < count).unsqueeze(1).select(outputs, 0)


CONVERTERS: Converters = {
    "mm": _matmul("self", "mat2"),
    "bmm": _matmul("self", "mat2"),
    "matmul": _matmul("self", "other"),
    "linear": _linear,
    "addmm": _add_matmul("mat1", "mat2", False),
    "addbmm": _add_matmul("batch1", "batch2", True),
    "einsum": lambda ctx: einsum(ctx.text("equation"), ctx.operands("tensors")),
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention_and_sums,
    "_grouped_mm": _grouped("self", "mat2"),
    "transformers.grouped_mm_fallback": _grouped("input", "weight"),
    "_cdist_forward": _distances,
    "_pdist_forward": _pair_distances,
    "_trilinear": _trilinear,
}
