"""Lines fit a terminal of 80 columns, for people; of a wider one they take what they need."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tcc import cli
from tcc.cli import show

NETWORK = """<ir_version: 9, opset_import: ["": 17]>
    network (float[1, 3, 32, 32] a_photograph_of_some_width)
        => (float[1, 10] probabilities_of_classes)
    {
        c = Conv <pads = [1, 1, 1, 1]> (a_photograph_of_some_width, first)  r = Relu (c)
        d = Conv <pads = [1, 1, 1, 1]> (r, second)  s = Relu (d)  p = GlobalAveragePool (s)
        f = Flatten (p)  g = Gemm <transB = 1> (f, head)
        probabilities_of_classes = Softmax (g)
    }"""
SHAPES = {"first": (64, 3, 3, 3), "second": (64, 64, 3, 3), "head": (10, 64)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds network.onnx, whose nodes have long names, and network.so made of it."""
    made, rng = tmp_path_factory.mktemp("a_folder_with_quite_a_long_name"), np.random.default_rng(0)
    model = onnx.parser.parse_model(NETWORK)
    for name, shape in SHAPES.items():
        array = rng.standard_normal(shape).astype(np.float32) / 16
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for number, node in enumerate(model.graph.node):
        node.name = f"/network/stages.{number}/layers.{number}/a_block_of_layers/{node.op_type}"
    onnx.save(model, made / "network.onnx")
    assert cli.execute(["compile", f"{made}/network.onnx", "-o", f"{made}/network.so"]) == 0
    return made


COMMANDS = (
    "inspect network.so",
    "inspect network.so --kernels",
    "inspect network.so --measure --runs 1",
    "inspect network.onnx --derivations",
    "bench network.so --rounds 2 --seconds 0.001",
    "profile network.so --runs 1",
    "doctor",
    "ops Conv LayerNormalization",
    "run network.onnx",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_lines_fit_80_columns(
    command: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    words: dict[str, list[str]] = {}
    for columns in ("80", "2000"):
        monkeypatch.setenv("COLUMNS", columns)
        capsys.readouterr()
        assert cli.execute(command.split()) == 0
        said = capsys.readouterr()
        assert said.out
        assert max(map(len, (said.out + said.err).splitlines())) <= int(columns)
        words[columns] = said.out.split()
    timed = ("--measure", "bench", "profile")
    if not any(word in command for word in timed):  # times differ
        assert words["80"] == words["2000"]


def test_texts_without_spaces_are_broken_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show.say_all(["  name: " + "x" * 300, "short", ""])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(line.strip() for line in lines) == "name: " + "x" * 300 + "short"
    assert lines[-2:] == ["short", ""]
