"""Every command has the right exit codes, streams and help."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import click
import onnx
import pytest
import tcc
from tcc import cli
from tcc.cli.commands import COMMANDS
from tcc.errors import InternalError, ToolError, UserError
from tcc.frontends.torch.converters import CONVERTERS
from tcc.ops import OPS
from tcc.schedule.cpu.machine_file import read_machine
from tcc.schedule.cpu.shipped_machines import shipped_machine

from tests.processes import finished, started


@pytest.mark.parametrize("command", [*COMMANDS])
def test_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute([command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert f"tcc {command}" in out.partition("Example:")[2]
    assert err == ""


def test_the_commands_are_these() -> None:
    names = [
        "bench",
        "compile",
        "completion",
        "doctor",
        "inspect",
        "ops",
        "plan",
        "profile",
        "quantize",
        "run",
        "tune",
        "verify",
    ]
    assert [*COMMANDS] == names


@pytest.mark.parametrize(
    "arguments",
    [["bogus"], ["compile"], ["compile", "--bogus", "x"], ["bench", "x", "--rounds", "0"], []],
)
def test_usage_errors_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: tcc" in err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UserError("what", where="w", why="y", hint="h"), 2, "error: what\n  at: w\n"),
        (ToolError("cc failed", why="ld: no"), 3, "error: cc failed\n  because: ld: no\n"),
        (InternalError("broken"), 70, "internal error: broken\n  this is a fault of tcc"),
        (ZeroDivisionError("one\ntwo"), 70, "internal error: ZeroDivisionError: one\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_errors_become_exit_codes_and_short_messages(
    error: BaseException,
    code: int,
    text: str,
    debug: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.command()
    def fail() -> None:
        raise error

    monkeypatch.setitem(cli.cli.commands, "fail", fail)
    assert cli.execute(["--debug", "fail"] if debug else ["fail"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert ("Traceback" in err) == debug


def test_output_that_cannot_be_written_is_no_fault_of_ours() -> None:
    command = f"{sys.executable} -m tcc ops"
    full = subprocess.run(f"{command} > /dev/full", shell=True, stderr=subprocess.PIPE, text=True)
    assert full.returncode == 2
    assert full.stderr == "error: something cannot be written: No space left on device\n"
    closed = subprocess.run(f"{command} >&- 2>&-", shell=True)
    assert closed.returncode == 0
    reading, writing = os.pipe()
    os.close(reading)
    gone = subprocess.run(command.split(), stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (gone.returncode, gone.stderr) == (130, b"")


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["ops", "--no"], 2)])
def test_a_process_ends_with_its_code_when_all_handlers_have_run(
    arguments: list[str], code: int
) -> None:
    lines = (
        "import atexit, sys",
        "from tcc.cli.commands import main",
        "atexit.register(print, 'first')",
        f"sys.argv = {['tcc', *arguments]}",
        "atexit.register(print, 'second')",
        "main()",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == code
    assert process.stdout.endswith("second\nfirst\n")
    assert ("tcc" in process.stdout) == (code == 0)


@pytest.mark.parametrize(
    ("sent", "ignored"),
    [("SIGINT", "SIGHUP"), ("SIGTERM", "SIGHUP"), ("SIGTERM", "SIGINT")],
)
def test_an_interrupt_inside_of_a_finaliser_is_not_lost(sent: str, ignored: str) -> None:
    """The parameter `ignored` covers shells that start background commands with SIGINT ignored."""
    lines = (
        "import signal, time",
        f"signal.signal(signal.{ignored}, signal.SIG_IGN)",
        "from tcc.cli import commands",
        "class Held:",
        "    def __del__(self):",
        f"        signal.raise_signal(signal.{sent})",
        "def invoked(*_, **__):",
        "    Held()",
        "    for _ in range(1000):",
        "        time.sleep(0.01)",
        "commands.cli.main = invoked",
        "commands.main()",
    )
    process = finished(sys.executable, "-c", "\n".join(lines))
    assert (process.returncode, process.stderr) == (130, "interrupted\n")


def test_an_interrupt_that_the_starter_ignores_stays_ignored() -> None:
    lines = (
        "import signal",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "from tcc.cli import commands",
        "commands.cli.main = lambda *_, **__: print(signal.getsignal(signal.SIGINT).name)",
        "commands.main()",
    )
    process = finished(sys.executable, "-c", "\n".join(lines))
    assert (process.returncode, process.stdout, process.stderr) == (0, "SIG_IGN\n", "")


def test_a_compile_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"  # it reports that it was called, and never answers
    marker = tmp_path / "asked"
    compiler.write_text(f"#!/bin/sh\necho > '{marker}'; exec sleep 60\n")
    compiler.chmod(0o755)
    folder = tmp_path / "made"
    folder.mkdir()
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    ports = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in "xy"]
    graph = onnx.helper.make_graph([node], "g", ports[:1], ports[1:])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset), tmp_path / "m.onnx")
    words = ("compile", str(tmp_path / "m.onnx"), "-o", str(folder / "m.so"))
    with started(
        [sys.executable, "-m", "tcc", *words],
        env={**os.environ, "CC": str(compiler)}, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        while not marker.exists() and process.poll() is None:
            time.sleep(0.05)
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said.strip()) == (130, "interrupted")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "m.so", "--seed", "-1"],
        ["bench", "m.onnx", "--seconds", "nan"],
        ["bench", "m.onnx", "--seconds", "inf"],
        ["bench", "m.onnx", "--cap", "1e12"],
    ],
)
def test_numbers_without_a_meaning(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(arguments) == 2
    assert "Invalid value" in capsys.readouterr().err


def test_doctor_prints_facts(capsys: pytest.CaptureFixture[str]) -> None:
    cli.execute(["doctor", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["processor"].startswith("cpu:x86-64 (")
    assert {"tcc", "python", "numpy", "cc", "zig", "huge pages"} <= set(facts)
    file = Path(tcc.__file__).parents[1] / facts["machine"]
    assert read_machine(file) == shipped_machine(file.stem)


def test_ops_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["ops", "--json"]) == 0
    assert [r["name"] for r in json.loads(capsys.readouterr().out)] == list(OPS)
    assert cli.execute(["ops", "NoSuchOp"]) == 2
    assert "there is no op 'NoSuchOp'" in capsys.readouterr().err


def test_ops_are_found_by_the_names_of_onnx_and_aten(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("Conv", "CONV", "conv", "ai.onnx.Conv"):
        assert cli.execute(["ops", name, "--json"]) == 0
        (record,) = json.loads(capsys.readouterr().out)
        assert record["name"] == "conv"
        assert record["opsets"] == {"Conv": [1, 11, 22]}  # as the change log of ONNX says
    assert cli.execute(["ops", "lstm", "conv"]) == 0
    text = capsys.readouterr().out
    assert "LSTM  An operator of ONNX that the import writes as others." in text
    assert "types: f16 bf16 f32 f64" in text
    assert "ONNX: Conv, opsets 1, 11, 22\n" in text
    assert "ONNX: LSTM, opsets 1, 7, 14, 22\n" in text
    (record,) = json.loads(_shown(["ops", "com.microsoft.Gelu", "--json"], capsys))
    assert record["opsets"] == {"Gelu": [20], "com.microsoft.Gelu": [1]}
    (record,) = json.loads(_shown(["ops", "FusedConv", "--json"], capsys))
    assert record["opsets"] == {"com.microsoft.FusedConv": [1]}
    for name in ("convolution", "aten.convolution", "aten::convolution.default", "CONVOLUTION"):
        (record,) = json.loads(_shown(["ops", name, "--json"], capsys))
        assert record["doc"] == (
            "An operator of ATen that tcc.frontends.torch.convert.window writes as others."
        )
    assert json.loads(_shown(["ops", *CONVERTERS, "--json"], capsys)) != []
    for name in json.loads(_shown(["ops", "--onnx", "--json"], capsys)):
        assert cli.execute(["ops", name.rstrip("*"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) != []


def _shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.execute(arguments) == 0
    return capsys.readouterr().out


def test_ops_names_the_onnx_operators_that_import(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["ops", "--onnx", "--json"]) == 0
    operators = set(json.loads(capsys.readouterr().out))
    assert {"Conv", "LSTM", "Attention", "RotaryEmbedding*"} <= operators
    assert {"RandomNormal", "Multinomial"} <= operators
    assert "ImageDecoder" not in operators


def test_a_command_does_not_search_its_graphs_for_cycles_all_the_time() -> None:
    expression = "print(gc.get_threshold()[0] >= 100_000, gc.get_freeze_count() > 10_000) or 0"
    start = "import gc; from tcc.cli import commands as cli"
    program = f"{start}; cli.execute = lambda: {expression}; cli.main()"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (process.stdout, process.stderr) == ("True True\n", "")
