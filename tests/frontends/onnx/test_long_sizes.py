"""Nested formulas of sizes have correct values.

The text and code for them grow with the model, and not exponentially.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tcc.artifact import read_program
from tcc.driver import compile_model
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.text import graph_text
from tcc.ir.index.prove import inside
from tcc.options import read_options

node = helper.make_node
Model = onnx.ModelProto
CONSTANTS = {"0": 0, "1": 1, "2": 2, "3": 3, "7": 7}


def model(nodes: Sequence[onnx.NodeProto], output: str, kind: int, dims: Sequence[str]) -> Model:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(output, kind, [None])],
        [numpy_helper.from_array(np.array([n], np.int64), name) for name, n in CONSTANTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def arithmetic(steps: int) -> Model:
    """Repeats `a = a + b; b = a * b / 2` for `steps` steps; the size of the result is b modulo
    7."""
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "0"], ["a0"])]
    nodes.append(node("Gather", ["s", "1"], ["b0"]))
    for n in range(steps):
        nodes.append(node("Add", [f"a{n}", f"b{n}"], [f"a{n + 1}"]))
        nodes.append(node("Mul", [f"a{n + 1}", f"b{n}"], [f"c{n}"]))
        nodes.append(node("Div", [f"c{n}", "2"], [f"b{n + 1}"]))
    nodes.append(node("Mod", [f"b{steps}", "7"], ["size"]))
    nodes.append(node("ConstantOfShape", ["size"], ["y"]))
    return model(nodes, "y", TensorProto.FLOAT, ["n", "m"])


def cuts(steps: int) -> Model:
    """Repeatedly concatenates the first half of a vector and all but its first third."""
    nodes = []
    for n in range(steps):
        x, y = f"x{n}" if n else "x", f"x{n + 1}"
        nodes.append(node("Shape", [x], [f"s{n}"]))
        nodes.append(node("Div", [f"s{n}", "2"], [f"h{n}"]))
        nodes.append(node("Div", [f"s{n}", "3"], [f"t{n}"]))
        nodes.append(node("Slice", [x, "0", f"h{n}", "0"], [f"p{n}"]))
        nodes.append(node("Slice", [x, f"t{n}", f"s{n}", "0"], [f"q{n}"]))
        nodes.append(node("Concat", [f"p{n}", f"q{n}"], [y], axis=0))
    return model(nodes, f"x{steps}", TensorProto.FLOAT, ["n"])


def rows_of(n: int, m: int, steps: int) -> int:
    a, b = n, m
    for _ in range(steps):
        a += b
        b = a * b // 2
    return b % 7


def cut(x: NDArray[Any], steps: int) -> NDArray[Any]:
    for _ in range(steps):
        x = np.concatenate([x[: len(x) // 2], x[len(x) // 3 :]])
    return x


@pytest.mark.parametrize("build", [arithmetic, cuts])
def test_texts_grow_with_the_model(build: Callable[[int], Model]) -> None:
    short, long = (len(graph_text(load_model(build(steps)))) for steps in (20, 40))
    assert long < 2.5 * short < 100_000


def test_named_sizes_equal_their_formulas() -> None:
    graph = load_model(arithmetic(12))
    assert any(n.op.name == "name_size" for n in graph.nodes)
    for n, m in ((0, 0), (1, 1), (3, 2), (2, 5)):
        outputs = evaluate_graph(graph, {"x": np.zeros((n, m), np.float32)})
        assert outputs["y"].shape == (rows_of(n, m, 12),)


@pytest.mark.parametrize("length", [0, 1, 5, 12])
def test_named_sizes_cut_where_they_should(length: int) -> None:
    graph = load_model(cuts(12))
    x = np.arange(length, dtype=np.float32)
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": x})["x12"], cut(x, 12))


def test_programs_compute_each_formula_once(tmp_path: Path) -> None:
    """The test counts the bytes of the host program, which computes the sizes for kernels.

    The size of the file is a worse measure: a section that starts on a page of 64 KiB moves it by a
    page.
    """
    sizes = []
    for steps in (8, 16):
        path = tmp_path / f"{steps}.so"
        compile_model(arithmetic(steps), read_options({"jobs": 1}), path)
        sizes.append(len(read_program(path)))
    assert sizes[1] < 2.5 * sizes[0]


def test_a_limit_on_cases_ends_a_proof() -> None:
    """A size relation without a proof is checked in the run: reading an element of a vector cut 20
    times is safe."""
    graph = load_model(cuts(20))
    (output,) = graph.outputs
    (first,) = graph.inputs
    assert not inside(output.type.shape[0], first.type.shape[0])
