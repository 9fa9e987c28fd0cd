"""Builds PowerFusion's list at its sizes: the operations between matmuls; and tanh alone."""

from __future__ import annotations

from subgraph.writer import DrawnGraph, GraphWriter


def tanh(count: int) -> DrawnGraph:
    w = GraphWriter()
    return w.graph(w.op("Tanh", w.input("x", count)))


def gelu(length: int, width: int) -> DrawnGraph:
    w = GraphWriter()
    return w.graph(w.op("Gelu", w.input("x", 1, length, width)))


def relu_add(channels: int, size: int) -> DrawnGraph:
    """Returns SAR-DRN's relu(x) + y."""
    w = GraphWriter()
    x, y = (w.input(n, 1, channels, size, size) for n in "xy")
    return w.graph(w.op("Add", w.op("Relu", x), y))


def relu_sub(channels: int, size: int) -> DrawnGraph:
    """Returns SAR-DRN's last operation: x - relu(y)."""
    w = GraphWriter()
    x, y = (w.input(n, 1, channels, size, size) for n in "xy")
    return w.graph(w.op("Sub", x, w.op("Relu", y)))


def bias_add(size: int, channels: int) -> DrawnGraph:
    """Returns ShuffleNet's bias, added to a tensor whose channels come last."""
    w = GraphWriter()
    return w.graph(w.op("Add", w.input("x", size * size, channels), w.weight("bias", channels)))


def channel_shuffle(size: int, channels: int) -> DrawnGraph:
    """Returns ShuffleNet's shuffle: swaps the last two axes of [pixels, channels, 2]."""
    w = GraphWriter()
    return w.graph(w.op("Transpose", w.input("x", size * size, channels, 2), perm=[0, 2, 1]))


def row_means(rows: int, width: int) -> DrawnGraph:
    w = GraphWriter()
    return w.graph(w.op("ReduceMean", w.input("x", rows, width), w.ints(1), keepdims=0))


def transpose_relu(a: int, b: int, c: int, d: int) -> DrawnGraph:
    """Returns relu of the input with its four axes reversed."""
    w = GraphWriter()
    transposed = w.op("Transpose", w.input("x", a, b, c, d), perm=[3, 2, 1, 0])
    return w.graph(w.op("Relu", transposed))
