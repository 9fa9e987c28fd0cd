"""Converters of com.microsoft's attention: packed heads, shared heads, and caches.

    GroupQueryAttention(q, k, v, past_k, past_v, lengths, total, cos, sin)
      ->  k = concat(past_k, rotary(k)) ; v = concat(past_v, v) ; attention(rotary(q), k, v)

A cache grows by the rows of a run if its length is symbolic, or if the model says so. Otherwise it
has its final length, and new rows are written at the end of each sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import sqrt

from tcc.frontends.emit import concat, counted, emit, filled, full, require, size_scalar, stack
from tcc.frontends.onnx.context import Converters, NodeContext, Results, named
from tcc.frontends.onnx.contrib.quantize import scaled_sums
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.index import Index, as_int, const
from tcc.ir.types import BOOL, I64
from tcc.zipped import zip_equal

# ---- heads --------------------------------------------------------------------------------------


def _heads(x: Operand, count: int) -> Operand:
    """Reshapes `[batch, position, heads * width]` to `[batch, head, position, width]`."""
    width = x.extent(-1) if x.rank == 3 else None
    if count < 1 or width is None or width % count:
        raise Refusal(f"{x.type!r} has no {count} heads side by side")
    return x.reshape((*x.shape[:2], count, width // count)).transpose((0, 2, 1, 3))


def _merged(x: Operand) -> Operand:
    """Reshapes `[batch, head, position, width]` to `[batch, position, heads * width]`."""
    batch, count, length, width = x.shape
    return x.transpose((0, 2, 1, 3)).reshape((batch, length, count * width))


def _attend(
    ctx: NodeContext,
    qkv: Sequence[Operand],
    *,
    mask: Operand | None,
    causal: bool = False,
    offset: Index | None = None,
) -> Operand:
    width = as_int(qkv[0].shape[3])
    if not width:
        raise Refusal("the width of a head is not known")
    attended = emit(
        "attention",
        *qkv,
        mask,
        scale=ctx.real("scale", 0.0) or 1 / sqrt(width),
        is_causal=causal,
        softcap=ctx.real("softcap", 0.0),
        offset=const(0) if offset is None else offset,
    )
    return _merged(attended)


def _refuse(ctx: NodeContext, *inputs: int, **defaults: float | str) -> None:
    """Raises `UserError` for operands and attributes that would change the result."""
    for number in inputs:
        if ctx.optional(number) is not None:
            raise Refusal(f"input {number} is not supported")
    for name, default in defaults.items():
        if ctx.has(name):
            value = ctx.text(name) if type(default) is str else ctx.integer(name)
            if value != default:
                raise Refusal(f"{name}={value} is not supported")


def _columns(x: Operand, widths: Sequence[int]) -> list[Operand]:
    """Splits axis 2 in parts of these widths."""
    return [x.slice_axis(2, end - n, n) for end, n in zip_equal(accumulate(widths), widths)]


# ---- rotary embedding ---------------------------------------------------------------------------


def _rotary_embedding(
    ctx: NodeContext,
    x: Operand,
    places: Operand,
    cos: Operand,
    sin: Operand,
    *,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    interleaved: bool,
) -> Results:
    _refuse(ctx, is_packed_batching=0)
    if scale != 1:
        raise Refusal("a scale is not supported")
    split = x.ranked(3, 4)
    if x.rank == 3:
        half, width = cos.extent(-1), x.extent(-1)
        if not num_heads and (not half or width is None or rotary_embedding_dim):
            raise Refusal("the number of heads is not known")
        split = _heads(x, num_heads or (width or 0) // (2 * (half or 1)))
    batch, _, length, width_of = split.shape
    rotated = rotary_embedding_dim or as_int(width_of) or 0
    if places.rank == 1:  # `places` is one number, the first position of every sequence
        places = (counted(length) + places.cast(I64)).reshape((1, length)).expand((batch, length))
    result = _rotate(split, (cos, sin), places, interleaved, rotated)
    return _merged(result) if x.rank == 3 else result


def _rotate(
    x: Operand,
    caches: Sequence[Operand],
    places: Operand,
    interleaved: bool,
    rotated: int,
) -> Operand:
    operands = [c.cast(x.dtype) for c in caches]
    attrs = {"interleaved": interleaved, "rotary_dim": rotated}
    return x.rotary_embedding(*operands, places.cast(I64), **attrs)


# ---- masks --------------------------------------------------------------------------------------


def _padding(ctx: NodeContext, mask: Operand, like: Operand, key_count: Index) -> Operand:
    """Returns a mask to add to scores: 0 for a visible key, else a large negative number.

    `mask` has a number for each key, or for each query and key, which is positive if the key is
    visible. Or it has the length of each sequence, whose keys are visible up to there. `like` are
    the queries, whose dtype the mask gets; `key_count` is the number of keys.
    """
    match mask.rank:
        case 1:
            keys = counted(key_count).reshape((1, key_count))
            lengths = mask.reshape((mask.shape[0], 1)).cast(I64)
            if mask.shape[0] is not like.shape[0]:
                raise Refusal("a mask of starts and ends is not supported")
            is_visible = keys < lengths
        case 2 | 3:
            is_visible = mask > 0
        case _:
            raise Refusal(f"a mask {mask.type!r} is not supported")
    lead = is_visible.shape[:-1]
    is_visible = is_visible.reshape((lead[0], 1, *(lead[1:] or (1,)), is_visible.shape[-1]))
    return is_visible.select(0, like.like(ctx.real("mask_filter_value", -10000.0)))


def _added(*parts: Operand | None) -> Operand | None:
    sum_of_parts: Operand | None = None
    for part in parts:
        if part:
            sum_of_parts = sum_of_parts + part if sum_of_parts else part
    return sum_of_parts


def _cache(ctx: NodeContext, number: int, rank: int) -> Operand | None:
    """Returns input `number`, the cache of earlier runs, of rank `rank`; None if it is absent."""
    operand = ctx.optional(number)
    return operand and operand.ranked(rank)


# ---- many heads ---------------------------------------------------------------------------------


def _multi_head_attention(ctx: NodeContext, *, unidirectional: bool, num_heads: int) -> Results:
    _refuse(ctx, 8, 9)
    if ctx.wants(3):
        raise Refusal("scores are not given")
    q, k, v = _projected(ctx, num_heads)
    past = [_cache(ctx, n, 4) for n in (6, 7)]
    before = past[0].shape[2] if past[0] else const(0)
    k, v = (x if p is None else concat([p, x], 2) for p, x in zip_equal(past, (k, v)))
    padding = ctx.optional(4)
    mask_of_padding = padding and _padding(ctx, padding, q, k.shape[2])
    mask = _added(ctx.optional(5), mask_of_padding)
    return [_attend(ctx, (q, k, v), mask=mask, causal=unidirectional, offset=before), k, v]


def _projected(ctx: NodeContext, count: int) -> list[Operand]:
    """Returns queries, keys and values, with their biases, as [batch, head, position, width].

    `count` is the number of heads.
    """
    first, key, value = ctx.input(0), ctx.optional(1), ctx.optional(2)
    packed = key if key else first
    if packed.rank == 5:  # [batch, position, head, query/key/value, width]
        parts = packed.extent(3) or 0
        if ctx.optional(3) is not None or parts != (3 if key is None else 2):
            raise Refusal(f"packed heads {packed.type!r} are not supported")
        packed_parts = [packed.element(3, n) for n in range(parts)]
        heads = [e.transpose((0, 2, 1, 3)) for e in packed_parts]
        return [_heads(first, count), *heads] if key else heads
    if not key or not value:
        raise Refusal("keys and values are missing")
    projections = []
    start = 0
    for x in (first, key, value):
        width = x.extent(-1)
        bias = ctx.optional(3)
        if bias and x.rank == 3 and width is not None:
            bias = bias.ranked(1).holds(0, start + width)
            x = x + bias.slice_axis(0, start, width)
        start += width or 0
        projections.append(x if x.rank == 4 else _heads(x, count))
    return projections


def _attention(
    ctx: NodeContext, x: Operand, weights: Operand, bias: Operand | None = None
) -> Results:
    _refuse(ctx, 6, do_rotary=0, past_present_share_buffer=0)
    packed = x @ weights
    packed = packed + bias if bias else packed
    return _attended(ctx, packed, mask=3, past=4, bias=ctx.optional(5))


def _q_attention(ctx: NodeContext) -> Results:
    """Converts attention on quantised inputs.

    The input x has one scale and zero point. The weights have one scale and zero point in all, or
    one for each column.
    """
    _refuse(ctx, do_rotary=0, past_present_share_buffer=0)
    x = (ctx.input(0), ctx.input(3), ctx.optional(6))
    packed = scaled_sums(x, (ctx.input(1), ctx.input(4), ctx.optional(7)), ctx.input(2))
    return _attended(ctx, packed, mask=5, past=8, bias=None)


def _attended(
    ctx: NodeContext, packed: Operand, *, mask: int, past: int, bias: Operand | None
) -> Results:
    """Returns attention of packed queries, keys and values, and the cache with the run's rows
    appended.

    `mask` and `past` are the positions of inputs of the node; `bias` is added to the scores.
    """
    width = packed.extent(-1)
    if width is None:
        raise Refusal("the widths of queries, keys and values are not known")
    widths = ctx.integers("qkv_hidden_sizes", (width // 3,) * 3)
    if len(widths) != 3 or sum(widths) != width:
        raise Refusal(f"widths {widths} are not those of {packed.type!r}")
    q, k, v = (_heads(p, ctx.integer("num_heads")) for p in _columns(packed.ranked(3), widths))
    cache, before = _cache(ctx, past, 5), const(0)
    if cache:
        cache, before = cache.holds(0, 2), cache.shape[3]
        old = [cache.element(0, n) for n in range(2)]
        k, v = (concat([o, n], 2) for o, n in zip_equal(old, (k, v)))
    present = stack((k, v), 0) if ctx.wants(1) else None
    mask_operand = ctx.optional(mask)
    padding = mask_operand and _padding(ctx, mask_operand, q, k.shape[2])
    causal = ctx.flag("unidirectional")
    scores = _added(bias, padding)
    return [_attend(ctx, (q, k, v), mask=scores, causal=causal, offset=before), present]


# ---- shared heads and caches --------------------------------------------------------------------


def _group_query_attention(
    ctx: NodeContext,
    *,
    do_rotary: bool,
    local_window_size: int = -1,
    num_heads: int,
    kv_num_heads: int,
) -> Results:
    _refuse(ctx, 12, 13, sliding_window_cache=0, qk_output=0, causal=1)
    _refuse(ctx, k_quant_type="NONE", v_quant_type="NONE")
    if ctx.wants(3):
        raise Refusal("scores are not given")
    q, k, v = (
        _heads(x, n)
        for x, n in zip_equal(
            _unpacked(ctx, num_heads, kv_num_heads), (num_heads, kv_num_heads, kv_num_heads)
        )
    )
    if ctx.optional(14) is not None:
        q, k = (_head_norm(ctx, x, ctx.input(n)) for x, n in ((q, 14), (k, 15)))
    cache = _Cache(ctx, k)
    if do_rotary:
        q, k = (_placed(ctx, x, cache) for x in (q, k))
    k, v = cache.present(k, 3), cache.present(v, 4)
    mask = ctx.optional(10)
    if local_window_size == 0:
        raise Refusal("a window of 0 shows no key")
    sink = _sink(ctx, num_heads)
    if cache.even and local_window_size < 0 and not sink:
        return [_attend(ctx, (q, k, v), mask=mask, causal=True, offset=cache.before), k, v]
    mask_of_keys = cache.shown(k.shape[2], local_window_size)
    if mask:
        mask_of_keys = mask_of_keys.select(mask, mask.like(float("-inf")))
    if not sink:
        return [_attend(ctx, (q, k, v), mask=mask_of_keys), k, v]
    mask_of_keys, *longer = _sunk(mask_of_keys, sink, (k, v))
    return [_attend(ctx, (q, *longer), mask=mask_of_keys), k, v]


def _sink(ctx: NodeContext, heads: int) -> Operand | None:
    """Returns the score of each head's sink, `[heads]`, or None.

    A sink is one more entry of the softmax, which belongs to no key.
    """
    operand = ctx.optional(11)
    if operand:
        return operand.ranked(1).holds(0, heads)
    smooth = ctx.integer("smooth_softmax", -1) > 0
    return filled(0, ctx.input(0).dtype).expand((const(heads),)) if smooth else None


def _sunk(mask: Operand, sink: Operand, caches: Sequence[Operand]) -> tuple[Operand, ...]:
    """Adds the sink as the last key, with a row of zeros in each cache.

    Returns the mask with the sink's scores as its last column, and the longer caches.
    """
    dtype = caches[0].dtype
    if mask.dtype is BOOL:
        lowest = filled(float("-inf"), dtype)
        mask = mask.select(filled(0, dtype), lowest)
    batch, _, length, key_count = mask.shape
    heads = sink.shape[0]
    column = sink.cast(dtype).reshape((1, heads, 1, 1))
    columns = (
        mask.expand((batch, heads, length, key_count)),
        column.expand((batch, heads, length, const(1))),
    )
    rows = (full(0, dtype, (*c.shape[:2], const(1), c.shape[3])) for c in caches)
    longer = (concat([c, row], 2) for c, row in zip_equal(caches, rows))
    return concat(list(columns), 3), *longer


def _unpacked(ctx: NodeContext, many: int, few: int) -> list[Operand]:
    """Returns queries, keys and values, [batch, position, heads * width].

    They may be packed in operand 0: `many` heads of queries, `few` of keys and `few` of values.
    """
    q, k, v = ctx.input(0), ctx.optional(1), ctx.optional(2)
    if k and v:
        return [q, k, v]
    width = q.extent(-1)
    if many < 1 or few < 1 or width is None or width % (many + 2 * few):
        raise Refusal(f"{q.type!r} does not hold {many} and twice {few} heads")
    head_width = width // (many + 2 * few)
    return _columns(q, (many * head_width, few * head_width, few * head_width))


def _head_norm(ctx: NodeContext, x: Operand, scale: Operand) -> Operand:
    return x.rms_normalization(scale, axis=3, epsilon=ctx.real("qk_norm_epsilon", 1e-6))


def _placed(ctx: NodeContext, x: Operand, cache: _Cache) -> Operand:
    """Applies the rotary embedding to queries or keys at their positions."""
    cos, sin, position_operand = ctx.input(7).ranked(2), ctx.input(8), ctx.optional(9)
    places = position_operand if position_operand else cache.places
    half = cos.extent(1)
    if half is None:
        raise Refusal("the width of the angles is not known")
    return _rotate(x, (cos, sin), places, ctx.flag("rotary_interleaved"), 2 * half)


class _Cache:
    """The positions of a run's rows in a cache of keys or values.

    If `even`, the cache holds the same number of rows, `before`, of every sequence, and the run's
    rows are appended. `places`, of shape [batch, rows of the run], has the position of each row of
    the run.
    """

    def __init__(self, ctx: NodeContext, k: Operand) -> None:
        self.ctx = ctx
        batch, _, length, _ = k.shape
        past = _cache(ctx, 3, 4)
        self.before = const(0) if past is None else past.shape[2]
        key_count = ctx.input(6).as_size("total_sequence_length")
        grown = self.before + length
        past_length = as_int(self.before)
        self.whole = bool(past_length) and key_count is not grown  # the cache has its final length
        if not self.whole and key_count is not grown:
            require(key_count, grown, "a cache grows by the rows of a run")
        self.even = not self.whole and (past_length == 0 or batch is const(1))
        if self.even:
            row = counted(length) + size_scalar(self.before)
            self.places = row.reshape((1, length)).expand((batch, length))
            return
        last = ctx.input(5).reshape((batch,)).cast(I64)
        # A sequence with fewer rows than the run begins at 0; the rows behind its end are padding.
        self.starts = (last - size_scalar(length - 1)).maximum(0)
        row = counted(length).reshape((1, length))
        self.places = self.starts.reshape((batch, 1)) + row

    def present(self, rows: Operand, number: int) -> Operand:
        """Returns the cache of input `number` with the run's rows."""
        past = _cache(self.ctx, number, 4)
        if not past:
            return rows
        if self.even:
            return concat([past, rows], 2)
        if not self.whole:
            past = concat([past, full(0, rows.dtype, rows.shape)], 2)
        return past.tensor_scatter(rows, self.starts, axis=2, mode="linear")

    def shown(self, key_count: Index, window: int) -> Operand:
        """Returns a mask that is true for the keys that a query reads: the keys up to the query's
        position.

        If `window` is at least 0, a query reads only the last `window` of these keys.
        """
        batch, length = self.places.shape
        query_positions = self.places.reshape((batch, 1, length, 1))
        keys = counted(key_count).reshape((1, 1, 1, key_count))
        is_past = keys <= query_positions
        if window < 0:
            return is_past
        window_start = query_positions - window
        return is_past & (keys > window_start)


CONVERTERS: Converters = named(
    _rotary_embedding, _multi_head_attention, _attention, _q_attention, _group_query_attention
)
