"""Lines for people fit a terminal of 80 columns, and use more of a wider terminal only where
needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.cells import cell_len
from tcc import cli
from tcc.cli import show
from tcc.runtime.terminal import Table
from tcc.runtime.terminal import lines as terminal_lines

from tests.screens import Terminal

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
    """Returns a folder with network.onnx, whose nodes have long names, and its artifact
    network.so."""
    directory, rng = (
        tmp_path_factory.mktemp("a_folder_with_quite_a_long_name"),
        np.random.default_rng(0),
    )
    model = onnx.parser.parse_model(NETWORK)
    for name, shape in SHAPES.items():
        array = rng.standard_normal(shape).astype(np.float32) / 16
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for number, node in enumerate(model.graph.node):
        node.name = f"/network/stages.{number}/layers.{number}/a_block_of_layers/{node.op_type}"
    onnx.save(model, directory / "network.onnx")
    assert (
        cli.execute(["compile", f"{directory}/network.onnx", "-o", f"{directory}/network.so"]) == 0
    )
    return directory


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


@pytest.fixture(autouse=True)
def _a_usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_lines_that_fit_80_columns_lose_nothing(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    words: dict[int, list[str]] = {}
    for columns in (80, 2000):
        terminal = Terminal(columns)
        assert terminal.execute(*command.split()) == 0
        assert max(map(len, terminal.display)) <= columns
        words[columns] = " ".join(terminal.display).split()
    timed = ("--measure", "bench", "profile")
    if not any(word in command for word in timed):  # times differ from run to run
        assert words[80] == words[2000]


def test_texts_without_spaces_are_broken_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(80)
    with terminal.streams():
        show.say_all(["  name: " + "x" * 300, "short", ""])
    lines = terminal.display
    assert "".join(line.strip() for line in lines) == "name:" + "x" * 300 + "short"
    assert lines[-1] == "short"


def test_columns_of_a_terminal_alone_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, width in (("50", 50), ("0", 80), ("many", 80), ("\u0665", 80)):
        monkeypatch.setenv("COLUMNS", text)
        terminal = Terminal(80)
        with terminal.streams():
            show.say("x " * 60)
        assert width - 2 <= max(map(len, terminal.display)) <= width
        show.say("x " * 60)
        assert capsys.readouterr().out == "x " * 60 + "\n"


@pytest.mark.parametrize("width", [1, 2, 7, 30, 60])
def test_wrapped_texts_fit_and_keep_their_words(width: int) -> None:
    """Words of all lengths mix characters of one, two and zero columns."""
    rng = np.random.default_rng(width)
    alphabet = [*"ab-/.", "漢", "字", "é", "e\u0301", " ", " "]
    for _ in range(50):
        text = "".join(rng.choice(alphabet, 200))
        for item in (text, Table([("head", "x"), (text[:5].strip(), text)])):
            lines = list(terminal_lines([item], width))
            # A character of two columns does not fit a width of one column.
            assert all(cell_len(line) <= max(width, 2) for line in lines)
            if item is text:
                assert "".join(lines).replace(" ", "") == text.replace(" ", "")
                words = [w for w in text.split() if cell_len(w) <= width // 2]
                assert set(words) <= {w for line in lines for w in line.split()}
