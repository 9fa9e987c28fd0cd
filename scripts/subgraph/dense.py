"""Matmuls and what surrounds them: MLPs, routing, quantised products, one step of a decoder."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from subgraph.attention import rms_norm, rotary
from subgraph.writer import Draw, Graph, Writer

_GAIN = Draw("uniform", 0.5, 1.5)


def matmul(m: int, k: int, n: int) -> Graph:
    """A run-time operand by a weight."""
    w = Writer()
    return w.graph(w.op("MatMul", w.input("x", m, k), w.weight("weight", k, n)))


def matmul_bias_relu(m: int, k: int, n: int) -> Graph:
    w = Writer()
    found = w.op("MatMul", w.input("x", m, k), w.weight("weight", k, n))
    return w.graph(w.op("Relu", w.op("Add", found, w.weight("bias", n))))


def matmul_inputs(m: int, k: int, n: int) -> Graph:
    """Both operands come with the run."""
    w = Writer()
    return w.graph(w.op("MatMul", w.input("x", m, k), w.input("y", k, n)))


def matmul_transposed(m: int, k: int, n: int) -> Graph:
    """Both operands come with the run, the second transposed."""
    w = Writer()
    x, y = w.input("x", m, k), w.input("y", n, k)
    return w.graph(w.op("MatMul", x, w.op("Transpose", y, perm=[1, 0])))


def mlp_gelu(batch: int, length: int) -> Graph:
    """BERT's: 768 to 3,072 and back."""
    w = Writer()
    inner = w.op("Gelu", _linear(w, w.input("x", batch, length, 768), "up", 768, 3072))
    return w.graph(_linear(w, inner, "down", 3072, 768))


def mlp_swiglu(batch: int, length: int) -> Graph:
    """A small Llama's: 1,024 to twice 2,816 and back, without biases."""
    w = Writer()
    return w.graph(_swiglu(w, w.input("x", batch, length, 1024)))


def mlp_recommending(rows: int, top: int) -> Graph:
    """oneDNN's two MLPs, those of DLRM: 13-512-256-128 and, with `top` 1, 479-1024-1024-512-256-1
    with a sigmoid."""
    w = Writer()
    widths = (479, 1024, 1024, 512, 256, 1) if top else (13, 512, 256, 128)
    x = w.input("x", rows, widths[0])
    for place, (inner, outer) in enumerate(pairwise(widths)):
        x = _linear(w, x, f"layer{place}", inner, outer)
        x = w.op("Sigmoid" if outer == 1 else "Relu", x)
    return w.graph(x)


def routing(batch: int, length: int, experts: int, chosen: int) -> Graph:
    """Router of a mixture of experts: softmax, the largest `chosen`, their shares of 1.

    Its sums are exact, so that rounding decides no choice.
    """
    w = Writer()
    x = w.input("x", batch * length, 1024, draw=Draw("steps", 2.0**-3))
    gate = w.weight("gate", 1024, experts, draw=Draw("steps", 2.0**-7))
    shares = w.op("Softmax", w.op("MatMul", x, gate), axis=-1)
    largest, which = w.several("TopK", 2, shares, w.ints(chosen), axis=-1)
    total = w.op("ReduceSum", largest, w.ints(-1), keepdims=1)
    return w.graph(w.op("Div", largest, total), which)


def quantised(batch: int, length: int, inner: int, outer: int) -> Graph:
    """Dynamic quantisation as ONNX Runtime's tools write it: u8 by i8, scales, bias."""
    w = Writer()
    x = w.input("x", batch * length, inner)
    codes, scale, zero = w.several("DynamicQuantizeLinear", 3, x)
    rng = np.random.default_rng(inner * outer)
    weight = w.constant(rng.integers(-127, 128, (inner, outer)), "int8")
    found = w.op("MatMulInteger", codes, weight, zero, w.constant(0, "int8"))
    both = w.op("Mul", scale, w.constant(1 / (73 * inner**0.5)))
    found = w.op("Mul", w.op("Cast", found, to=1), both)
    return w.graph(w.op("Add", found, w.weight("bias", outer)))


def decoder_step(batch: int, past: int) -> Graph:
    """One layer of a Llama of width 1,024 (16 heads of 64 over 4 of keys, 2,816 inside) for one
    new token a row: norms, projections, rotary embedding, a cache that grows, SwiGLU."""
    w = Writer()
    x = w.input("x", batch, 1, 1024)
    held = [w.input(f"past_{n}", batch, 4, past, 64) for n in "kv"]
    normal = rms_norm(w, x, w.weight("first", 1024, draw=_GAIN))
    angles = past * 10000.0 ** (-np.arange(32) / 32)
    turns = [w.constant(np.tile(f(angles), 2)[None]) for f in (np.cos, np.sin)]
    made = {}
    for name, heads in (("q", 16), ("k", 4), ("v", 4)):
        part = w.op("MatMul", normal, w.weight(name, 1024, heads * 64))
        part = w.op("Reshape", part, w.ints(batch, 1, heads, 64))
        part = w.op("Transpose", part, perm=[0, 2, 1, 3])
        made[name] = part if name == "v" else rotary(w, part, 64, *turns)
    k, v = (w.op("Concat", old, made[n], axis=2) for old, n in zip(held, "kv", strict=True))
    wide = [_four_times(w, cache, batch, past + 1) for cache in (k, v)]
    scores = w.op("MatMul", made["q"], w.op("Transpose", wide[0], perm=[0, 1, 3, 2]))
    shares = w.op("Softmax", w.op("Mul", scores, w.constant(0.125)), axis=-1)
    found = w.op("Transpose", w.op("MatMul", shares, wide[1]), perm=[0, 2, 1, 3])
    found = w.op("Reshape", found, w.ints(batch, 1, 1024))
    x = w.op("Add", x, w.op("MatMul", found, w.weight("o", 1024, 1024)))
    x = w.op("Add", x, _swiglu(w, rms_norm(w, x, w.weight("second", 1024, draw=_GAIN))))
    return w.graph(x, k, v)


def _four_times(w: Writer, cache: str, batch: int, rows: int) -> str:
    wide = w.op("Expand", w.op("Unsqueeze", cache, w.ints(2)), w.ints(batch, 4, 4, rows, 64))
    return w.op("Reshape", wide, w.ints(batch, 16, rows, 64))


def _swiglu(w: Writer, x: str) -> str:
    gate, up = (w.op("MatMul", x, w.weight(n, 1024, 2816)) for n in ("gate", "up"))
    inner = w.op("Mul", w.op("Mul", gate, w.op("Sigmoid", gate)), up)
    return w.op("MatMul", inner, w.weight("down", 2816, 1024))


def _linear(w: Writer, x: str, name: str, inner: int, outer: int) -> str:
    found = w.op("MatMul", x, w.weight(name, inner, outer))
    return w.op("Add", found, w.weight(f"{name}_bias", outer))
