"""Builds norms and softmax, forward and backward; a row is the last axis of [batch, length,
width]."""

from __future__ import annotations

from subgraph.attention import rms_norm
from subgraph.writer import DrawnGraph, GraphWriter, ValueDraw

_GAIN = ValueDraw("uniform", 0.5, 1.5)
_LN, _RMS = 768, 2048  # the widths of BERT and of Llama 3.2 1B


def layer_norm(batch: int, length: int) -> DrawnGraph:
    w = GraphWriter()
    return w.graph(_layer_norm(w, w.input("x", batch, length, _LN)))


def layer_norm_residual(batch: int, length: int) -> DrawnGraph:
    """Returns LayerNorm of a sum; the sum is a result too, because the next block adds to it."""
    w = GraphWriter()
    x, y = (w.input(n, batch, length, _LN) for n in "xy")
    summed = w.op("Add", x, y)
    return w.graph(summed, _layer_norm(w, summed))


def rms(batch: int, length: int) -> DrawnGraph:
    w = GraphWriter()
    x = w.input("x", batch, length, _RMS)
    return w.graph(rms_norm(w, x, w.weight("gain", _RMS, draw=_GAIN)))


def rms_residual(batch: int, length: int) -> DrawnGraph:
    w = GraphWriter()
    x, y = (w.input(n, batch, length, _RMS) for n in "xy")
    summed = w.op("Add", x, y)
    return w.graph(summed, rms_norm(w, summed, w.weight("gain", _RMS, draw=_GAIN)))


def layer_norm_backward(batch: int, length: int) -> DrawnGraph:
    """Returns the gradients of x, gain and bias, given the gradient of the result (dy).

    The graph computes mean and deviation again. With n = (x - mean) / deviation and g = dy * gain,
    dx = (g - mean(g) - n * mean(g * n)) / deviation.
    """
    w = GraphWriter()
    x, dy = w.input("x", batch, length, _LN), w.input("dy", batch, length, _LN)
    gain = w.weight("gain", _LN, draw=_GAIN)
    centred = w.op("Sub", x, _mean(w, x))
    variance = _mean(w, w.op("Mul", centred, centred))
    inverse = _inverse_root(w, variance, 1e-5)
    normal = w.op("Mul", centred, inverse)
    scaled_gradient = w.op("Mul", dy, gain)
    projection = w.op("Mul", normal, _mean(w, w.op("Mul", scaled_gradient, normal)))
    dx = w.op(
        "Mul",
        w.op("Sub", w.op("Sub", scaled_gradient, _mean(w, scaled_gradient)), projection),
        inverse,
    )
    dgain = w.op("ReduceSum", w.op("Mul", dy, normal), w.ints(0, 1), keepdims=0)
    return w.graph(dx, dgain, w.op("ReduceSum", dy, w.ints(0, 1), keepdims=0))


def rms_backward(batch: int, length: int) -> DrawnGraph:
    """Returns the gradients of x and gain of RMSNorm, given the gradient of the result (dy).

    With r = 1 / root(mean(x^2)) and g = dy * gain, dx = r * g - x * r^3 * mean(g * x).
    """
    w = GraphWriter()
    x, dy = w.input("x", batch, length, _RMS), w.input("dy", batch, length, _RMS)
    gain = w.weight("gain", _RMS, draw=_GAIN)
    inverse = _inverse_root(w, _mean(w, w.op("Mul", x, x)), 1e-6)
    normal = w.op("Mul", x, inverse)
    scaled_gradient = w.op("Mul", dy, gain)
    projection = w.op("Mul", normal, _mean(w, w.op("Mul", scaled_gradient, normal)))
    dx = w.op("Mul", w.op("Sub", scaled_gradient, projection), inverse)
    return w.graph(dx, w.op("ReduceSum", w.op("Mul", dy, normal), w.ints(0, 1), keepdims=0))


def batch_norm_training(batch: int, channels: int, size: int) -> DrawnGraph:
    """Returns ONNX's BatchNormalization in training mode: the result, running mean and variance."""
    w = GraphWriter()
    x = w.input("x", batch, channels, size, size)
    draws = {"gain": _GAIN, "bias": ValueDraw(), "mean": ValueDraw(), "variance": _GAIN}
    statistics = [w.weight(n, channels, draw=draw) for n, draw in draws.items()]
    results = w.several("BatchNormalization", 3, x, *statistics, training_mode=1, momentum=0.9)
    return w.graph(*results)


def batch_norm_written_out(batch: int, channels: int, size: int) -> DrawnGraph:
    """Returns batch norm in primitive operators: means over all axes but the channels.

    Mean and variance are results too.
    """
    w = GraphWriter()
    x = w.input("x", batch, channels, size, size)
    gain = w.weight("gain", channels, 1, 1, draw=_GAIN)
    bias = w.weight("bias", channels, 1, 1, draw=ValueDraw())
    mean = w.op("ReduceMean", x, w.ints(0, 2, 3), keepdims=1)
    centred = w.op("Sub", x, mean)
    variance = w.op("ReduceMean", w.op("Mul", centred, centred), w.ints(0, 2, 3), keepdims=1)
    normal = w.op("Mul", centred, _inverse_root(w, variance, 1e-5))
    return w.graph(w.op("Add", w.op("Mul", normal, gain), bias), mean, variance)


def softmax(rows: int, width: int) -> DrawnGraph:
    w = GraphWriter()
    return w.graph(
        w.op("Softmax", w.input("x", rows, width, draw=ValueDraw("normal", 3.0)), axis=-1)
    )


def log_softmax(rows: int, width: int) -> DrawnGraph:
    w = GraphWriter()
    return w.graph(
        w.op("LogSoftmax", w.input("x", rows, width, draw=ValueDraw("normal", 3.0)), axis=-1)
    )


def softmax_heads(heads: int, length: int) -> DrawnGraph:
    """Returns a softmax over attention scores [1, heads, length, length].

    The list has it at the sizes of ViT (197) and BERT (512).
    """
    w = GraphWriter()
    return w.graph(w.op("Softmax", w.input("x", 1, heads, length, length), axis=-1))


def _layer_norm(w: GraphWriter, x: str) -> str:
    gain, bias = w.weight("gain", _LN, draw=_GAIN), w.weight("bias", _LN)
    return w.op("LayerNormalization", x, gain, bias, axis=-1, epsilon=1e-5)


def _mean(w: GraphWriter, x: str) -> str:
    return w.op("ReduceMean", x, w.ints(-1), keepdims=1)


def _inverse_root(w: GraphWriter, x: str, epsilon: float) -> str:
    return w.op("Reciprocal", w.op("Sqrt", w.op("Add", x, w.constant(epsilon))))
