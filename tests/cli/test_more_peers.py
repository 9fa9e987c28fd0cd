"""Optional peers compute what the model says, and a peer that cannot run a model still gets a
row."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from tcc import cli
from tcc.cli.peers.peer import Peer
from tcc.errors import ToolError

pytestmark = pytest.mark.xdist_group("torch")
INPUTS = {
    "b": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "a": np.cos(np.arange(8, dtype=np.float32)).reshape(2, 4),
}
WEIGHT = np.sin(np.arange(12, dtype=np.float32)).reshape(4, 3)
QUICK = ("--rounds", "1", "--seconds", "0.01", "--threads", "1")


class Model(torch.nn.Module):
    """Returns relu(a @ weight) - b and relu(a @ weight)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.from_numpy(WEIGHT))

    def forward(self, b: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = torch.relu(a @ self.weight)
        return product - b, product


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Writes the same model as an ONNX file and as a torch archive; returns the path of each."""
    folder = tmp_path_factory.mktemp("peers")
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("b", (2, 3)), ("a", (2, 4)), ("b:0", (2, 3)), ("p", (2, 3)))
    ]
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["p"]),
        helper.make_node("Sub", ["p", "b"], ["b:0"]),
    ]
    weights = [numpy_helper.from_array(WEIGHT, "w")]
    graph = helper.make_graph(nodes, "g", ports[:2], ports[2:], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "model.onnx")
    arguments = tuple(torch.from_numpy(array) for array in INPUTS.values())
    torch.export.save(torch.export.export(Model(), arguments), folder / "model.pt2")
    return {path.suffix: path for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("kind", "package", "suffix"),
    [("tvm", "tvm", ".onnx"), ("iree", "iree", ".onnx"), ("inductor", "torch", ".pt2")],
)
def test_a_peer_computes_the_model(
    kind: str,
    package: str,
    suffix: str,
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # torch keeps compiled headers there
    product = np.maximum(INPUTS["a"].astype(np.float64) @ WEIGHT, 0)
    with Peer(kind, files[suffix], INPUTS, 1) as peer:
        results = [*peer.outputs().values()]
        assert len(peer.seconds(2)) == 2
    for output, expected in zip(results, (product - INPUTS["b"], product), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_a_peer_that_does_not_read_the_file_gets_a_row(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", str(files[".onnx"]), "--peers", "inductor", *QUICK]
    assert cli.execute(command) == 3
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["torch.compile", "failed"] for line in lines)
    assert "torch.compile reads .pt2 archives alone" in lines
    assert cli.execute([*command, "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert list(answer["seconds"]) == ["tcc"]
    assert "reads .pt2 archives alone" in answer["failed"]["inductor"]
    assert "ratio" not in answer


def test_a_peer_that_fails_gets_a_row_with_the_cause(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")

    def prepared(kind: str, *arguments: object, **fields: object) -> Peer:
        if kind == "openvino":
            raise ToolError("OpenVINO failed", why="it lacks the operator\nFrobnicate")
        return Peer(kind, *arguments, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr("tcc.cli.bench.Peer", prepared)
    monkeypatch.setattr("tcc.cli.peers.peer.check_installed", lambda row: None)
    assert cli.execute(["bench", str(files[".onnx"]), "--peers", "openvino,ort", *QUICK]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ONNX Runtime") and line.endswith("x") for line in lines)
    assert lines[-1].strip() == "Frobnicate"
