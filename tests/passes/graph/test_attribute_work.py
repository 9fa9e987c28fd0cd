"""Attributes of a small model may be any number: the time and memory of passes do not grow with it.

Each of these models once took minutes or gigabytes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx.helper import make_node
from tcc.frontends import load_model
from tcc.ir.graph import Graph, walk_nodes
from tcc.passes.graph.decompose import decompose_transposed
from tcc.passes.graph.fold_constants import fold_constants

from tests.lib.agreement import FLOAT, model_of, value

HUGE, HALF = 1 << 30, 1 << 29


def folded(op: str, attributes: Mapping[str, Any], constant: np.ndarray[Any, Any]) -> list[str]:
    model = model_of(
        [make_node(op, ["k"], ["p"], **attributes), make_node("Add", ["x", "p"], ["y"])],
        [value("x", FLOAT, [1])],
        [value("y", FLOAT, ["a", "b", "c"])],
        {"k": constant},
    )
    return names(fold_constants(load_model(model)))


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in walk_nodes(graph)]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [HUGE], "pads": [HALF, HALF]},
        {"kernel_shape": [2], "dilations": [HUGE], "pads": [HALF, HALF]},
    ],
)
def test_windows_of_constants_are_left_to_the_run(op: str, attributes: Mapping[str, Any]) -> None:
    assert folded(op, attributes, np.ones((1, 1, 8), np.float32))[0] != "add"
    small = {"kernel_shape": [3], "pads": [1, 1]}
    assert folded(op, small, np.ones((1, 1, 8), np.float32)) == ["add"]


def test_many_points_of_a_large_constant_are_left_to_the_run() -> None:
    window = {"kernel_shape": [1 << 12], "pads": [1 << 11, (1 << 11) - 1]}
    assert len(folded("MaxPool", window, np.ones((1, 1, 1 << 16), np.float32))) > 1


def test_strides_far_beyond_the_kernel_do_not_split_it() -> None:
    def made(stride: int) -> Graph:
        return load_model(
            model_of(
                [make_node("ConvTranspose", ["x", "w"], ["y"], strides=[stride])],
                [value("x", FLOAT, [1, 1, 8])],
                [value("y", FLOAT, ["a", "b", "c"])],
                {"w": np.ones((1, 1, 5), np.float32)},
            )
        )

    assert names(decompose_transposed(made(HUGE))) == ["conv_transpose"]
    assert "conv_transpose" not in names(decompose_transposed(made(2)))
