"""`scripts/reduce` shrinks failing models to the failing part, and resumes an interrupted
reduction."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from planted import FAULTS, reduce_planted
from reduction import MODEL, Trials, minimal, reduce_model
from tcc.errors import UserError
from tcc.ops import OPS


@pytest.mark.parametrize("culprits", [{0}, {37}, {3, 20}, {1, 2, 39}, set(range(40))])
def test_delta_debugging_finds_the_needed_parts(culprits: set[int]) -> None:
    def fails(items: Sequence[int]) -> bool:
        return culprits <= set(items)

    assert minimal(range(40), fails) == sorted(culprits)


@pytest.mark.parametrize("number", [0])
def test_planted_faults_shrink_to_their_operator(number: int, tmp_path: Path) -> None:
    reduced, questions = reduce_planted(number, tmp_path)
    assert [node.op_type for node in reduced.proto.graph.node] == [FAULTS[number][2]]
    assert 0 < questions < 40
    onnx.checker.check_model(reduced.proto, full_check=True)
    again, questions = reduce_planted(number, tmp_path)
    assert questions == 0, "all answers were remembered"
    assert again.digest == reduced.digest


def test_faults_are_distinct_rows() -> None:
    rows = [row for row, _, _ in FAULTS]
    assert len(set(rows)) == len(FAULTS) == 20
    assert {name for fault in FAULTS for name in fault[:2]} <= OPS.keys()


def small_model(path: Path) -> dict[str, np.ndarray]:
    """Writes conv(x) + bias, pooled and reshaped by sizes computed from x: Shape, Gather, Concat;
    returns inputs."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "b": rng.standard_normal(8).astype(np.float32),
        "zero": np.array([0], np.int64),
        "rest": np.array([-1], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["r", "to"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"], axis=1),
        helper.make_node("Tanh", ["r"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 16, 16])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yz"],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return {"x": rng.standard_normal((2, 3, 16, 16)).astype(np.float32)}


def has_ops(*wanted: str) -> Callable[[Path], bool]:
    """Returns a test by which models with these operators fail."""

    def fails(folder: Path) -> bool:
        op_types = {node.op_type for node in onnx.load(folder / MODEL).graph.node}
        return set(wanted) <= op_types

    return fails


def test_sizes_and_operands_shrink_too(tmp_path: Path) -> None:
    inputs = small_model(tmp_path / MODEL)
    trials = Trials(has_ops("Conv"), tmp_path / "trials", lambda line: None)
    reduced = reduce_model(tmp_path / MODEL, inputs, trials)
    (node,) = reduced.proto.graph.node
    assert (node.op_type, list(node.input)) == ("Conv", ["x", "w"])  # without its bias
    assert reduced.arrays["x"].size < inputs["x"].size / 20
    assert len(reduced.proto.graph.output) == 1


def test_equal_sizes_shrink_apart(tmp_path: Path) -> None:
    def fails(folder: Path) -> bool:
        shapes = [saved_array.shape for saved_array in map(np.load, folder.glob("*.npy"))]
        return has_ops("Tanh")(folder) and shapes[0][-1] >= 8

    inputs = small_model(tmp_path / MODEL)
    trials = Trials(fails, tmp_path / "trials", lambda line: None)
    (array,) = reduce_model(tmp_path / MODEL, inputs, trials).arrays.values()
    assert array.shape == (1, 1, 1, 8)


def test_operators_that_fail_together_stay(tmp_path: Path) -> None:
    inputs = small_model(tmp_path / MODEL)
    check = has_ops("Reshape", "Tanh")
    trials = Trials(check, tmp_path / "trials", lambda line: None)
    reduced = reduce_model(tmp_path / MODEL, inputs, trials)
    assert sorted(node.op_type for node in reduced.proto.graph.node) == ["Reshape", "Tanh"]
    # the sizes that Shape, Gather and Concat computed have become a constant
    assert [initializer.name for initializer in reduced.proto.graph.initializer] == ["to"]


def test_answers_to_another_question_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "model.onnx"
    inputs = small_model(folder)

    def reduced(operator: str) -> list[str]:
        def fails(case_folder: Path) -> bool:
            return operator in {n.op_type for n in onnx.load(case_folder / MODEL).graph.node}

        trials = Trials(fails, tmp_path / "trials", lambda line: None, operator)
        return [n.op_type for n in reduce_model(folder, inputs, trials).proto.graph.node]

    assert reduced("Conv") == ["Conv"]
    assert reduced("Relu") == ["Relu"]


def test_a_model_that_does_not_fail_is_refused(tmp_path: Path) -> None:
    inputs = small_model(tmp_path / MODEL)
    trials = Trials(lambda folder: False, tmp_path / "trials", lambda line: None)
    with pytest.raises(UserError, match="does not fail"):
        reduce_model(tmp_path / MODEL, inputs, trials)
