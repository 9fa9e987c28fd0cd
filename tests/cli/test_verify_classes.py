"""`tcc verify` on a folder of inputs counts how often the top class agrees, and enforces a
bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from tcc import cli

CLASSES, WIDTH, COUNT = 64, 256, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a classifier, its artifacts in f32 and with int4 weights, and samples
    whose best classes have close scores."""
    folder = tmp_path_factory.mktemp("classes")
    rng = np.random.default_rng(5)
    weights = rng.normal(size=(WIDTH, CLASSES)).astype(np.float32)
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]> classes (float[1, {WIDTH}] x) =>
        (float[1, {CLASSES}] y) <float[{WIDTH}, {CLASSES}] w> {{ y = MatMul(x, w) }}"""
    )
    del model.graph.initializer[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, folder / "m.onnx")
    tcc.compile(folder / "m.onnx").save(folder / "f32.so")
    tcc.compile(folder / "m.onnx", weights="int4").save(folder / "int4.so")
    (folder / "s").mkdir()
    for number in range(COUNT):
        np.save(folder / "s" / f"{number:02}.npy", rng.normal(size=(1, WIDTH)).astype(np.float32))
    return folder


def samples(folder: Path) -> list[Any]:
    return [np.load(path) for path in sorted((folder / "s").iterdir())]


def expected(folder: Path) -> tuple[float, float]:
    """Returns the (top-1, top-5) agreement of the int4 artifact with the model in float64."""
    module = tcc.load(folder / "int4.so")
    initializer = onnx.load(folder / "m.onnx").graph.initializer[0]
    weights = onnx.numpy_helper.to_array(initializer).astype(np.float64)
    first = fifth = 0
    for x in samples(folder):
        best = int(np.argmax(x.astype(np.float64) @ weights))
        order = np.argsort(-np.asarray(module(x))[0]).tolist()
        first += order[0] == best
        fifth += best in order[:5]
    return first / COUNT, fifth / COUNT


def verified(folder: Path, artifact: str, *words: object) -> int:
    inputs = ("--input", f"x=@{folder / 's'}")
    return cli.execute(
        ["verify", *map(str, (folder / "m.onnx", folder / artifact, *inputs, *words))]
    )


def test_agreement_is_that_of_the_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    top1, top5 = expected(folder)
    assert 0 < top1 < 1  # else the numbers below would show little
    assert verified(folder, "int4.so", "--json") == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert (output["top1"], output["top5"]) == (top1, top5)
    assert verified(folder, "int4.so") == 0
    printed = capsys.readouterr().out
    assert f"top-1 agreement {top1:.2%}, top-5 {top5:.2%}" in printed


def test_only_a_requested_bound_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    top1, _ = expected(folder)
    assert verified(folder, "int4.so", "--top1", top1) == 0
    assert verified(folder, "int4.so", "--top1", top1 + 1e-6) == 1
    assert "is less than --top1" in capsys.readouterr().out
    assert verified(folder, "int4.so", "--tolerance", 1e-6) == 1


def test_f32_agrees_on_every_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verified(folder, "f32.so", "--top1", 1, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["runs"] == 2 * COUNT  # one run for each file, and one to find the allowed errors
    assert result["outputs"][0]["top1"] == 1.0
    assert verified(folder, "f32.so") == 0
    assert "top-1" not in capsys.readouterr().out


def test_a_wrong_weight_is_found_on_data(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(folder / "m.onnx")
    weights = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    weights[0, 0] += 0.1
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "other.onnx")
    inputs = ("--input", f"x=@{folder / 's'}")
    words = map(str, (tmp_path / "other.onnx", folder / "f32.so", *inputs))
    assert cli.execute(["verify", *words]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_an_empty_folder_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty").mkdir()
    words = ("--input", f"x=@{folder / 'empty'}")
    assert cli.execute(["verify", str(folder / "m.onnx"), str(folder / "f32.so"), *words]) == 2
    assert "the folder has no files" in capsys.readouterr().err
