"""Builds chains of convolutions with batch norms; images are [batch, channels, size, size]."""

from __future__ import annotations

from subgraph.writer import DrawnGraph, GraphWriter, ValueDraw

_NEAR_ONE = ValueDraw("uniform", 0.5, 1.5)
_SMALL = ValueDraw("normal", 0.1)


class _Chain:
    """A chain of layers; `x` is the last result, which has `channels` channels."""

    def __init__(self, batch: int, channels: int, size: int) -> None:
        self.w = GraphWriter()
        self.channels = channels
        self.x = self.w.input("x", batch, channels, size, size)
        self._layers = 0

    def conv(self, outer: int, kernel: int, stride: int = 1, group: int = 1) -> None:
        """Adds a convolution with `outer` output channels and padding `kernel` // 2.

        Its random weights are scaled so that the result has about the standard deviation of `x`.
        """
        inner = self.channels // group
        draw = ValueDraw("normal", (2 / (inner * kernel**2)) ** 0.5)
        name = f"filter{self._layers}"
        weight = self.w.weight(name, outer, inner, kernel, kernel, draw=draw)
        pads = [kernel // 2] * 4
        self.x = self.w.op("Conv", self.x, weight, pads=pads, strides=[stride] * 2, group=group)
        self.channels = outer
        self._layers += 1

    def norm(self) -> None:
        draws = {"gain": _NEAR_ONE, "bias": _SMALL, "mean": _SMALL, "variance": _NEAR_ONE}
        names = (f"{n}{self._layers}" for n in draws)
        statistics = [
            self.w.weight(n, self.channels, draw=draw)
            for n, draw in zip(names, draws.values(), strict=True)
        ]
        self.x = self.w.op("BatchNormalization", self.x, *statistics)

    def relu(self, upper: float | None = None) -> None:
        if upper is None:
            self.x = self.w.op("Relu", self.x)
        else:
            self.x = self.w.op("Clip", self.x, self.w.constant(0.0), self.w.constant(upper))

    def conv_norm_relu(self, outer: int, kernel: int, stride: int = 1, group: int = 1) -> None:
        self.conv(outer, kernel, stride, group)
        self.norm()
        self.relu()

    def squeeze(self, inner: int) -> None:
        """Adds a squeeze-and-excitation block with SiLU between its layers.

        Its first layer has `inner` channels.
        """
        w, before, channels = self.w, self.x, self.channels
        self.x = w.op("GlobalAveragePool", before)
        self.conv(inner, 1)
        self.x = w.op("Mul", self.x, w.op("Sigmoid", self.x))
        self.conv(channels, 1)
        self.x = w.op("Mul", before, w.op("Sigmoid", self.x))

    def add(self, before: str) -> None:
        self.x = self.w.op("Add", self.x, before)

    @property
    def graph(self) -> DrawnGraph:
        return self.w.graph(self.x)


def conv_norm_relu(batch: int, channels: int, size: int) -> DrawnGraph:
    c = _Chain(batch, channels, size)
    c.conv_norm_relu(channels, 3)
    return c.graph


def residual(batch: int, channels: int, size: int) -> DrawnGraph:
    """Returns ResNet's basic block: two 3x3 convolutions and a residual connection."""
    c = _Chain(batch, channels, size)
    before = c.x
    c.conv_norm_relu(channels, 3)
    c.conv(channels, 3)
    c.norm()
    c.add(before)
    c.relu()
    return c.graph


def bottleneck(batch: int, channels: int, size: int) -> DrawnGraph:
    """Returns ResNet 50's block: convolutions 1x1, 3x3, 1x1 and a residual connection."""
    c = _Chain(batch, channels, size)
    before = c.x
    c.conv_norm_relu(channels // 4, 1)
    c.conv_norm_relu(channels // 4, 3)
    c.conv(channels, 1)
    c.norm()
    c.add(before)
    c.relu()
    return c.graph


def depthwise_separable(batch: int, channels: int, size: int, stride: int) -> DrawnGraph:
    """Returns MobileNet's block: a depthwise and a 1x1 convolution, to twice the channels."""
    c = _Chain(batch, channels, size)
    c.conv_norm_relu(channels, 3, stride, channels)
    c.conv_norm_relu(2 * channels, 1)
    return c.graph


def inverted_residual(batch: int, channels: int, size: int) -> DrawnGraph:
    """Returns MobileNetV2's block, whose inner part has six times as many channels."""
    c = _Chain(batch, channels, size)
    before, wide = c.x, 6 * channels
    c.conv(wide, 1)
    c.norm()
    c.relu(6.0)
    c.conv(wide, 3, group=wide)
    c.norm()
    c.relu(6.0)
    c.conv(channels, 1)
    c.norm()
    c.add(before)
    return c.graph


def inverted_residual_squeezed(batch: int, channels: int, size: int) -> DrawnGraph:
    """Returns EfficientNet's block: SiLU, a window of 5, squeeze and excitation."""
    c = _Chain(batch, channels, size)
    before, wide = c.x, 6 * channels
    for kernel, group in ((1, 1), (5, wide)):
        c.conv(wide, kernel, group=group)
        c.norm()
        c.x = c.w.op("Mul", c.x, c.w.op("Sigmoid", c.x))
    c.squeeze(channels // 4)
    c.conv(channels, 1)
    c.norm()
    c.add(before)
    return c.graph
