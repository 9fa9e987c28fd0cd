"""Builds matmuls and the operations around them: MLPs, routing, quantised matmuls, a decoder."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from subgraph.attention import rms_norm, rotary
from subgraph.writer import DrawnGraph, GraphWriter, ValueDraw

_GAIN = ValueDraw("uniform", 0.5, 1.5)


def matmul(m: int, k: int, n: int) -> DrawnGraph:
    """Returns the matmul of an input and a weight."""
    w = GraphWriter()
    return w.graph(w.op("MatMul", w.input("x", m, k), w.weight("weight", k, n)))


def matmul_bias_relu(m: int, k: int, n: int) -> DrawnGraph:
    w = GraphWriter()
    result = w.op("MatMul", w.input("x", m, k), w.weight("weight", k, n))
    return w.graph(w.op("Relu", w.op("Add", result, w.weight("bias", n))))


def matmul_inputs(m: int, k: int, n: int) -> DrawnGraph:
    """Returns the matmul of two inputs."""
    w = GraphWriter()
    return w.graph(w.op("MatMul", w.input("x", m, k), w.input("y", k, n)))


def matmul_transposed(m: int, k: int, n: int) -> DrawnGraph:
    """Returns the matmul of two inputs, the second transposed."""
    w = GraphWriter()
    x, y = w.input("x", m, k), w.input("y", n, k)
    return w.graph(w.op("MatMul", x, w.op("Transpose", y, perm=[1, 0])))


def mlp_gelu(batch: int, length: int) -> DrawnGraph:
    """Returns BERT's MLP: from width 768 to 3,072 and back."""
    w = GraphWriter()
    inner = w.op("Gelu", _linear(w, w.input("x", batch, length, 768), "up", 768, 3072))
    return w.graph(_linear(w, inner, "down", 3072, 768))


def mlp_swiglu(batch: int, length: int) -> DrawnGraph:
    """Returns a small Llama's MLP: from width 1,024 to twice 2,816 and back, without biases."""
    w = GraphWriter()
    return w.graph(_swiglu(w, w.input("x", batch, length, 1024)))


def mlp_recommending(rows: int, top: int) -> DrawnGraph:
    """Returns an MLP of the recommendation model DLRM, with the widths of oneDNN's benchmarks.

    The widths are 13-512-256-128 if `top` is 0. If `top` is 1, they are 479-1024-1024-512-256-1,
    and a sigmoid comes last.
    """
    w = GraphWriter()
    widths = (479, 1024, 1024, 512, 256, 1) if top else (13, 512, 256, 128)
    x = w.input("x", rows, widths[0])
    for place, (inner, outer) in enumerate(pairwise(widths)):
        x = _linear(w, x, f"layer{place}", inner, outer)
        x = w.op("Sigmoid" if outer == 1 else "Relu", x)
    return w.graph(x)


def routing(batch: int, length: int, experts: int, chosen: int) -> DrawnGraph:
    """Returns the router of a mixture of experts: a softmax over `experts`, then the `chosen`
    largest elements.

    The largest elements are scaled so that they sum to 1. The matmul's sums are exact in f32, so
    that rounding cannot change the choice of experts.
    """
    w = GraphWriter()
    x = w.input("x", batch * length, 1024, draw=ValueDraw("steps", 2.0**-3))
    gate = w.weight("gate", 1024, experts, draw=ValueDraw("steps", 2.0**-7))
    shares = w.op("Softmax", w.op("MatMul", x, gate), axis=-1)
    largest, experts_of_tokens = w.several("TopK", 2, shares, w.ints(chosen), axis=-1)
    share_sum = w.op("ReduceSum", largest, w.ints(-1), keepdims=1)
    return w.graph(w.op("Div", largest, share_sum), experts_of_tokens)


def quantised(batch: int, length: int, inner: int, outer: int) -> DrawnGraph:
    """Returns a linear layer with dynamic quantisation, as ONNX Runtime's tools write it.

    The input is quantised to u8, multiplied by an i8 weight, scaled, and added to a bias.
    """
    w = GraphWriter()
    x = w.input("x", batch * length, inner)
    codes, scale, zero = w.several("DynamicQuantizeLinear", 3, x)
    rng = np.random.default_rng(inner * outer)
    weight = w.constant(rng.integers(-127, 128, (inner, outer)), "int8")
    result = w.op("MatMulInteger", codes, weight, zero, w.constant(0, "int8"))
    factor = w.op("Mul", scale, w.constant(1 / (73 * inner**0.5)))
    result = w.op("Mul", w.op("Cast", result, to=1), factor)
    return w.graph(w.op("Add", result, w.weight("bias", outer)))


def decoder_step(batch: int, past: int) -> DrawnGraph:
    """Returns a layer of a Llama for one new token per row of the batch.

    The layer has width 1,024, 16 query heads and 4 key heads of size 64, and an MLP of width 2,816.
    The cache of keys and values has `past` rows; the results have one row more.
    """
    w = GraphWriter()
    x = w.input("x", batch, 1, 1024)
    caches = [w.input(f"past_{n}", batch, 4, past, 64) for n in "kv"]
    normal = rms_norm(w, x, w.weight("first", 1024, draw=_GAIN))
    angles = past * 10000.0 ** (-np.arange(32) / 32)
    rotation = [w.constant(np.tile(f(angles), 2)[None]) for f in (np.cos, np.sin)]
    projections = {}
    for name, heads in (("q", 16), ("k", 4), ("v", 4)):
        part = w.op("MatMul", normal, w.weight(name, 1024, heads * 64))
        part = w.op("Reshape", part, w.ints(batch, 1, heads, 64))
        part = w.op("Transpose", part, perm=[0, 2, 1, 3])
        projections[name] = part if name == "v" else rotary(w, part, 64, *rotation)
    k, v = (
        w.op("Concat", cache, projections[n], axis=2) for cache, n in zip(caches, "kv", strict=True)
    )
    wide = [_four_times(w, cache, batch, past + 1) for cache in (k, v)]
    scores = w.op("MatMul", projections["q"], w.op("Transpose", wide[0], perm=[0, 1, 3, 2]))
    shares = w.op("Softmax", w.op("Mul", scores, w.constant(0.125)), axis=-1)
    attended = w.op("Transpose", w.op("MatMul", shares, wide[1]), perm=[0, 2, 1, 3])
    attended = w.op("Reshape", attended, w.ints(batch, 1, 1024))
    x = w.op("Add", x, w.op("MatMul", attended, w.weight("o", 1024, 1024)))
    x = w.op("Add", x, _swiglu(w, rms_norm(w, x, w.weight("second", 1024, draw=_GAIN))))
    return w.graph(x, k, v)


def _four_times(w: GraphWriter, cache: str, batch: int, rows: int) -> str:
    wide = w.op("Expand", w.op("Unsqueeze", cache, w.ints(2)), w.ints(batch, 4, 4, rows, 64))
    return w.op("Reshape", wide, w.ints(batch, 16, rows, 64))


def _swiglu(w: GraphWriter, x: str) -> str:
    gate, up = (w.op("MatMul", x, w.weight(n, 1024, 2816)) for n in ("gate", "up"))
    inner = w.op("Mul", w.op("Mul", gate, w.op("Sigmoid", gate)), up)
    return w.op("MatMul", inner, w.weight("down", 2816, 1024))


def _linear(w: GraphWriter, x: str, name: str, inner: int, outer: int) -> str:
    result = w.op("MatMul", x, w.weight(name, inner, outer))
    return w.op("Add", result, w.weight(f"{name}_bias", outer))
