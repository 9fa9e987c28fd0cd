"""The output of commands on terminals of 60, 80 and 200 columns, without colour, and through a
pipe."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.cells import cell_len
from syrupy.assertion import SnapshotAssertion
from tcc import cli
from tcc.cli.show import say_all
from tcc.runtime.artifact_page import page
from tcc.runtime.kernel_facts import kernel_facts
from tcc.runtime.kernel_table import kernel_rows, kernel_table
from tcc.runtime.summary_text import summary_rows
from tcc.runtime.terminal import Table

from tests.screens import Terminal, rendered

WIDTHS = (60, 80, 200)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# A name with escape sequences, HTML, quotes, wide characters, and more characters than a screen
# holds.
HOSTILE = "".join(
    (
        "\x1b[31mred\x1b]0;title\x07\r\x08\x9b2J\u202e",
        "<script>alert(1)</script>&quot;'\"--> [bold]x[/bold] :smile: [link=x]",
        "漢字" * 30,
        "n" * 2000,
    )
)
LONG = "/encoder/blocks.11/attention/output/a_projection_of_some_width/MatMul"
NETWORK = """<ir_version: 9, opset_import: ["": 17]>
    network (float[2, 64] a_row_of_features_of_some_width) => (float[2, 64] y)
    { h = MatMul (a_row_of_features_of_some_width, w)  r = Relu (h)  y = MatMul (r, w) }"""


@pytest.fixture(autouse=True)
def _a_usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLUMNS", "NO_COLOR", "TCC_LOG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with network.onnx and hostile.onnx, whose nodes have long and hostile names,
    and their artifacts."""
    directory = tmp_path_factory.mktemp("screens")
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    for stem, name in (("network", LONG), ("hostile", HOSTILE)):
        model = onnx.parser.parse_model(NETWORK)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
        for number, node in enumerate(model.graph.node):
            node.name = f"{name}{number}"
        if stem == "hostile":
            _rename(model, HOSTILE)
        onnx.save(model, directory / f"{stem}.onnx")
        words = ["compile", f"{directory}/{stem}.onnx", "-o", f"{directory}/{stem}.so"]
        assert Terminal(80).execute(*words, "--name", "model", "-q") == 0
    return directory


def _rename(model: onnx.ModelProto, name: str) -> None:
    """Renames the input and the output of the model to `name` with different suffixes."""
    names = {model.graph.input[0].name: f"{name}in", "y": f"{name}out"}
    for item in (*model.graph.input, *model.graph.output):
        item.name = names[item.name]
    for node in model.graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(value, value) for value in values]


def lines_of(terminal: Terminal) -> Iterator[str]:
    """Yields the lines that programs wrote, without escape sequences; each rewrite of a line is a
    separate line."""
    yield from re.split(r"[\r\n]+", ESCAPES.sub("", terminal.written))


COMMANDS = (
    "compile network.onnx -o new.so",
    "compile network.onnx -o new.so --precision bf16 --verbose",
    "run network.so",
    "bench network.so --rounds 2 --seconds 0.001 --threads 1",
    "bench network.so --compare network.so",
    "verify network.onnx network.so",
    "inspect network.so",
    "inspect network.so --kernels",
    "inspect network.so --measure --runs 1",
    "inspect network.onnx --derivations",
    "inspect network.onnx --choices",
    "inspect network.onnx --form tile",
    "inspect network.onnx --form asm --kernel 0",
    "tune network.onnx --pin",
    "tune network.onnx --check",
    "plan network.onnx --ranks 2",
    "profile network.so --runs 1",
    "doctor",
    "ops Conv LayerNormalization",
    "run absent_model_with_quite_a_long_name_that_no_terminal_of_60_columns_has_room_for.so",
)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_wider_than_the_terminal(
    command: str, columns: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    if command.endswith("--check"):
        assert Terminal(columns).execute(*command.replace("--check", "--pin").split()) == 0
    terminal = Terminal(columns)
    code = terminal.execute(*command.split())
    assert code == (2 if "absent" in command else 0), rendered(terminal.display)
    assert max(map(cell_len, lines_of(terminal))) <= columns
    assert terminal.display


HOSTILE_COMMANDS = (
    "compile hostile.onnx -o new.so --name model",
    "run hostile.so",
    "verify hostile.onnx hostile.so",
    "inspect hostile.so",
    "inspect hostile.so --kernels",
    "inspect hostile.onnx --choices",
    "profile hostile.so --runs 1",
    "plan hostile.onnx --ranks 2",
    "run hostile.so --input what=1xf32=1",
)


@pytest.mark.parametrize("command", HOSTILE_COMMANDS)
def test_names_do_not_break_the_terminal(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    terminal = Terminal(60)
    assert terminal.execute(*command.split()) == (2 if "what=" in command else 0)
    lines = list(lines_of(terminal))
    assert max(map(cell_len, lines)) <= 60
    assert all(line.isprintable() for line in lines)
    styles = set(ESCAPES.findall(terminal.written))
    assert "\x1b[31m" not in styles
    if "--kernels" in command:
        shown = "".join(line.strip() for line in terminal.display)
        assert "[bold]x[/bold]:smile:[link=x]" in shown.replace(" ", "")


# ---- help ----------------------------------------------------------------------------------------

NAMES = "bench compile completion doctor inspect ops plan profile run tune verify".split()


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("command", ["", *NAMES])
def test_help_fits_and_has_the_exit_codes(
    command: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal(columns)
    assert terminal.execute(*command.split(), "--help") == 0
    assert max(map(len, lines_of(terminal))) <= columns
    shown = " ".join(" ".join(terminal.display).split())
    assert "Exit codes: 0 ok, 1 a check failed, 2 usage or input, 3 a tool is missing" in shown
    assert "--log-json" in shown


# ---- snapshots -----------------------------------------------------------------------------------

VARIANT: dict[str, Any] = {
    "target": "cpu:x86-64 (x86-64-v3)", "kernels": 45, "arena": 4_816_896, "weights": 13_981_551,
    "growth": 1.01, "needs": "", "weight_types": {"int8": 12, "f32": 5},
    "wide": ["stem.weight", "head.weight", "classifier.weight", "a.weight", "b.weight"],
}  # fmt: skip
RECORD: dict[str, Any] = {
    "files": [{"path": "mobilenet_v2.so", "bytes": 15_108_864},
              {"path": "mobilenet_v2.h", "bytes": 34_337}],
    "precision": "f32", "narrow": "", "ops": 66, "specialisations": 0, "needs": "glibc 2.17",
    "variants": [{**VARIANT, "weight_types": {}, "wide": []}], "tuned": None,
    "next": "tcc run mobilenet_v2.so",
}  # fmt: skip
TUNED = {"applied": 40, "unfit": 1, "elsewhere": 3, "unrelated": 0, "has_changes": False}
KERNELS = [
    {"symbol": f"tcc_kernel_{n}", "source": source, "flops": 10**7 * (n + 1), "bytes": 10**6,
     "contraction_flops": 10**7 * n, "seconds": 1e-4 / (n + 1), "limit": "compute",
     "limit_share": 0.875}
    for n, source in enumerate((LONG, "/stem/conv/Conv (Conv) (+1)", "漢字の名前", "<b>\"x\"</b>"))
]  # fmt: skip
MANIFEST: dict[str, Any] = {
    "tcc": "0.1.0", "ops": 66, "precision": "bf16", "quantized": "int8",
    "inputs": [{"name": "images", "dtype": "f32", "text": "[1,3,224,224]"}],
    "outputs": [{"name": f"output{n}", "dtype": "f32", "text": "[1,1000]"} for n in range(22)],
    "appends": [{"input": "past.0", "rows": 1, "axis": 2}],
    "preprocess": {"inputs": {"images": {"order": "bgr", "letterbox": 114}}},
    "plans": [{"variant": 1, "target": "x", "ranks": 2, "weight_bytes_of_a_rank": 5 << 20,
               "collectives": 3, "all_reduce": 3}],
    "variants": [{
        "target": "cpu:x86-64 (x86-64-v3)", "kernel_count": 4, "arena_bytes": None,
        "weights": {"bytes": 13_981_551}, "weight_types": {"int8": 12, "f32": 2},
        "wide": ["stem.weight", "head.weight"], "buckets": [{"N": 1}, {"N": 8}],
        "kernels": KERNELS, "steps": [0, 1, "fill_halo", 2, 3, 0],
        "machine": {"flops_per_second": 1e11, "bytes_per_second": 1e10},
    }],
}  # fmt: skip
NARROW = {**RECORD, "narrow": "int8", "variants": [VARIANT], "tuned": TUNED}


def shown(columns: int, *items: str | Table) -> str:
    """Returns the screen of a terminal on which `items` were printed."""
    terminal = Terminal(columns)
    with terminal.streams():
        say_all(items)
    assert max(map(cell_len, lines_of(terminal))) <= columns
    return rendered(terminal.display)


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_lines_at_the_end_of_a_compile(columns: int, snapshot: SnapshotAssertion) -> None:
    tables = [Table([*summary_rows(record)], has_heads=False) for record in (RECORD, NARROW)]
    assert shown(columns, tables[0], "", tables[1]) == snapshot


def test_a_compile_ends_with_four_lines() -> None:
    """Lines about locks and weights appear only in compiles that use them."""
    assert [label for label, _ in summary_rows(RECORD)] == ["wrote", "target", "memory", "next"]
    assert shown(80, Table([*summary_rows(RECORD)], has_heads=False)).count("\n") == 3
    labels = ["wrote", "target", "memory", "stored", "wide", "lock", "next"]
    assert [label for label, _ in summary_rows(NARROW)] == labels


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_page_of_an_artifact(columns: int, snapshot: SnapshotAssertion) -> None:
    assert shown(columns, *page(MANIFEST, Path("model.so"), 15_108_864, "glibc 2.17")) == snapshot


@pytest.mark.parametrize("columns", [*WIDTHS, 30])
def test_the_table_of_kernels(columns: int, snapshot: SnapshotAssertion) -> None:
    rows = kernel_rows(kernel_facts(MANIFEST["variants"][0]), None)
    assert shown(columns, kernel_table(rows)) == snapshot


# ---- colour, dumb terminals, pipes ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "has_styles"),
    [("TERM", "xterm-256color", True), ("TERM", "dumb", False), ("NO_COLOR", "1", False)],
)
def test_heads_are_bold_where_the_terminal_has_styles(
    variable: str, value: str, has_styles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    terminal = Terminal(80)
    with terminal.streams():
        say_all([Table([("kernel", "us"), ("a", "1.0")])])
    assert ("\x1b[1m" in terminal.written) == has_styles
    assert bool(ESCAPES.search(terminal.written)) == has_styles
    assert terminal.display == ["kernel   us", "a       1.0"]


def test_a_pipe_gets_whole_lines_without_styles(folder: Path) -> None:
    command = [sys.executable, "-m", "tcc", "inspect", "network.so", "--kernels"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert not ESCAPES.search(process.stdout)
    head, *rows, _, _ = process.stdout.splitlines()
    assert head.split()[-1] == "source"
    assert rows
    assert all(LONG in row for row in rows)


def test_json_has_the_facts_of_the_lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    words = ["compile", "network.onnx", "-o", "facts.so", "--precision", "bf16"]
    terminal = Terminal(200)
    assert terminal.execute(*words) == 0
    assert cli.execute([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    table = Table([*summary_rows(record)], has_heads=False)
    assert terminal.display == shown(200, table).splitlines()
    assert "stored" in terminal.display[3]
    assert [file["path"] for file in record["files"]] == ["facts.so", "facts.h"]
    assert [file["bytes"] for file in record["files"]] == [
        (folder / name).stat().st_size for name in ("facts.so", "facts.h")
    ]
