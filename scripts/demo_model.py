"""Writes MobileNetV2 (1x3x224x224, seeded weights) as ONNX: python scripts/demo_model.py OUT.onnx

It needs no framework. Batch norms stay nodes, as in an export in training mode. Weights are scaled
by fan-in, so that signals neither vanish nor explode.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# (expansion, channels, repeats, stride), as in table 2 of the MobileNetV2 paper
BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
OPSET = 17


class Builder:
    """Appends layers; methods take and return the names of values."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, values: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def conv(
        self, x: str, fan: int, channels: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> str:
        """Appends a convolution and a batch norm; `fan` is the number of input channels."""
        at = f"layer_{len(self.nodes)}"
        shape = (channels, fan // groups, kernel, kernel)
        scale = np.sqrt(2.0 / (shape[1] * kernel * kernel))
        weight = self.weight(f"{at}.weight", scale * self.rng.standard_normal(shape))
        pads = [kernel // 2] * 4
        x = self.node(
            "Conv", [x, weight], strides=[stride] * 2, pads=pads, group=groups,
            kernel_shape=[kernel] * 2,
        )  # fmt: skip
        parts = {
            "gamma": self.rng.uniform(0.8, 1.2, channels),
            "beta": self.rng.uniform(-0.2, 0.2, channels),
            "mean": self.rng.uniform(-0.1, 0.1, channels),
            "variance": self.rng.uniform(0.8, 1.2, channels),
        }
        names = [self.weight(f"{at}.{name}", values) for name, values in parts.items()]
        return self.node("BatchNormalization", [x, *names])

    def relu6(self, x: str) -> str:
        return self.node("Clip", [x, "zero", "six"])

    def block(self, x: str, fan: int, expansion: int, channels: int, stride: int) -> str:
        """Appends a block: a 1x1 convolution to `fan` * `expansion` channels, a depthwise
        convolution, and a 1x1 convolution to `channels`.

        The input has `fan` channels. The result is added to it if both have the same shape.
        """
        inner = fan * expansion
        y = self.relu6(self.conv(x, fan, inner, 1)) if expansion != 1 else x
        y = self.relu6(self.conv(y, inner, inner, 3, stride, groups=inner))
        y = self.conv(y, inner, channels, 1)
        return self.node("Add", [x, y]) if stride == 1 and fan == channels else y


def mobilenet_v2(seed: int = 0) -> onnx.ModelProto:
    """Returns the model: input `image` f32[1,3,224,224], output `probabilities` f32[1,1000]."""
    b = Builder(seed)
    b.weight("zero", np.array(0.0))
    b.weight("six", np.array(6.0))
    x, fan = b.relu6(b.conv("image", 3, 32, 3, 2)), 32
    for expansion, channels, repeats, stride in BLOCKS:
        for index in range(repeats):
            x = b.block(x, fan, expansion, channels, stride if index == 0 else 1)
            fan = channels
    x = b.relu6(b.conv(x, fan, 1280, 1))
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    scale = np.sqrt(1.0 / 1280)
    head = b.weight("head.weight", scale * b.rng.standard_normal((1000, 1280)))
    bias = b.weight("head.bias", 0.1 * b.rng.standard_normal(1000))
    x = b.node("Gemm", [x, head, bias], transB=1)
    b.nodes.append(helper.make_node("Softmax", [x], ["probabilities"], name="softmax", axis=1))
    graph = helper.make_graph(
        b.nodes,
        "mobilenet_v2",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 224, 224])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 1000])],
        b.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    model = mobilenet_v2()
    onnx.checker.check_model(model)
    onnx.save(model, path)
    print(f"{path.name}: {len(model.graph.node)} nodes, {path.stat().st_size / 1e6:.1f} MB")
