"""`tcc quantize` on a small model, with ONNX Runtime and float64 as oracles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from tcc import cli

from tests.lib.quantise_models import Classifier, write_samples
from tests.processes import started

Paths = dict[str, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """Writes models and samples, and quantises the models with `tcc quantize`."""
    folder = tmp_path_factory.mktemp("quantize")
    write_samples(folder / "samples", 20)
    write_samples(folder / "others", 30, seed=1)
    return {
        "folder": folder,
        "good": Classifier().save(folder / "good.onnx"),
        "bad": Classifier(planted=True).save(folder / "bad.onnx"),
        "samples": folder / "samples",
        "others": folder / "others",
    }


def executed(*words: object) -> int:
    return cli.execute(["quantize", *map(str, words)])


def record(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert executed(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def onnx_runtime(model: Path, samples: Path) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    return [session.run(None, {"x": np.load(path)})[0] for path in sorted(samples.iterdir())]


def test_the_scores_are_those_of_the_written_model(
    files: Paths, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "q.onnx"
    words = (files["good"], "--data", files["samples"], "--check", files["others"], "-o", output)
    result = record(capsys, *words)
    row = next(item for item in result["models"] if item["name"] == result["chosen"])
    assert row["layers"] == ["conv1", "conv2", "fc"]
    assert row["mean_error"] == min(item["mean_error"] for item in result["models"][1:])
    exact = [Classifier().run(np.load(path)) for path in sorted(files["others"].iterdir())]
    outputs = onnx_runtime(output, files["others"])
    errors = [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(outputs, exact, strict=True)]
    assert row["error"] == pytest.approx(max(errors), rel=1e-3)
    assert row["mean_error"] == pytest.approx(np.mean(errors), rel=1e-3)
    equal_tops = [a.argmax() == b.argmax() for a, b in zip(outputs, exact, strict=True)]
    assert row["top1"] == np.mean(equal_tops)
    assert result["samples"] == {"calibration": 20, "scores": 30}
    assert result["models"][0]["error"] < 1e-6
    assert row["model_bytes"] == output.stat().st_size < files["good"].stat().st_size
    integers = [w for w in onnx.load(output).graph.initializer if w.data_type == w.INT8]
    assert {len(w.dims) for w in integers} >= {2, 4}


def test_equal_inputs_give_equal_bytes(files: Paths, tmp_path: Path) -> None:
    outputs = [tmp_path / f"{seed}.onnx" for seed in (1, 2)]
    for number, output in enumerate(outputs):
        words = ("quantize", files["good"], "--data", files["samples"], "-o", output)
        subprocess.run(
            [sys.executable, "-m", "tcc", *map(str, words)], check=True, capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": str(number + 1)},
        )  # fmt: skip
    first, second = (path.read_bytes() for path in outputs)
    assert first == second


def test_a_planted_bad_layer_is_found_and_stays_in_f32(
    files: Paths, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "q.onnx"
    words = ("--data", files["samples"], "--error", 0.05, "--top1", 0.9, "-o", output)
    result = record(capsys, files["bad"], *words)
    assert max(result["layer_errors"], key=result["layer_errors"].get) == "conv2"
    assert all(item["error"] > 0.05 for item in result["models"][1:3])
    model = result["models"][-1]
    assert (result["chosen"], model["in_f32"]) == (model["name"], ["conv2"])
    exact = [Classifier(True).run(np.load(path)) for path in sorted(files["samples"].iterdir())]
    outputs = onnx_runtime(output, files["samples"])
    assert all(
        np.abs(a - b).max() <= 0.05 * np.abs(b).max() for a, b in zip(outputs, exact, strict=True)
    )


def test_a_bound_that_no_choice_keeps_ends_with_1(
    files: Paths, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "q.onnx"
    words = ("--data", files["samples"], "--error", 1e-5, "-o", output)
    assert executed(files["good"], *words) == 1
    printed = capsys.readouterr().out
    assert "nothing is written: no choice keeps --error 1e-05" in printed
    assert "conv1" in printed
    assert not [*tmp_path.iterdir()]


def test_an_old_opset_without_names_works(files: Paths, tmp_path: Path) -> None:
    model = Classifier().save(tmp_path / "old.onnx", opset=11, names=False)
    output = tmp_path / "q.onnx"
    assert executed(model, "--data", files["samples"], "-o", output, "--method", "Percentile") == 0
    exact = [Classifier().run(np.load(path)) for path in sorted(files["samples"].iterdir())]
    outputs = onnx_runtime(output, files["samples"])
    assert all(
        np.abs(a - b).max() <= 0.1 * np.abs(b).max() for a, b in zip(outputs, exact, strict=True)
    )


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *words: object) -> str:
    """Returns the message of a command that ends with exit code 2 and leaves nothing in `folder`.

    The check covers the folder of the command's temporary files too.
    """
    before = sorted(folder.rglob("*")), sorted(Path(tempfile.gettempdir()).iterdir())
    assert executed(*words) == 2
    after = sorted(folder.rglob("*")), sorted(Path(tempfile.gettempdir()).iterdir())
    assert after == before
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    return message


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder with samples `s`, beside a folder of temporary files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


BAD = {
    "one sample": ([1.0], "there is only one sample"),
    "constant data": ([1.0, 1.0, 1.0], "all 3 samples are equal"),
    "nan": ([1.0, np.nan], "NaN or an infinity"),
    "empty": ([], "the folder has no files"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_samples(
    files: Paths, private: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    values, message = BAD[name]
    (private / "s").mkdir()
    for number, value in enumerate(values):
        np.save(private / "s" / f"{number}.npy", np.full((1, 3, 6, 6), value, np.float32))
    words = (files["good"], "--data", "s", "-o", "q.onnx")
    assert message in refused(capsys, private, *words)


def test_a_sample_of_another_shape(
    files: Paths, private: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_samples(private / "s", 2)
    np.save(private / "s" / "x.npy", np.ones((1, 3, 6, 7), np.float32))
    message = refused(capsys, private, files["good"], "--data", "s", "-o", "q.onnx")
    assert "x.npy" in message
    assert "float32[1, 3, 6, 7]" in message


def test_a_quantised_model(files: Paths, private: Path, capsys: pytest.CaptureFixture[str]) -> None:
    q = files["folder"] / "quantised.onnx"
    assert executed(files["good"], "--data", files["samples"], "-o", q) == 0
    capsys.readouterr()
    message = refused(capsys, private, q, "--data", files["samples"], "-o", "q.onnx")
    assert "quantised already" in message


def test_a_model_without_layers(
    files: Paths, private: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """<ir_version: 9, opset_import: ["": 17]>
        plain (float[1, 3, 6, 6] x) => (float[1, 3, 6, 6] y) { y = Relu(x) }"""
    onnx.save(onnx.parser.parse_model(text), files["folder"] / "plain.onnx")
    words = (files["folder"] / "plain.onnx", "--data", files["samples"], "-o", "q.onnx")
    assert "no layer can be quantised" in refused(capsys, private, *words)


def test_bad_outputs(files: Paths, private: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (files["good"], "--data", files["samples"], "-o")
    assert "the output is the model" in refused(capsys, private, *words, files["good"])
    assert "no folder absent" in refused(capsys, private, *words, "absent/q.onnx")
    assert "it is a folder" in refused(capsys, private, *words, private)


def test_a_bound_on_classes_of_a_model_without_any(
    files: Paths, private: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """<ir_version: 9, opset_import: ["": 17]>
        one (float[1, 3, 6, 6] x) => (float[1, 1, 1, 1] y)
        <float[1, 3, 6, 6] w> { y = Conv(x, w) }"""
    model = onnx.parser.parse_model(text)
    del model.graph.initializer[:]
    weights = np.random.default_rng(0).normal(size=(1, 3, 6, 6)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, files["folder"] / "one.onnx")
    words = (files["folder"] / "one.onnx", "--data", files["samples"], "-o", "q.onnx")
    assert "has no classes" in refused(capsys, private, *words, "--top1", 0.9)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the machine has no /dev/full")
def test_a_full_disk(files: Paths, private: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (files["good"], "--data", files["samples"], "-o", "/dev/full")
    message = refused(capsys, private, *words)
    assert "cannot be written" in message
    assert "No space left" in message


def test_ctrl_c_leaves_nothing(files: Paths, private: Path) -> None:
    """The interrupt arrives after the command stored samples, while it waits for one more."""
    temporary = Path(tempfile.gettempdir())
    os.mkfifo(private / "more.npy")
    words = ["quantize", str(files["good"]), "--data", str(files["samples"]), "-o", "q.onnx"]
    with started(
        [sys.executable, "-m", "tcc", *words, "--check", "x=@more.npy"],
        cwd=private, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        pipe = (private / "more.npy").open("wb")  # waits until the command opens it
        assert len([*temporary.glob("*/inputs-*.npz")]) == 20
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        pipe.close()
    assert (process.returncode, errors.strip()) == (130, "interrupted")
    assert [path.name for path in private.iterdir()] == ["more.npy"]
    assert not [*temporary.iterdir()]
