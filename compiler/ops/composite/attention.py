"""Attention and rotary position embedding as single ops.

Most models express both by many small ops. If a model has them as single operators, their
expressions have the same stages as the small ops.
"""

from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast, index_value
from tcc.ir.index import Index, as_int, const
from tcc.ir.op import Array, Tolerance, Trait
from tcc.ir.types import BOOL, I64, TensorType
from tcc.ops.composite.softmax import shares
from tcc.ops.data.indexing import chosen
from tcc.ops.formula import choose, fn, read_aligned, wide
from tcc.ops.operands import guard, integer, require
from tcc.ops.reference import in_f32
from tcc.ops.rows import op_row
from tcc.ops.shapes import FLOATS, Point, agree, check_broadcast, optional, required


@frozen
class AttentionAttrs:
    """The attributes of attention.

    Scores are multiplied by `scale`.  A `softcap` c above 0 then replaces a score s by `c * tanh(s
    / c)`.  With `is_causal`, only the keys up to `i + offset` take part for query i, because
    `offset` keys precede the first query.
    """

    scale: float
    is_causal: bool
    softcap: float = 0.0
    offset: Index = const(0)


@frozen
class RotaryEmbeddingAttrs:
    """The first `rotary_dim` elements of each head are rotated in pairs.

    With `interleaved`, neighbours form a pair. Otherwise element `k` and element `k + rotary_dim //
    2` form a pair.
    """

    interleaved: bool
    rotary_dim: int


# ---- attention -----------------------------------------------------------------------------------


def _attention_infer(
    attrs: AttentionAttrs,
    q: TensorType,
    k: TensorType,
    v: TensorType,
    mask: TensorType | None = None,
) -> TensorType:
    require(q.rank == k.rank == v.rank == 4, f"attention takes rank 4: {q}, {k}, {v}")
    require(q.dtype is k.dtype is v.dtype, f"attention of different types: {q}, {k}, {v}")
    agree(q.shape[3], k.shape[3], "the head sizes of queries and keys")
    agree(k.shape[2], v.shape[2], "the lengths of keys and values")
    agree(k.shape[1], v.shape[1], "the heads of keys and values")
    agree(q.shape[0], k.shape[0], "the batches of queries and keys")
    _sharing(q, k)
    if mask is not None:
        scores = (*q.shape[:3], k.shape[2])
        require(mask.dtype in (BOOL, q.dtype), f"mask {mask} is neither bool nor {q.dtype}")
        check_broadcast(mask.shape, scores, 3)
    return TensorType(q.dtype, (*q.shape[:3], v.shape[3]))


def _sharing(q: TensorType, k: TensorType) -> int:
    """Returns the number of query heads that use the same key head."""
    many, few = as_int(q.shape[1]), as_int(k.shape[1])
    if many is None or few is None:
        require(q.shape[1] is k.shape[1], f"the heads of {q} and {k} must be known")
        return 1
    require(few > 0 and many % few == 0, f"{few} key heads do not divide {many} query heads")
    return many // few


def _attention_expr(
    b: ExprBuilder,
    attrs: AttentionAttrs,
    q: TensorType,
    k: TensorType,
    v: TensorType,
    mask: TensorType | None,
) -> StageRef:
    y = _attention_infer(attrs, q, k, v, mask)
    share = _sharing(q, k)
    batch, heads, queries, depth = q.shape
    keys, space = k.shape[2], (batch, heads, queries, k.shape[2])

    n, h, i, j = at = b.iters(*space)
    (d,) = b.iters(depth)
    pair = wide(b.read(0, n, h, i, d)) * wide(b.read(1, n, h // share, j, d))
    scores = b.sum(at, pair, over=(d,))

    at = b.iters(*space)
    scores = b.stage(at, _masked(b, b.read(scores, *at), at, mask, attrs))

    powers, share_sum = shares(b, space, 3, lambda at: b.read(scores, *at))

    n, h, i, e = at = b.point(y)
    (j,) = b.iters(keys)
    term = b.read(powers, n, h, i, j) * wide(b.read(2, n, h // share, j, e))
    mixed = b.sum(at, term, over=(j,))

    # The sum over keys is divided, not each weight, so that a kernel can process the keys in blocks
    # before it knows the divisor.
    n, h, i, _ = at = b.point(y)
    shared = b.read(mixed, *at) * (1.0 / b.read(share_sum, n, h, i))
    return b.stage(at, cast(shared, y.dtype))


def _masked(
    b: ExprBuilder,
    score: Scalar,
    at: Point,
    mask: TensorType | None,
    attrs: AttentionAttrs,
) -> Scalar:
    """Returns the score at `at`, scaled and capped, or minus infinity where the mask hides the
    key."""
    value = score * attrs.scale
    if attrs.softcap:
        value = fn("tanh", value / attrs.softcap) * attrs.softcap
    if mask is not None:
        mask_value = read_aligned(b, 3, mask, at)
        is_bool = mask.dtype is BOOL
        value = choose(mask_value, value, float("-inf")) if is_bool else value + wide(mask_value)
    if attrs.is_causal:
        last = index_value(at[2] + attrs.offset, I64)
        value = choose(index_value(at[3], I64) <= last, value, float("-inf"))
    return value


@in_f32
def _attention_reference(
    attrs: AttentionAttrs, q: Array, k: Array, v: Array, mask: Array | None
) -> Any:
    share = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, share, axis=1), np.repeat(v, share, axis=1)
    scores = np.einsum("nhid,nhjd->nhij", q, k) * q.dtype.type(attrs.scale)
    if attrs.softcap:
        scores = np.tanh(scores / q.dtype.type(attrs.softcap)) * q.dtype.type(attrs.softcap)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if attrs.is_causal:
        offset = integer(attrs.offset)
        scores = np.where(
            np.tri(scores.shape[2], scores.shape[3], offset, dtype=np.bool_), scores, -np.inf
        )
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = (powers / powers.sum(axis=-1, keepdims=True)).astype(q.dtype)
    return np.einsum("nhij,nhje->nhie", shares, v)


# ---- rotary_embedding ----------------------------------------------------------------------------


def _rotary_infer(
    attrs: RotaryEmbeddingAttrs,
    x: TensorType,
    cos: TensorType,
    sin: TensorType,
    positions: TensorType | None = None,
) -> TensorType:
    size, rotated = as_int(x.shape[-1]) if x.rank == 4 else None, attrs.rotary_dim
    require(x.rank == 4, f"rotary_embedding takes [batch, head, position, element], not {x}")
    require(rotated > 0 and rotated % 2 == 0, f"{rotated} elements do not pair up")
    require(size is None or rotated <= size, f"{rotated} elements turn in {x}")
    require(x.dtype is cos.dtype is sin.dtype, f"different types: {x}, {cos}, {sin}")
    rank = 3 if positions is None else 2
    for cache in (cos, sin):
        require(cache.rank == rank, f"cache {cache} should have rank {rank}")
        agree(cache.shape[-1], const(rotated // 2), "the angles of a cache")
    if positions is not None:
        agree(cos.shape[0], sin.shape[0], "the rows of both caches")
        require(positions.dtype is I64 and positions.rank == 2, f"positions are i64: {positions}")
    return x


def _rotary_element(
    b: ExprBuilder, at: Point, attrs: RotaryEmbeddingAttrs, x: TensorType, *_operands: object
) -> Scalar:
    n, h, s, e = at
    rotated, half = attrs.rotary_dim, attrs.rotary_dim // 2
    fill = None if as_int(x.shape[-1]) == rotated else 0
    if attrs.interleaved:
        angle, partner = e // 2, e + 1 - 2 * (e % 2)
        leading = fn("eq", index_value(e % 2, I64), 0)
    else:
        angle, partner = e % half, (e + half) % rotated
        leading = index_value(e, I64) < half
    element, other = wide(b.read(0, *at)), wide(b.read(0, n, h, s, partner, fill=fill))
    cos, sin = (wide(_angle(b, number, n, s, angle, fill)) for number in (1, 2))
    turn, straight = other * sin, element * cos
    value = choose(leading, straight - turn, straight + turn)
    if fill is not None:
        value = choose(index_value(e, I64) < rotated, value, element)
    return value


def _angle(
    b: ExprBuilder, number: int, n: Index, s: Index, angle: Index, fill: int | None
) -> Scalar:
    cache = required(b.params, number)
    if optional(b.params, 3) is None:
        return b.read(number, n, s, angle, fill=fill)
    place = chosen(b, b.read(3, n, s), cache.shape[0])
    outside = fill if guard(cache.shape[0]) is None else 0
    return b.read(number, place, angle, fill=outside)


@in_f32
def _rotary_reference(
    attrs: RotaryEmbeddingAttrs, x: Array, cos: Array, sin: Array, positions: Array | None
) -> Array:
    rotated = attrs.rotary_dim
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos[:, None], sin[:, None]
    halves = slice(rotated // 2), slice(rotated // 2, rotated)
    if attrs.interleaved:
        halves = slice(0, rotated, 2), slice(1, rotated, 2)
    first, second = (x[..., half] for half in halves)
    y = x.copy()
    y[..., halves[0]] = first * cos - second * sin
    y[..., halves[1]] = first * sin + second * cos
    return y


# ---- rows of the op table ------------------------------------------------------------------------

OPS = (
    op_row(
        "attention", AttentionAttrs, _attention_infer, _attention_reference,
        FLOATS,
        "softmax(scale * q k' + mask) v of each head; operands (q, k, v, mask), heads on axis 1.",
        Tolerance.ACCUMULATE,
        expr=_attention_expr, traits=Trait.CONTRACTION,
    ),
    op_row(
        "rotary_embedding", RotaryEmbeddingAttrs, _rotary_infer, _rotary_reference,
        FLOATS,
        "Rotates pairs of elements by angles of their position; operands (x, cos, sin, positions).",
        Tolerance.ACCUMULATE,
        element=_rotary_element,
    ),
)  # fmt: skip
