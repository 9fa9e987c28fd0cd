"""Small graphs of several kinds for plan tests: an MLP, attention, a convnet, an LSTM."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Value
from tcc.ir.types import F32, tensor
from tcc.ops import OPS


def add(b: GraphBuilder, op: str, *inputs: Value | None, **attrs: object) -> Value:
    """Adds a node and returns its first result."""
    row = OPS[op]
    return b.add(row, inputs, row.attrs(**attrs))[0]


def weight(b: GraphBuilder, *shape: int) -> Value:
    """Adds a constant of random numbers; constants of one graph differ."""
    rng = np.random.default_rng(len([*b.store.handles()]))
    return b.constant(rng.standard_normal(shape).astype(np.float32) / 16, "w")


def mlp(width: int = 1024) -> Graph:
    """Returns two matmuls; two ranks divide the columns of the first and the rows of the second."""
    b = GraphBuilder("mlp")
    x = b.input("x", tensor(F32, 16, 256))
    (h,) = b.add(OPS["matmul"], (x, weight(b, 256, width)), names=["h"])
    (r,) = b.add(OPS["relu"], (h,), names=["r"])
    (y,) = b.add(OPS["matmul"], (r, weight(b, width, 256)), names=["y"])
    return b.finish((y,))


def attention(heads: int = 4, tokens: int = 64, width: int = 256) -> Graph:
    """Returns an attention block with a residual sum."""
    b = GraphBuilder("attention")
    x = b.input("x", tensor(F32, tokens, width))

    def projected(perm: tuple[int, ...]) -> Value:
        y = add(b, "matmul", x, weight(b, width, width))
        parted = add(b, "reshape", y, shape=tensor(F32, tokens, heads, width // heads).shape)
        return add(b, "transpose", parted, perm=perm)

    q, k, v = (projected(perm) for perm in ((1, 0, 2), (1, 2, 0), (1, 0, 2)))
    scores = add(b, "softmax", add(b, "matmul", q, k), axis=2)
    mixed = add(b, "transpose", add(b, "matmul", scores, v), perm=(1, 0, 2))
    heads_together = add(b, "reshape", mixed, shape=x.type.shape)
    return b.finish((add(b, "add", x, add(b, "matmul", heads_together, weight(b, width, width))),))


def convnet() -> Graph:
    """Returns two convolutions and a pooled classifier."""
    b = GraphBuilder("convnet")
    x = b.input("x", tensor(F32, 1, 8, 32, 32))
    for inner in (8, 64):
        filters, units = weight(b, 64, inner, 3, 3), (1, 1)
        y = add(b, "conv", x, filters, strides=units, before=units, after=units, dilations=units,
                group=1)  # fmt: skip
        x = add(b, "relu", y)
    pooled = add(b, "reduce_mean", x, axes=(2, 3), keepdims=False)
    return b.finish((add(b, "matmul", pooled, weight(b, 64, 512)),))


def recurrent() -> Graph:
    """Returns two unrolled steps of an LSTM."""
    b = GraphBuilder("recurrent")
    steps = [b.input(f"x{n}", tensor(F32, 8, 128)) for n in range(2)]
    wx, wh = weight(b, 128, 4 * 128), weight(b, 128, 4 * 128)
    h, c = (b.input(name, tensor(F32, 8, 128)) for name in "hc")
    for x in steps:
        gates = add(b, "add", add(b, "matmul", x, wx), add(b, "matmul", h, wh))
        row, quarters = OPS["split"], tensor(F32, 128, 128, 128, 128).shape
        i, o, f, g = b.add(row, (gates,), row.attrs(axis=1, sizes=quarters))
        i, o, f = (add(b, "sigmoid", gate) for gate in (i, o, f))
        c = add(b, "add", add(b, "mul", f, c), add(b, "mul", i, add(b, "tanh", g)))
        h = add(b, "mul", o, add(b, "tanh", c))
    return b.finish((h, c))


def classifier() -> Graph:
    """Returns a classifier with many classes: their probabilities, and the best class."""
    b = GraphBuilder("classifier")
    scores = add(b, "matmul", b.input("x", tensor(F32, 4, 64)), weight(b, 64, 4096))
    best = add(b, "arg_max", scores, axis=1, keepdims=False, select_last=False)
    return b.finish((add(b, "softmax", scores, axis=1), best))


NETWORKS: dict[str, Callable[[], Graph]] = {
    "mlp": mlp, "attention": attention, "convnet": convnet, "recurrent": recurrent,
    "classifier": classifier,
}  # fmt: skip
