"""Workers answer, and say why they fail."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tcc.cli.peer import PEERS, Peer
from tcc.cli.rounds import interleaved
from tcc.errors import ToolError

pytest.importorskip("onnxruntime")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = x + x, with an output name that no file could have."""
    port = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "a/y")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["a/y"])], "g", *map(list, [port[:1], port[1:]])
    )
    path = tmp_path / "add.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


def test_peers_answer_and_take_turns(model: Path) -> None:
    inputs = {"x": np.array([1, 2], np.float32)}
    with Peer("ort", model, inputs, 1) as fast, Peer("ort-plain", model, inputs, 1) as plain:
        for peer in (fast, plain):
            (found,) = peer.outputs().items()
            assert found[0] == "a/y"
            np.testing.assert_array_equal(found[1], np.array([2, 4], np.float32), strict=True)
        times = interleaved([fast, plain], rounds=2, budget=1e-4, rest=0)
    assert set(times) == {"ort", "ort-plain"} <= set(PEERS)
    assert all(0 < t.least <= t.median and t.runs >= 2 for t in times.values())


def test_a_failing_worker_says_why(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ToolError, match="ONNX Runtime failed") as caught:
        Peer("ort", tmp_path / "absent.onnx", {}, 1)
    assert "absent.onnx" in caught.value.why
    with pytest.raises(ToolError) as caught:
        Peer("ort", model, {"x": np.zeros(3, np.float32)}, 1)
    assert "dimension" in caught.value.why
