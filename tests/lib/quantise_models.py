"""Small models for tests of `tcc quantize`, with samples and a float64 oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

CLASSES = 8
SHAPE = (1, 3, 6, 6)
Array = NDArray[np.float64]


class Classifier:
    """A classifier with seeded weights: conv1 -> relu -> conv2 -> relu -> mean -> fc.

    Channel 0 of the first relu is always 0. With `planted`, conv2 multiplies this channel by 1,000.
    That changes no result, but its int8 scale leaves no digit to the channel's other weights.
    """

    def __init__(self, planted: bool = False) -> None:
        rng = np.random.default_rng(3)
        self.w1 = rng.normal(size=(8, 3, 3, 3)).astype(np.float32)
        self.b1 = np.r_[-1e3, rng.normal(size=7)].astype(np.float32)
        self.w2 = rng.normal(size=(16, 8, 3, 3)).astype(np.float32)
        if planted:
            self.w2[:, 0] = 1e3
        self.w3 = rng.normal(size=(16, CLASSES)).astype(np.float32)

    def save(self, path: Path, opset: int = 17, names: bool = True) -> Path:
        """Writes the model as an ONNX file."""
        layers = {
            "conv1": ("Conv", "x w1 b1", "a"), "relu1": ("Relu", "a", "b"),
            "conv2": ("Conv", "b w2", "c"), "relu2": ("Relu", "c", "d"),
            "mean": ("GlobalAveragePool", "d", "e"), "flat": ("Flatten", "e", "f"),
            "fc": ("MatMul", "f w3", "y"),
        }  # fmt: skip
        nodes = [
            helper.make_node(op, inputs.split(), [output], name if names else "")
            for name, (op, inputs, output) in layers.items()
        ]
        graph = helper.make_graph(
            nodes,
            "classifier",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, CLASSES))],
            [numpy_helper.from_array(getattr(self, n), n) for n in ("w1", "b1", "w2", "w3")],
        )
        opsets = [helper.make_opsetid("", opset)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return path

    def run(self, x: NDArray[np.float32]) -> Array:
        """Returns the result in float64."""
        a = np.maximum(conv(x.astype(np.float64), self.w1) + self.b1[:, None, None], 0)
        c = np.maximum(conv(a, self.w2), 0)
        result: Array = c.mean((2, 3)) @ self.w3.astype(np.float64)
        return result


def conv(x: Array, w: NDArray[np.float32]) -> Array:
    """Returns a convolution without padding, in float64."""
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    result: Array = np.einsum("nchwij,ocij->nohw", windows, w.astype(np.float64))
    return result


def write_samples(folder: Path, count: int, seed: int = 0) -> list[NDArray[np.float32]]:
    """Writes samples `000.npy` and so on to a new folder, and returns them."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    samples = [rng.normal(size=SHAPE).astype(np.float32) for _ in range(count)]
    for number, sample in enumerate(samples):
        np.save(folder / f"{number:03}.npy", sample)
    return samples
