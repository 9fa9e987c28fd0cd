"""Divisions after contractions become multiplications, in graphs of any depth."""

from __future__ import annotations

import numpy as np
from onnx import helper
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.passes.quantize.requantize import requantize

from tests.draws import RNG
from tests.passes.quantize.test_int8_layers import model_of

DEPTH = 1500  # of a chain of nodes, more than Python's stack of calls has


def test_a_deep_network_beside_a_contraction() -> None:
    node = helper.make_node
    names = [f"r{n}" for n in range(DEPTH)]
    nodes = [
        *(node("Relu", [a], [b]) for a, b in zip(["x", *names], names, strict=False)),
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", names[-1]], ["a"]),
        node("QuantizeLinear", ["a", "s", "z"], ["y"]),
    ]
    w = RNG.standard_normal((8, 8)).astype(np.float32)
    constants = {"w": w, "s": np.asarray(0.25, np.float32), "z": np.asarray(3, np.uint8)}
    graph = load_model(model_of(nodes, (2, 8), constants))
    x = RNG.standard_normal((2, 8)).astype(np.float32)
    changed = requantize(graph)
    assert changed is not graph
    (y,) = evaluate_graph(changed, {"x": x}).values()
    exact = np.clip(np.rint((x @ w + np.maximum(x, 0)) / np.float32(0.25)) + 3, 0, 255)
    np.testing.assert_array_equal(y, exact.astype(np.uint8))
