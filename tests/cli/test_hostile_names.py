"""Hostile names from a model never escape from the text that commands print and write."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tcc.cli import execute
from tcc.errors import TccError, printable

NASTY = "".join(
    (
        "../../planted/../x",
        "\x1b[31mred\x1b]0;title\x07\r\x08\x9b2J",
        'first\nerror: forged\n"; system("x"); /* */ // \\',
        "%s%n%1000000d {0} {x!r} [/bold] [link=x] $(touch planted) `touch planted`",
        "\u202egnp.exe\u2066\u200b\ufeff",
        "<script>alert(1)</script>&quot;'\"--><!--",
    )
)


def _model(text: str) -> onnx.ModelProto:
    """Returns a model with `text` in every place for a name, including the names of a function."""
    value, make = helper.make_tensor_value_info, helper.make_node
    function = helper.make_function(
        f"{text}.domain", f"{text}f", ["p"], ["q"],
        [helper.make_node("Relu", ["p"], ["q"], f"{text}inner", doc_string=text)],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip
    nodes = [
        make("MatMul", [f"{text}x", f"{text}w"], [f"{text}t"], f"{text}n"),
        make(f"{text}f", [f"{text}t"], [f"{text}u"], f"{text}c", domain=f"{text}.domain"),
        make("Loop", [f"{text}k", "", f"{text}u"], [f"{text}y"], text, body=_body(text)),
    ]  # fmt: skip
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), f"{text}w")
    count = numpy_helper.from_array(np.array(2), f"{text}k")
    graph = helper.make_graph(
        nodes, text,
        [value(f"{text}x", TensorProto.FLOAT, [text, 4])],
        [value(f"{text}y", TensorProto.FLOAT, [text, 4])],
        [weight, count], doc_string=text,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(f"{text}.domain", 1)]
    model = helper.make_model(
        graph, opset_imports=opsets, functions=[function], ir_version=10,
        producer_name=text, domain=text, doc_string=text,
    )  # fmt: skip
    model.metadata_props.add(key=text, value=text)
    return model


def _body(text: str) -> onnx.GraphProto:
    value = helper.make_tensor_value_info
    return helper.make_graph(
        [helper.make_node("Identity", [f"{text}b"], [f"{text}d"]),
         helper.make_node("Sin", [f"{text}s"], [f"{text}r"], f"{text}sin")],
        f"{text}body",
        [value(f"{text}i", TensorProto.INT64, []), value(f"{text}b", TensorProto.BOOL, []),
         value(f"{text}s", TensorProto.FLOAT, None)],
        [value(f"{text}d", TensorProto.BOOL, []), value(f"{text}r", TensorProto.FLOAT, None)],
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the current folder, two levels below the test's folder, with the model in it."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    onnx.save(_model(NASTY), inner / "m.onnx")
    return inner


def _plain(text: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in text)


def test_nothing_that_is_printed_or_written_holds_them_raw(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compiling = ["compile", "m.onnx", "-o", "m.so", "--cpu", "x86-64-v3", "--jobs", "1"]
    commands = [
        [*compiling, "--dump", "dumps", "--keep-ir", "--time-passes"],
        ["inspect", "m.so"],
        ["inspect", "m.so", "--kernels"],
        ["inspect", "m.so", "--measure", "--runs", "1", "--threads", "1"],
        ["inspect", "m.so", "--form", "llvm", "--kernel", "tcc_kernel_0"],
        ["inspect", "m.so", "--form", "asm", "--kernel", "tcc_kernel_0"],
        ["run", "m.so", "--output", "results", "--threads", "1"],
    ]
    for command in commands:
        assert execute(command) == 0, (command, capfd.readouterr())
        captured = capfd.readouterr()
        assert _plain(captured.out + captured.err), command
        assert not [line for line in captured.out.splitlines() if line.startswith("error: ")], (
            command
        )
    for command in (["inspect", "m.so", "--json"], ["inspect", "m.so", "--kernels", "--json"]):
        assert execute(command) == 0
        text = capfd.readouterr().out
        assert text.isascii()
        json.loads(text)
    _no_file_is_outside(folder)
    _header_compiles(folder)


def test_errors_hold_them_escaped(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = onnx.load(folder / "m.onnx")
    model.graph.node[0].op_type = model.graph.name
    onnx.save(model, folder / "bad.onnx")
    commands = [
        ["compile", "bad.onnx", "-o", "bad.so"],
        ["run", "m.onnx", "--input", "what=1xf32=1"],
        ["run", "m.onnx", "--input", f"{model.graph.input[0].name}=3x5xf32=1"],
    ]
    for command in commands:
        assert execute(command) == 2, command
        captured = capfd.readouterr()
        assert _plain(captured.out + captured.err), command
        assert len([li for li in captured.err.splitlines() if li.startswith("error:")]) == 1, (
            command
        )
    _no_file_is_outside(folder)


def _no_file_is_outside(folder: Path) -> None:
    above = folder.parents[1]
    assert [p for p in above.rglob("*") if p.is_file() and folder not in p.parents] == []
    assert [p for p in folder.rglob("*planted*") if p.name == "planted"] == []


def _header_compiles(folder: Path) -> None:
    source = folder / "use.c"
    source.write_text('#include "m.h"\nconst char *name = M_INPUT_0_NAME;\n')
    command = ("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(source))
    subprocess.run(command, check=True)
    assert _plain((folder / "m.h").read_text())


def test_printable_escapes_control_characters() -> None:
    assert printable("aé漢 \\n") == "aé漢 \\n"
    assert printable("a\nb\x1b[0m\u202e", "\n") == "a\nb\\x1b[0m\\u202e"
    text = str(TccError("a\x07", where="b\nerror: c", why="d\n  e\x9b", hint="f\r"))
    assert text == "a\\x07\n  at: b\\nerror: c\n  because: d\n  e\\x9b\n  to do: f\\r"
    assert str(TccError("a", why="b\nerror: c")) == "a\n  because: b\n    error: c"
