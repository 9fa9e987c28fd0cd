"""Small models that use the features in which block kernels differ: matmuls, windows, rows,
symbolic sizes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.lib.agreement import FLOAT, Array, model_of, value


def _weights(seed: int, *shape: int) -> Array:
    drawn = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[-1])
    return drawn.astype(np.float32)


def network() -> onnx.ModelProto:
    """Returns two padded convolutions, pooling and a matmul, from an image to classes."""
    return model_of(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Conv", ["p", "v"], ["d"], pads=[1, 1, 1, 1], strides=[2, 2]),
            helper.make_node("GlobalAveragePool", ["d"], ["g"]),
            helper.make_node("Flatten", ["g"], ["f"]),
            helper.make_node("Gemm", ["f", "m"], ["y"]),
        ],
        [value("x", FLOAT, [1, 3, 14, 13])],
        [value("y", FLOAT, [1, 10])],
        {
            "w": _weights(0, 16, 3, 3, 3),
            "b": _weights(1, 16),
            "v": _weights(2, 24, 16, 3, 3),
            "m": _weights(3, 24, 10),
        },
    )


def attention() -> onnx.ModelProto:
    """Returns attention of two heads over a symbolic number of rows, and a normalisation behind
    it."""
    heads = {"perm": [1, 0, 2]}
    sizes = {"split": np.array([0, 2, 16]), "joined": np.array([0, 32])}
    return model_of(
        [
            *(helper.make_node("MatMul", ["x", w], [f"{w}1"]) for w in "qkv"),
            *(helper.make_node("Reshape", [f"{w}1", "split"], [f"{w}2"]) for w in "qkv"),
            helper.make_node("Transpose", ["q2"], ["q3"], **heads),
            helper.make_node("Transpose", ["k2"], ["k3"], perm=[1, 2, 0]),
            helper.make_node("Transpose", ["v2"], ["v3"], **heads),
            helper.make_node("MatMul", ["q3", "k3"], ["s"]),
            helper.make_node("Softmax", ["s"], ["p"]),
            helper.make_node("MatMul", ["p", "v3"], ["o"]),
            helper.make_node("Transpose", ["o"], ["t"], **heads),
            helper.make_node("Reshape", ["t", "joined"], ["j"]),
            helper.make_node("Add", ["j", "x"], ["a"]),
            helper.make_node("LayerNormalization", ["a", "g"], ["y"]),
        ],
        [value("x", FLOAT, ["rows", 32])],
        [value("y", FLOAT, ["rows", 32])],
        {
            **{w: _weights(n, 32, 32) for n, w in enumerate("qkv")},
            "g": _weights(4, 32),
            **sizes,
        },
    )


MODELS = {"network": network, "attention": attention}
SHAPES = {"network": [(1, 3, 14, 13)], "attention": [(5, 32), (37, 32)]}
