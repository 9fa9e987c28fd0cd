"""`tcc inspect --graph` writes a picture, or refuses and leaves no file."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from pathlib import Path

import onnx
import pytest
import tcc
from tcc import cli

from tests.cli.named_model import other_machine


def run(*words: object) -> int:
    return cli.execute(["inspect", *map(str, words)])


def test_each_format_is_written(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in ("svg", "json", "onnx"):
        assert run(compiled, "--graph", tmp_path / f"g.{suffix}") == 0
    text = capsys.readouterr().out.replace("\n", "")
    for name in ("g.svg", "g.json", "g.times.json", "g.onnx"):
        assert name in text.replace(" ", "")
        assert (tmp_path / name).stat().st_size
    onnx.checker.check_model(str(tmp_path / "g.onnx"), full_check=True)
    names = [element.text for element in xml.parse(tmp_path / "g.svg").iter() if element.text]
    assert any("soft" in name and "<b>" in name for name in names)


def test_measured_times_are_in_the_file(compiled: Path, tmp_path: Path) -> None:
    words = ("--measure", "--runs", 2, "--threads", 1, "--input", "x=4x8xf32")
    assert run(compiled, "--graph", tmp_path / "g.json", *words) == 0
    (record,) = json.loads((tmp_path / "g.json").read_text())["graphs"]
    kernels = [node for node in record["nodes"] if node["id"].startswith("s")]
    keys = [{pair["key"] for pair in node["attrs"]} for node in kernels]
    assert all("measured" in names for names in keys)
    (times,) = json.loads((tmp_path / "g.times.json").read_text()).values()
    assert set(times["results"]) == {node["id"] for node in kernels}


def test_a_model_is_compiled_for_its_graph(compiled: Path, tmp_path: Path) -> None:
    assert run(compiled.with_suffix(".onnx"), "--graph", tmp_path / "g.svg") == 0
    assert xml.parse(tmp_path / "g.svg")


def test_an_artifact_of_another_machine_has_a_graph(compiled: Path, tmp_path: Path) -> None:
    foreign = other_machine(compiled, tmp_path)
    assert run(foreign, "--graph", tmp_path / "g.svg") == 0
    assert run(compiled, "--graph", tmp_path / "h.svg") == 0
    assert (tmp_path / "g.svg").read_bytes() == (tmp_path / "h.svg").read_bytes()


def test_a_model_without_kernels_has_a_graph_and_a_profile(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["": 17]>
        same (float[8] x) => (float[8] y, int64[8] order)
        { k = Constant <value_ints = [8]> ()  y, order = TopK(x, k) }"""
    tcc.compile(onnx.parser.parse_model(text)).save(tmp_path / "same.so")
    assert tcc.load(tmp_path / "same.so").manifest["variants"][0]["kernel_count"] == 0
    for suffix in ("svg", "json", "onnx"):
        assert run(tmp_path / "same.so", "--graph", tmp_path / f"g.{suffix}") == 0
    trace = tmp_path / "trace.json"
    words = ["profile", str(tmp_path / "same.so"), "--runs", "2", "--trace", str(trace)]
    assert cli.execute(words) == 0
    assert json.loads(trace.read_text())["traceEvents"]


# ---- refusals ------------------------------------------------------------------------------------


def test_a_full_disk_is_one_error(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "g.svg").symlink_to("/dev/full")
    assert run(compiled, "--graph", tmp_path / "g.svg") == 2
    error = capsys.readouterr().err
    assert "a graph cannot be written" in error
    assert "because: No space left" in error


def test_a_missing_folder_is_one_error(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(compiled, "--graph", tmp_path / "absent" / "g.json") == 2
    assert "No such file" in capsys.readouterr().err
    assert not (tmp_path / "absent").exists()


def test_another_suffix_is_refused_before_a_compile(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(compiled, "--graph", tmp_path / "g.png") == 2
    assert "a graph has no such format" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
