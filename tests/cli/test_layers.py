"""`tcc verify --layers` names the layer of a planted fault and can show the fault again."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tcc import cli
from tcc.artifact import load
from tcc.cli import layers
from tcc.driver import compile_model
from tcc.frontends.onnx.pieces import PieceModel
from tcc.ops import OPS

SIZE = 12


class Here:
    """A peer in this process: a separate process would take longer to start than these models
    run."""

    def __init__(self, kind: str, model: Path, feeds: Mapping[str, np.ndarray], _: int) -> None:
        self.kind, self.model, self.feeds = kind, model, dict(feeds)

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def outputs(self) -> dict[str, np.ndarray]:
        if self.kind == "tcc":
            return load(self.model, 1).run(self.feeds)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(self.model, options, ["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, self.feeds), strict=True))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "Peer", Here)


@contextmanager
def planted(op: str, other: str) -> Iterator[None]:
    """Makes compiled code compute `other` where the model says `op`; references stay correct."""
    row = OPS[op]
    right = row.expr
    object.__setattr__(row, "expr", OPS[other].expr)
    try:
        yield
    finally:
        object.__setattr__(row, "expr", right)


def chain(path: Path, ops: list[str], *, branch: bool = False) -> Path:
    """Writes a chain: a matmul with constant weights, then nodes `layer.i` that each read the
    previous node."""
    weights = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["v0"], name="first")]
    for number, op in enumerate(ops, 1):
        reads = [f"v{number - 1}"] + (["v0"] if op in ("Add", "Mul") else [])
        nodes.append(helper.make_node(op, reads, [f"v{number}"], name=f"layer.{number}"))
    if branch:
        nodes.append(helper.make_node("Shape", ["v1"], ["s"], name="shape"))
        nodes.append(helper.make_node("Reshape", [f"v{len(ops)}", "s"], ["r"], name="reshape"))
    last = "r" if branch else f"v{len(ops)}"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, SIZE])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def verify(*words: str | Path) -> int:
    return cli.execute(["verify", *map(str, words)])


def test_a_planted_fault_is_found_by_name_and_can_be_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chain(tmp_path / "m.onnx", ["Relu", "Tanh", "Add", "Sigmoid", "Neg"])
    folder = tmp_path / "fault"
    with planted("sigmoid", "tanh"):
        assert verify(model, "--layers", "--json", "--reproduce", folder) == 1
        said = json.loads(capsys.readouterr().out)
        monkeypatch.chdir(folder)
        command = said["reproduce"].split()
        assert cli.execute(command[1:]) == 1
    capsys.readouterr()
    assert cli.execute(command[1:]) == 0  # without the fault the layers agree
    first = said["first_wrong"]
    assert (first["name"], first["op"], first["output"]) == ("layer.4", "Sigmoid", "v4")
    assert first["inputs_right"]
    assert first["error"] > 0.1 > first["allowed"]
    before = [row["verdict"] for row in said["values"] if row["node"] < 4]
    assert before == ["ok"] * 4
    small = onnx.load(folder / "model.onnx").graph
    assert [node.op_type for node in small.node] == ["Sigmoid"]
    assert (folder / "command.txt").read_text() == said["reproduce"] + "\n"


@pytest.mark.usefixtures("here")
def test_every_wrong_node_is_found_where_the_check_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = chain(tmp_path / "m.onnx", ["Tanh", "Sigmoid", "Neg", "Sigmoid", "Neg"])
    with planted("sigmoid", "tanh"):
        assert verify(model, "--layers", "--keep-going", "--json") == 1
    rows = json.loads(capsys.readouterr().out)["values"]
    verdicts = {row["name"]: row["verdict"] for row in rows}
    assert verdicts == {
        "first": "ok",
        "layer.1": "ok",
        "layer.2": "wrong",
        "layer.3": "ok",
        "layer.4": "wrong",
        "layer.5": "ok",
    }


@pytest.mark.usefixtures("here")
def test_batches_fit_the_memory_and_sizes_stay_constants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Reshape whose shape comes from an earlier batch compiles, because that shape is passed as a
    constant."""
    model = chain(tmp_path / "m.onnx", ["Relu", "Neg", "Abs", "Tanh"], branch=True)
    spans: list[int] = []
    write = PieceModel.write

    def watched(self: PieceModel, path: Path, span: range, *arguments: object) -> tuple[str, ...]:
        spans.append(len(span))
        return write(self, path, span, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PieceModel, "write", watched)
    value = 4 * SIZE * 4
    assert verify(model, "--layers", "--memory", f"{10 * value}B") == 0
    assert "all 7 nodes agree" in capsys.readouterr().out
    batches = spans[:-1]  # the last span is the whole model
    assert max(batches) == 2
    assert len(batches) >= 4


@pytest.mark.usefixtures("here")
def test_a_fault_of_joining_is_narrowed_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chain(tmp_path / "m.onnx", ["Relu", "Abs", "Tanh", "Neg", "Sigmoid", "Softplus"])

    def broken_where_joined(path: Path, *arguments: object) -> object:
        graph = onnx.load(path).graph
        names = {node.name for node in graph.node}
        outputs = {value.name for value in graph.output}
        if {"layer.3", "layer.4"} <= names and "v3" not in outputs:
            with planted("neg", "abs"):
                return compile_model(path, *arguments)  # type: ignore[arg-type]
        return compile_model(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(layers, "compile_model", broken_where_joined)
    assert verify(model, "--layers", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert said["joined"] == ["layer.3", "layer.4"]
    assert said["first_wrong"] is None


@pytest.mark.parametrize(
    ("fault", "verdict"), [(RuntimeError, "failed"), (None, "ok")], ids=["crash", "none"]
)
@pytest.mark.usefixtures("here")
def test_a_node_that_does_not_compile_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[str], Exception] | None,
    verdict: str,
) -> None:
    model = chain(tmp_path / "m.onnx", ["Relu", "Erf", "Neg"])

    def refusing(path: Path, *arguments: object) -> object:
        if fault is not None and any(n.op_type == "Erf" for n in onnx.load(path).graph.node):
            raise layers.ToolError("the linker failed")
        return compile_model(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(layers, "compile_model", refusing)
    assert verify(model, "--layers", "--json", "--keep-going") == int(fault is not None)
    rows = json.loads(capsys.readouterr().out)["values"]
    assert {row["name"]: row["verdict"] for row in rows} == {
        "first": "ok",
        "layer.1": "ok",
        "layer.2": verdict,
        "layer.3": "ok",
    }


@pytest.mark.parametrize("size", ["", "2 pounds", "-1GiB", "nan"])
def test_memory_is_a_size(tmp_path: Path, capsys: pytest.CaptureFixture[str], size: str) -> None:
    model = chain(tmp_path / "m.onnx", ["Relu"])
    assert verify(model, "--layers", "--memory", size) == 2
    assert "--memory" in capsys.readouterr().err


def test_an_option_for_layers_asks_for_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(chain(tmp_path / "m.onnx", ["Relu"]), "--keep-going") == 2
    assert "add --layers" in capsys.readouterr().err


def strings_and_lists(path: Path, listed: bool) -> Path:
    """Writes a model that splits strings and counts the words; if `listed`, a model with a sequence
    as input."""
    if listed:
        nodes = [helper.make_node("SequenceLength", ["a"], ["n"])]
        inputs = [helper.make_tensor_sequence_value_info("a", TensorProto.FLOAT, None)]
        results = [helper.make_tensor_value_info("n", TensorProto.INT64, [])]
    else:
        nodes = [
            helper.make_node("StringConcat", ["a", "a"], ["c"]),
            helper.make_node("StringSplit", ["c"], ["words", "n"], delimiter=" "),
        ]
        inputs = [helper.make_tensor_value_info("a", TensorProto.STRING, ["k"])]
        results = [
            helper.make_tensor_value_info("words", TensorProto.STRING, ["k", "w"]),
            helper.make_tensor_value_info("n", TensorProto.INT64, ["k"]),
        ]
    graph = helper.make_graph(nodes, "g", inputs, results)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path
    )
    return path


@pytest.mark.usefixtures("here")
def test_text_is_compared_and_lists_of_the_caller_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = strings_and_lists(tmp_path / "text.onnx", listed=False)
    assert verify(text, "--layers", "--json") == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert [row["verdict"] for row in values] == ["ok"] * 3
    assert verify(strings_and_lists(tmp_path / "list.onnx", listed=True), "--layers") == 2
    assert "'a' has no array" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_symbolic_sizes_are_those_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["at"]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Expand", ["y", "s"], ["z"]),
        helper.make_node("Mul", ["z", "x"], ["p"]),
    ]
    shapes = {"x": ["n", "m"], "y": ["n", 1], "p": ["n", "m"]}
    x, y, p = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
    at = helper.make_tensor_value_info("at", TensorProto.INT64, [2, "k"])
    graph = helper.make_graph(nodes, "g", [x, y], [at, p])
    model = tmp_path / "open.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), model
    )
    with planted("mul", "add"):
        arguments = ("--input", "x=3x5xf32", "--input", "y=3x1xf32")
        assert verify(model, "--layers", "--json", *arguments) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["first_wrong"]["op"] == "Mul"
    assert [row["verdict"] for row in report["values"]] == ["ok", "ok", "ok", "wrong"]


def test_open_sizes_are_ones_that_the_model_takes(
    tmp_path: Path, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> g (float[1, 1, n] x) => (float[1, 1, k] y)
        <float[1, 1, 5] w = {1, 2, 3, 4, 5}> { y = Conv(x, w) }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    assert cli.execute(["verify", str(tmp_path / "m.onnx"), "--layers"]) == 0
    out, err = capsys.readouterr()
    assert "all 1 nodes agree" in out
    assert "x=1x1x8xf32" in err
