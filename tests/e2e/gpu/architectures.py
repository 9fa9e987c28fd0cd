"""Two architectures of `models/` in chosen sizes: a BERT of two layers, a ResNet of two blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import NodeProto, helper

from tests.lib.agreement import FLOAT, INT64, Array, model_of, value


@dataclass
class _Builder:
    """Collects nodes and constants of a graph, under numbered names, in the order of creation."""

    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(7)

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], **attributes))
        return out

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Adds random weights whose matmul or convolution keeps the scale of its operand; `scale`
        is another standard deviation."""
        fan = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        drawn = self._rng.standard_normal(shape) * (scale or 1 / np.sqrt(fan))
        return self.constant(drawn.astype(np.float32))

    def shape(self, *sizes: int) -> str:
        return self.constant(np.array(sizes, np.int64))

    def number(self, x: float) -> str:
        return self.constant(np.array(x, np.float32))

    def linear(self, x: str, n: int, m: int) -> str:
        return self.add("Add", self.add("MatMul", x, self.weight(n, m)), self.weight(m, scale=0.1))

    def norm(self, x: str, n: int) -> str:
        gain = self.constant(self._rng.uniform(0.8, 1.2, n).astype(np.float32))
        return self.add("LayerNormalization", x, gain, self.weight(n, scale=0.1), epsilon=1e-5)

    def convolution(self, x: str, n: int, m: int, size: int, stride: int = 1) -> str:
        """Adds a padded convolution and its batch norm, as exporters write them."""
        pads = [size // 2] * 4
        y = self.add("Conv", x, self.weight(m, n, size, size), pads=pads, strides=[stride] * 2)
        gain, var = (self._rng.uniform(0.8, 1.2, m).astype(np.float32) for _ in range(2))
        statistics = (self.weight(m, scale=0.1), self.weight(m, scale=0.1), self.constant(var))
        return self.add("BatchNormalization", y, self.constant(gain), *statistics)


def bert(batch: int, rows: int, width: int, heads: int, words: int = 100) -> onnx.ModelProto:
    """Returns embeddings, two encoder layers with masked attention, and a pooler."""
    b, head = _Builder(), width // heads
    word = b.add("Gather", b.weight(words, width, scale=1.0), "ids")
    kind = b.add("Gather", b.weight(2, width, scale=0.3), "kinds")
    place = b.weight(1, rows, width, scale=0.3)
    x = b.norm(b.add("Add", b.add("Add", word, kind), place), width)
    mask = b.add("Unsqueeze", b.add("Cast", "mask", to=FLOAT), b.shape(1, 2))
    bias = b.add("Mul", b.add("Sub", b.number(1), mask), b.number(-3e38))
    for _ in range(2):
        x = b.norm(b.add("Add", _attention(b, x, bias, (batch, rows, heads, head)), x), width)
        y = b.linear(x, width, 4 * width)
        bell = b.add("Add", b.add("Erf", b.add("Div", y, b.number(2**0.5))), b.number(1))
        gelu = b.add("Mul", b.add("Mul", y, bell), b.number(0.5))
        x = b.norm(b.add("Add", b.linear(gelu, 4 * width, width), x), width)
    first = b.add("Gather", x, b.constant(np.array(0, np.int64)), axis=1)
    pooled = b.add("Tanh", b.add("Gemm", first, b.weight(width, width), b.weight(width, scale=0.1)))
    return model_of(
        b.nodes,
        [value(name, INT64, [batch, rows]) for name in ("ids", "kinds", "mask")],
        [value(x, FLOAT, [batch, rows, width]), value(pooled, FLOAT, [batch, width])],
        b.constants,
    )


def _attention(b: _Builder, x: str, bias: str, sizes: tuple[int, int, int, int]) -> str:
    batch, rows, heads, head = sizes
    width = heads * head
    split = b.shape(batch, rows, heads, head)
    q, k, v = (b.add("Reshape", b.linear(x, width, width), split) for _ in range(3))
    q, v = (b.add("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
    scores = b.add("MatMul", q, b.add("Transpose", k, perm=[0, 2, 3, 1]))
    scores = b.add("Add", b.add("Mul", scores, b.number(head**-0.5)), bias)
    mixed = b.add("MatMul", b.add("Softmax", scores, axis=-1), v)
    heads_together = b.add("Transpose", mixed, perm=[0, 2, 1, 3])
    return b.linear(b.add("Reshape", heads_together, b.shape(batch, rows, width)), width, width)


def resnet(batch: int, side: int, width: int) -> onnx.ModelProto:
    """Returns a stem, a block that keeps the size, a block that halves the image, and a
    classifier."""
    b = _Builder()
    x = b.add("Relu", b.convolution("image", 3, width, 7, 2))
    x = b.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for n, m, stride in ((width, width, 1), (width, 2 * width, 2)):
        y = b.add("Relu", b.convolution(x, n, m, 3, stride))
        short = x if stride == 1 else b.convolution(x, n, m, 1, stride)
        x = b.add("Relu", b.add("Add", b.convolution(y, m, m, 3), short))
    flat = b.add("Flatten", b.add("GlobalAveragePool", x))
    y = b.add("Gemm", flat, b.weight(2 * width, 10), b.weight(10, scale=0.1))
    shape = [batch, 3, side, side]
    return model_of(
        b.nodes, [value("image", FLOAT, shape)], [value(y, FLOAT, [batch, 10])], b.constants
    )


def inputs_of(model: onnx.ModelProto, seed: int = 1) -> dict[str, Array]:
    """Returns seeded inputs: normal images, small token and type ids, and masks that are zero for a
    sixth of each row."""
    rng, arrays = np.random.default_rng(seed), {}
    for port in model.graph.input:
        shape = tuple(d.dim_value for d in port.type.tensor_type.shape.dim)
        if port.name == "image":
            arrays[port.name] = rng.standard_normal(shape).astype(np.float32)
        elif port.name == "mask":
            arrays[port.name] = np.broadcast_to(np.arange(shape[1]) < shape[1] * 5 // 6, shape) + 0
        else:
            arrays[port.name] = rng.integers(0, 2 if port.name == "kinds" else 100, shape)
    return arrays
