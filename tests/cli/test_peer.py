"""Worker processes answer, and report why they fail."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tcc.cli.peers.peer import PEERS, Peer, PeerKind
from tcc.errors import ToolError
from tcc.runtime.interleaved import Turn, interleaved
from tcc.runtime.worker import read_arrays, write_arrays

from tests.processors import multiplies_bf16

pytest.importorskip("onnxruntime")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Writes the model y = x + x, whose output name is not a valid file name."""
    port = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "a/y")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["a/y"])], "g", *map(list, [port[:1], port[1:]])
    )
    path = tmp_path / "add.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


def at_once(kind: str, turn: Turn) -> Sequence[float]:
    """Takes a turn without a rest before it, and returns its times."""
    return turn()


def test_peers_answer_and_take_turns(model: Path) -> None:
    inputs = {"x": np.array([1, 2], np.float32)}
    with Peer("ort", model, inputs, 1) as fast, Peer("ort-plain", model, inputs, 1) as plain:
        for peer in (fast, plain):
            (item,) = peer.outputs().items()
            assert item[0] == "a/y"
            np.testing.assert_array_equal(item[1], np.array([2, 4], np.float32), strict=True)
        fast.give({"x": np.array([3, 4], np.float32)})
        assert fast.outputs()["a/y"].tolist() == [6, 8]
        times = interleaved([fast, plain], rounds=2, budget=1e-4, take=at_once)
    assert set(times) == {"ort", "ort-plain"} <= set(PEERS)
    assert all(0 < t.least <= t.median and t.runs >= 2 for t in times.values())
    assert all(t.least <= t.best <= max(t.rounds) and len(t.rounds) == 2 for t in times.values())


def test_files_of_the_current_folder_are_no_modules(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("random", "numpy", "tcc"):
        model.with_name(f"{name}.so").write_bytes(b"an artifact")
    monkeypatch.chdir(model.parent)
    with Peer("ort-plain", model, {"x": np.array([1, 2], np.float32)}, 1) as peer:
        assert list(peer.outputs()) == ["a/y"]


class Paced:
    """A peer whose runs take known times; it records each of its turns."""

    def __init__(self, kind: str, paces: list[float], turns: list[str]) -> None:
        self.kind, self.paces, self.turns = kind, paces, turns

    def seconds(self, count: int) -> list[float]:
        if count == 10:
            self.turns.append(self.kind)
            return [self.paces.pop(0)] * 10
        return [0.1] * count


def test_rounds_start_with_another_peer_and_the_best_one_counts() -> None:
    turns: list[str] = []
    peers: list[Any] = [Paced("a", [3.0, 1.0, 2.0], turns), Paced("b", [5.0, 6.0, 4.0], turns)]
    times = interleaved(peers, 3, 1.0, lambda number: turns.append(str(number)), at_once)
    assert turns == "0 a b 1 b a 2 a b".split()
    assert times["a"].rounds == (3.0, 1.0, 2.0)
    assert (times["a"].best, times["a"].median, times["a"].runs) == (1.0, 2.0, 30)
    assert (times["b"].best, times["b"].least) == (4.0, 4.0)


@multiplies_bf16
def test_openvino_computes_in_the_precision_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((1, 16, 8, 8), (16, 16, 3, 3)))
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", x.shape), ("y", (1, 16, 6, 6)))
    ]
    weight = onnx.numpy_helper.from_array(w, "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [weight])
    path = tmp_path / "conv.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    reference = np.einsum("ncijkl,mckl->nmij", windows, w)
    errors = {}
    for kind in ("openvino", "openvino-bf16"):
        with Peer(kind, path, {"x": x}, 1) as peer:
            errors[kind] = np.abs(peer.outputs()["y"] - reference).max() / np.abs(reference).max()
    assert errors["openvino"] < 1e-6
    assert 1e-4 < errors["openvino-bf16"] < 2e-2


WORKER = """
import time
from pathlib import Path
from tcc.runtime.worker import serve

def prepare(model, feed, threads, *rest):
    print("chatter", flush=True)
    home = Path.home()
    assert (home / "intel" / "openvino_telemetry").read_text() == "0"
    if "slow" in rest:
        time.sleep(60)
    return lambda: {}

serve(prepare)
"""


def test_workers_are_quiet_and_capped(tmp_path: Path, model: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    with Peer("quiet", model, {}, 1, row=PeerKind("Quiet", str(script))) as peer:
        assert len(peer.seconds(3)) == 3
    slow = PeerKind("Slow", str(script), arguments=("slow",))
    with pytest.raises(ToolError, match=r"Slow took more than 0\.2 seconds"):
        Peer("slow", model, {}, 1, row=slow, cap=0.2)
    with pytest.raises(ToolError, match="Absent is not installed") as caught:
        Peer("absent", model, {}, 1, row=PeerKind("Absent", "m", "no.such", "no-such"))
    assert caught.value.hint == "pip install no-such"


def test_a_crashing_worker_leaves_its_last_words(tmp_path: Path, model: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("raise SystemExit('out of luck')")
    with pytest.raises(ToolError, match="Broken failed") as caught:
        Peer("broken", model, {}, 1, row=PeerKind("Broken", str(script)))
    assert "its exit code is 1" in caught.value.why
    assert "out of luck" in caught.value.why


def test_a_failing_worker_says_why(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ToolError, match="ONNX Runtime failed") as caught:
        Peer("ort", tmp_path / "absent.onnx", {}, 1)
    assert "absent.onnx" in caught.value.why
    with pytest.raises(ToolError) as caught:
        Peer("ort", model, {"x": np.zeros(3, np.float32)}, 1)
    assert "dimension" in caught.value.why


def test_text_comes_back_as_it_was(tmp_path: Path) -> None:
    texts = np.array([["", "a\0", "\0"], ["zwölf ", "two\nlines", "."]], object)
    arrays = {"t": texts, "none": np.empty((0, 2), object), "x": np.zeros(3, np.int8)}
    write_arrays(tmp_path / "a.npz", arrays)
    arrays_read = read_arrays(tmp_path / "a.npz")
    assert list(arrays_read) == list(arrays)
    assert arrays_read["t"].tolist() == texts.tolist()
    assert arrays_read["none"].shape == (0, 2)
    assert arrays_read["none"].dtype == object
    assert arrays_read["x"].dtype == np.int8
    with pytest.raises(ValueError, match="sequences"):
        write_arrays(tmp_path / "b.npz", {"l": np.array([np.zeros(1), None], object)})
