"""Builds attention as exporters write it: a node for each operation; the caller has split the
heads.

Queries, keys and values are inputs of a run, of shape [batch, length, heads, size].
"""

from __future__ import annotations

import numpy as np
from subgraph.writer import DrawnGraph, GraphWriter, ValueDraw

_LOWEST = float(np.finfo(np.float32).min)


def causal(batch: int, length: int) -> DrawnGraph:
    """Returns GPT-2's attention: 12 heads of size 64, with a causal mask."""
    w = GraphWriter()
    q, k, v = _heads(w, batch, length, 12, 64)
    return w.graph(_attend(w, q, k, v, 64**-0.5, mask=_causal_mask(w, length)))


def sliding_window(batch: int, length: int) -> DrawnGraph:
    """Returns Mistral's attention: 8 heads of size 128, a causal mask, a window of 256
    positions."""
    w = GraphWriter()
    q, k, v = _heads(w, batch, length, 8, 128)
    return w.graph(_attend(w, q, k, v, 128**-0.5, mask=_causal_mask(w, length, 256)))


def alibi(batch: int, length: int) -> DrawnGraph:
    """Returns BLOOM's attention: 16 heads of size 64, causal.

    Each head adds a bias to its scores: a slope of the head times the distance of the positions.
    """
    w = GraphWriter()
    q, k, v = _heads(w, batch, length, 16, 64)
    slopes = 2.0 ** (-8.0 * np.arange(1, 17) / 16)
    bias = w.constant(slopes[:, None, None] * np.arange(length)[None, None])
    return w.graph(_attend(w, q, k, v, 64**-0.5, bias=bias, mask=_causal_mask(w, length)))


def normalised_keys(batch: int, length: int) -> DrawnGraph:
    """Returns Swin v2's attention: 8 heads of size 32, queries and keys normalised to length 1.

    Each head has a scale, and each pair of positions a bias.
    """
    w = GraphWriter()
    q, k, v = _heads(w, batch, length, 8, 32)
    scale = w.weight("scale", 8, 1, 1, draw=ValueDraw("uniform", 5, 20))
    bias = w.weight("bias", 8, length, length, draw=ValueDraw("normal", 1.0))
    scores = w.op(
        "MatMul", _normalised(w, q), w.op("Transpose", _normalised(w, k), perm=[0, 1, 3, 2])
    )
    scores = w.op("Add", w.op("Mul", scores, scale), bias)
    return w.graph(_weighted_values(w, scores, v))


def tanh_cap(batch: int, length: int) -> DrawnGraph:
    """Returns Gemma 2's attention: 8 query heads and 4 key heads of size 256, with a causal mask.

    Scores are capped at 50 by tanh.
    """
    w = GraphWriter()
    q, k, v = _heads(w, batch, length, 8, 256, 4)
    k, v = (_repeat_heads(w, x, 2, (batch, 4, length, 256)) for x in (k, v))
    return w.graph(_attend(w, q, k, v, 256**-0.5, cap=50.0, mask=_causal_mask(w, length)))


def qk_norm_gemma3(batch: int, length: int) -> DrawnGraph:
    """Returns Gemma 3's attention (1B): 4 query heads, 1 key head of size 256, a window of 512."""
    return _qk_norm(batch, length, 4, 1, 256, 512)


def qk_norm_qwen3(batch: int, length: int) -> DrawnGraph:
    """Returns Qwen 3's attention (0.6B): 16 query heads and 8 key heads of size 128."""
    return _qk_norm(batch, length, 16, 8, 128, None)


def _qk_norm(
    batch: int, length: int, heads: int, kv_heads: int, size: int, window: int | None
) -> DrawnGraph:
    """Returns attention with a causal mask, whose queries and keys first pass RMSNorm over a head
    and then rotary embedding.

    `window` limits the positions that a row attends to (None: all positions before it).
    """
    w = GraphWriter()
    shapes = {"q": heads, "k": kv_heads, "v": kv_heads}
    q, k, v = (w.input(n, batch, length, count, size) for n, count in shapes.items())
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(size // 2) / (size // 2))
    both_halves = np.concatenate([angles, angles], 1)
    rotation = w.constant(np.cos(both_halves)), w.constant(np.sin(both_halves))
    gains = [w.weight(f"{n}_norm", size, draw=ValueDraw("uniform", 0.5, 1.5)) for n in "qk"]
    q, k = (
        rotary(w, w.op("Transpose", rms_norm(w, x, gain), perm=[0, 2, 1, 3]), size, *rotation)
        for x, gain in zip((q, k), gains, strict=True)
    )
    v = w.op("Transpose", v, perm=[0, 2, 1, 3])
    k, v = (_repeat_heads(w, x, heads // kv_heads, (batch, kv_heads, length, size)) for x in (k, v))
    return w.graph(_attend(w, q, k, v, size**-0.5, mask=_causal_mask(w, length, window)))


def mha(batch: int, length: int) -> DrawnGraph:
    """Returns oneDNN's attention: 16 heads of size 64; scores are divided by a constant.

    A mask that is an input of the run is added to the scores.
    """
    w = GraphWriter()
    q, k, v = (w.input(n, batch, 16, length, 64) for n in "qkv")
    mask = w.input("mask", batch, 1, 1, length, draw=ValueDraw("uniform", -4, 0))
    scores = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = w.op("Add", w.op("Div", scores, w.constant(8.0)), mask)
    return w.graph(_weighted_values(w, scores, v))


def self_attention(batch: int, length: int) -> DrawnGraph:
    """Returns Whisper tiny's attention: width 384, 6 heads of size 64, projections before and
    after."""
    w = GraphWriter()
    x = w.input("x", batch, length, 384)
    parts = []
    for name in "qkv":
        part = w.op("MatMul", x, w.weight(name, 384, 384))
        if name != "k":
            part = w.op("Add", part, w.weight(f"{name}_bias", 384))
        part = w.op("Reshape", part, w.ints(batch, length, 6, 64))
        parts.append(w.op("Transpose", part, perm=[0, 2, 1, 3]))
    q, k, v = parts
    result = _attend(w, q, k, v, 64**-0.5)
    result = w.op("MatMul", result, w.weight("o", 384, 384))
    return w.graph(w.op("Add", result, w.weight("o_bias", 384)))


def decode_appending(batch: int, length: int) -> DrawnGraph:
    """Returns Llama 3's attention for one new token: 32 query heads and 8 key heads of size 128.

    A cache of `length` - 1 rows is an input; a cache of `length` rows is a result.
    """
    w = GraphWriter()
    q, *new_rows = (
        w.input(n, batch, heads, 1, 128) for n, heads in (("q", 32), ("k", 8), ("v", 8))
    )
    past = [w.input(f"past_{n}", batch, 8, length - 1, 128) for n in "kv"]
    k, v = (w.op("Concat", cache, row, axis=2) for cache, row in zip(past, new_rows, strict=True))
    return w.graph(_decoded(w, q, k, v, batch, length), k, v)


def decode_reading(batch: int, length: int) -> DrawnGraph:
    """Returns the attention of one new token over a cache of `length` rows, which is an input."""
    w = GraphWriter()
    q = w.input("q", batch, 32, 1, 128)
    k, v = (w.input(n, batch, 8, length, 128) for n in "kv")
    return w.graph(_decoded(w, q, k, v, batch, length))


def scores(batch: int, length: int) -> DrawnGraph:
    """Returns q @ k^T of two inputs, with 12 heads of size 64; the transpose is a node."""
    w = GraphWriter()
    q, k = (w.input(n, batch, 12, length, 64) for n in "qk")
    return w.graph(w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2])))


def scores_stored(batch: int, length: int) -> DrawnGraph:
    """Returns q @ k of two inputs, with 12 heads; k has the shape [batch, 12, 64, length]."""
    w = GraphWriter()
    q, k = w.input("q", batch, 12, length, 64), w.input("k", batch, 12, 64, length)
    return w.graph(w.op("MatMul", q, k))


def longformer(batch: int, length: int) -> DrawnGraph:
    """Returns FreeTensor's Longformer: 8 heads of size 64, with a window of 32 on both sides.

    In 2 of the heads, the positions of a window are 4 apart. Keys and values of the window are
    gathered, as in PyTorch.
    """
    w = GraphWriter()
    parts = [
        w.several("Split", 2, w.input(n, batch, 8, length, 64), w.ints(6, 2), axis=1) for n in "qkv"
    ]
    bands = [
        _band(w, *(part[n] for part in parts), length=length, step=step)
        for n, step in ((0, 1), (1, 4))
    ]
    return w.graph(w.op("Concat", *bands, axis=1))


def _band(w: GraphWriter, q: str, k: str, v: str, *, length: int, step: int) -> str:
    places = np.arange(length)[:, None] + step * np.arange(-32, 33)[None]
    inside = w.constant((places >= 0) & (places < length), "bool")
    rows = w.constant(places.clip(0, length - 1), "int64")
    # Both have the shape [batch, heads, length, 65 (positions of a window), 64 (size of a head)].
    window_k, window_v = (w.op("Gather", x, rows, axis=2) for x in (k, v))
    q = w.op("Unsqueeze", q, w.ints(3))
    scores = w.op("MatMul", q, w.op("Transpose", window_k, perm=[0, 1, 2, 4, 3]))
    scores = w.op("Squeeze", w.op("Mul", scores, w.constant(64**-0.5)), w.ints(3))
    scores = w.op("Where", inside, scores, w.constant(_LOWEST))
    shares = w.op("Unsqueeze", w.op("Softmax", scores, axis=-1), w.ints(3))
    return w.op("Squeeze", w.op("MatMul", shares, window_v), w.ints(3))


def rms_norm(w: GraphWriter, x: str, gain: str) -> str:
    """Adds RMSNorm over the last axis, as exporters write it."""
    mean = w.op("ReduceMean", w.op("Pow", x, w.constant(2.0)), w.ints(-1), keepdims=1)
    root = w.op("Sqrt", w.op("Add", mean, w.constant(1e-6)))
    return w.op("Mul", w.op("Mul", x, w.op("Reciprocal", root)), gain)


def rotary(w: GraphWriter, x: str, size: int, cos: str, sin: str) -> str:
    """Adds rotary embedding: x cos + (-x2, x1) sin, with the halves x1, x2 of x's last axis.

    `size` is the size of that axis.
    """
    half, last = w.ints(size // 2), w.ints(-1)
    first = w.op("Slice", x, w.ints(0), half, last)
    second = w.op("Slice", x, half, w.ints(size), last)
    rotated = w.op("Concat", w.op("Neg", second), first, axis=-1)
    return w.op("Add", w.op("Mul", x, cos), w.op("Mul", rotated, sin))


def _heads(
    w: GraphWriter, batch: int, length: int, heads: int, size: int, kv_heads: int | None = None
) -> list[str]:
    """Adds inputs q, k, v of shape [batch, length, heads, size], and their transposes.

    Returns the transposes, of shape [batch, heads, length, size]. k and v have `kv_heads` heads
    (None: `heads`).
    """
    counts = {"q": heads, "k": kv_heads or heads, "v": kv_heads or heads}
    inputs = [w.input(name, batch, length, count, size) for name, count in counts.items()]
    return [w.op("Transpose", name, perm=[0, 2, 1, 3]) for name in inputs]


def _repeat_heads(w: GraphWriter, x: str, times: int, shape: tuple[int, ...]) -> str:
    """Adds nodes that repeat every head of x `times` times; copies of a head are adjacent.

    `shape` is the shape of x.
    """
    batch, heads, length, size = shape
    wide = w.op("Unsqueeze", x, w.ints(2))
    wide = w.op("Expand", wide, w.ints(batch, heads, times, length, size))
    return w.op("Reshape", wide, w.ints(batch, heads * times, length, size))


def _normalised(w: GraphWriter, x: str) -> str:
    """Adds x divided by its Euclidean length, as torch's normalize writes it."""
    size = w.op("ReduceL2", x, w.ints(-1), keepdims=1)
    return w.op("Div", x, w.op("Clip", size, w.constant(1e-12)))


def _causal_mask(w: GraphWriter, length: int, window: int | None = None) -> str:
    """Adds a mask bool[length, length]; mask[row, column] is true for columns up to `row`.

    With `window`, it is true only for the last `window` of these columns.
    """
    row, column = (w.constant(np.arange(length).reshape(s), "int64") for s in ((-1, 1), (1, -1)))
    mask = w.op("LessOrEqual", column, row)
    if window is None:
        return mask
    recent = w.op("Greater", column, w.op("Sub", row, w.constant(window, "int64")))
    return w.op("And", mask, recent)


def _attend(
    w: GraphWriter,
    q: str,
    k: str,
    v: str,
    scale: float,
    *,
    cap: float | None = None,
    bias: str | None = None,
    mask: str | None = None,
) -> str:
    """Adds softmax(scores) @ v with scores = scale * q @ k^T.

    In this order, the scores are capped by cap * tanh(scores / cap), `bias` is added, and scores
    are replaced by the lowest float where `mask` is false. None leaves a step out.
    """
    scores = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = w.op("Mul", scores, w.constant(scale))
    if cap is not None:
        scores = w.op("Tanh", w.op("Div", scores, w.constant(cap)))
        scores = w.op("Mul", scores, w.constant(cap))
    if bias is not None:
        scores = w.op("Add", scores, bias)
    if mask is not None:
        scores = w.op("Where", mask, scores, w.constant(_LOWEST))
    return _weighted_values(w, scores, v)


def _weighted_values(w: GraphWriter, scores: str, v: str) -> str:
    """Adds softmax(scores) @ v, with the heads concatenated: [batch, length, heads * size]."""
    result = w.op("MatMul", w.op("Softmax", scores, axis=-1), v)
    result = w.op("Transpose", result, perm=[0, 2, 1, 3])
    return w.op("Reshape", result, w.ints(0, 0, -1))


def _decoded(w: GraphWriter, q: str, k: str, v: str, batch: int, length: int) -> str:
    shape = (batch, 8, length, 128)
    return _attend(w, q, _repeat_heads(w, k, 4, shape), _repeat_heads(w, v, 4, shape), 128**-0.5)
