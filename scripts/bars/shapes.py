"""Graphs of models by their sizes alone: constants have no data, which planners do not read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tcc.ir.graph import Graph, GraphBuilder, Handle, Value
from tcc.ir.types import F32, I64, tensor
from tcc.ops import OPS


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a language model: its layers, widths, heads, and the tokens of a run."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    tokens: int


class _Builder:
    """Adds nodes to a graph."""

    def __init__(self, name: str) -> None:
        self.b = GraphBuilder(name)

    def add(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        row = OPS[op]
        return self.b.add(row, inputs, row.attrs(**attrs))[0]

    def weight(self, name: str, *sizes: int) -> Value:
        return self.b.constant_handle(Handle(name), tensor(F32, *sizes), name)

    def reshape(self, value: Value, *sizes: int) -> Value:
        return self.add("reshape", value, shape=tensor(F32, *sizes).shape)


def llama(shape: Shape) -> Graph:
    """Returns the graph of a llama: groups of heads share keys and values, and a gated MLP."""
    g = _Builder("llama")
    ids = g.b.input("ids", tensor(I64, shape.tokens))
    x = g.add("gather", g.weight("table", shape.vocabulary, shape.hidden), ids, axis=0)
    for layer in range(shape.layers):
        x = g.add("add", x, _attention(g, shape, x, f"l{layer}."))
        x = g.add("add", x, _gated(g, shape, x, f"l{layer}."))
    x = _norm(g, x, "norm", shape.hidden)
    logits = g.add("matmul", x, g.weight("head", shape.hidden, shape.vocabulary))
    return g.b.finish([logits])


def _norm(g: _Builder, x: Value, name: str, hidden: int) -> Value:
    return g.add("rms_normalization", x, g.weight(name, hidden), axis=1, epsilon=1e-5)


def _attention(g: _Builder, shape: Shape, x: Value, name: str) -> Value:
    tokens, hidden, kv = shape.tokens, shape.hidden, shape.kv_heads
    head, group = hidden // shape.heads, shape.heads // shape.kv_heads
    x = _norm(g, x, name + "norm1", hidden)
    q = g.add("matmul", x, g.weight(name + "q", hidden, hidden))
    k = g.add("matmul", x, g.weight(name + "k", hidden, kv * head))
    v = g.add("matmul", x, g.weight(name + "v", hidden, kv * head))
    q = g.add("transpose", g.reshape(q, tokens, kv, group, head), perm=(1, 2, 0, 3))
    k = g.add("transpose", g.reshape(k, tokens, kv, 1, head), perm=(1, 2, 3, 0))
    v = g.add("transpose", g.reshape(v, tokens, kv, 1, head), perm=(1, 2, 0, 3))
    scores = g.add("softmax", g.add("matmul", q, k), axis=3)
    mixed = g.add("transpose", g.add("matmul", scores, v), perm=(2, 0, 1, 3))
    return g.add("matmul", g.reshape(mixed, tokens, hidden), g.weight(name + "o", hidden, hidden))


def _gated(g: _Builder, shape: Shape, x: Value, name: str) -> Value:
    hidden, ffn = shape.hidden, shape.ffn
    x = _norm(g, x, name + "norm2", hidden)
    gate = g.add("silu", g.add("matmul", x, g.weight(name + "gate", hidden, ffn)))
    up = g.add("matmul", x, g.weight(name + "up", hidden, ffn))
    return g.add("matmul", g.add("mul", gate, up), g.weight(name + "down", ffn, hidden))


def mlp(layers: int, rows: int, width: int) -> Graph:
    """Returns the graph of matmuls and functions in turns."""
    g = _Builder("mlp")
    x = g.b.input("x", tensor(F32, rows, width))
    for layer in range(layers):
        x = g.add("relu", g.add("matmul", x, g.weight(f"w{layer}", width, width)))
    return g.b.finish([x])
