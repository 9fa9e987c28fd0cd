"""`tcc run` reads the files that users have: pictures, sounds, folders, labels."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from tcc import cli
from tcc.errors import UserError
from tcc.runtime.preprocess import embedded_settings

images = pytest.importorskip("PIL.Image", reason="the extra io (pillow) is not installed")
# A model that sums each of the three channels of a picture; the channels serve as classes.
SUMS = """<ir_version: 9, opset_import: ["": 17]>
    sums (float[1, 3, 6, 8] image) => (float[1, 3] y)
    { axes = Constant <value_ints = [2, 3]> ()  y = ReduceSum <keepdims = 0> (image, axes) }"""
SETTINGS = """version = 1
[inputs.image]
order = "bgr"
mean = [1.0, 2, 3]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with artifacts of `SUMS`, without and with settings, and with pictures."""
    folder = tmp_path_factory.mktemp("sums")
    onnx.save(onnx.parser.parse_model(SUMS), folder / "sums.onnx")
    (folder / "p.toml").write_text(SETTINGS)
    tcc.compile(folder / "sums.onnx").save(folder / "sums.so")
    tcc.compile(folder / "sums.onnx", preprocess=folder / "p.toml").save(folder / "set.so")
    (folder / "photos").mkdir()
    for number in range(2):
        images.fromarray(pixels(number)).save(folder / "photos" / f"{number}.png")
    (folder / "labels.txt").write_text("red\ngreen\nblue\n")
    return folder


def pixels(number: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)


def sums(number: int) -> list[float]:
    return pixels(number).astype(float).sum(axis=(0, 1)).tolist()


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """Returns the JSON that `tcc run` prints."""
    assert cli.execute(["run", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_picture_is_an_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = folder / "photos" / "0.png"
    output = printed(capsys, folder / "sums.so", "-i", f"image=@{photo}")["y"]
    np.testing.assert_array_equal(output["values"], [sums(0)])
    output = printed(capsys, folder / "sums.so", "-i", f"image=@{photo}:bgr,mean=2")["y"]
    np.testing.assert_array_equal(output["values"], [np.array(sums(0)[::-1]) - 2 * 48])


def test_settings_in_the_artifact_hold_where_the_text_has_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = folder / "photos" / "0.png"
    output = printed(capsys, folder / "set.so", "-i", f"image=@{photo}")["y"]
    np.testing.assert_array_equal(output["values"], [np.array(sums(0)[::-1]) - [48, 96, 144]])
    output = printed(capsys, folder / "set.so", "-i", f"image=@{photo}:rgb")["y"]
    np.testing.assert_array_equal(output["values"], [sums(0)])


def test_settings_change_the_manifest_alone(folder: Path) -> None:
    plain, preset = (tcc.load(folder / name).manifest for name in ("sums.so", "set.so"))
    entry = preset.pop("preprocess")
    assert entry["version"] == 1
    assert len(entry["sha256"]) == 64
    assert plain == preset
    assert embedded_settings({"preprocess": entry})["image"].mean == (1, 2, 3)


def test_a_folder_has_a_run_for_each_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (folder / "sums.so", "-i", f"image=@{folder / 'photos'}:rgb", "--output", tmp_path)
    records = printed(capsys, *words)
    assert [record["file"] for record in records] == ["0.png", "1.png"]
    for number, record in enumerate(records):
        output = record["outputs"]["y"]
        assert "values" not in output
        assert output["path"] == str(tmp_path / f"{number}.png" / "y.npy")
        np.testing.assert_array_equal(np.load(output["path"]), [sums(number)])
    assert cli.execute(["run", *map(str, words[:3])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(":")] == ["0.png:", "1.png:"]


def test_the_largest_values_have_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = f"image=@{folder / 'photos' / '1.png'}"
    words = (folder / "sums.so", "-i", photo, "--labels", folder / "labels.txt", "--top", "2")
    (row,) = printed(capsys, *words)["y"]["top"]
    ranked = sorted(zip(sums(1), (0, 1, 2), ("red", "green", "blue"), strict=True), reverse=True)
    assert [(item["value"], item["index"], item["label"]) for item in row] == ranked[:2]
    assert cli.execute(["run", *map(str, words)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [f"{ranked[0][0]:.6g}", str(ranked[0][1]), ranked[0][2]]
    assert len(lines) == 3


def test_labels_that_fit_no_output_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "none.txt").touch()
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\0")
    for name, words in (
        ("two.txt", "no output of numbers has a last axis of 2 entries: y (1, 3)"),
        ("none.txt", "the file is empty"),
        ("bytes.txt", "codec"),
        ("absent.txt", "No such file"),
    ):
        assert cli.execute(["run", str(folder / "sums.so"), "--labels", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["text.jpg", "cut.png", "empty", "absent.png"])
def test_bad_files_exit_with_2_and_leave_nothing(
    kind: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (folder / "photos" / "0.png").read_bytes()
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "cut.png").write_bytes(data[: len(data) // 2])
    (tmp_path / "empty").mkdir()
    words = ["-i", f"image=@{tmp_path / kind}", "--output", str(tmp_path / "out")]
    assert cli.execute(["run", str(folder / "sums.so"), *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"image=@{tmp_path / kind}" in err
    assert not (tmp_path / "out").exists()


def test_without_pillow_a_tool_is_missing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    photo = f"image=@{folder / 'photos' / '0.png'}"
    assert cli.execute(["run", str(folder / "sums.so"), "-i", photo]) == 3
    assert "tcc[io]" in capsys.readouterr().err


def test_standard_input_is_an_input(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = SimpleNamespace(buffer=io.BytesIO((folder / "photos" / "0.png").read_bytes()))
    monkeypatch.setattr(sys, "stdin", stream)
    output = printed(capsys, folder / "sums.so", "-i", "image=@-")["y"]
    np.testing.assert_array_equal(output["values"], [sums(0)])
    assert cli.execute(["run", str(folder / "sums.so"), "-i", "image=@-:bgr", "--nproc", "2"]) == 2
    assert "ranks cannot share standard input" in capsys.readouterr().err


def test_a_folder_is_for_a_run_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-i", f"image=@{folder / 'photos'}"]
    assert cli.execute(["profile", str(folder / "sums.so"), *words]) == 2
    assert "a folder is no input of one run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version = 1\n[inputs.image]\nbgr = true\n", "no setting 'bgr'"),
        ("version = 1\n[inputs.other]\norder = 'bgr'\n", "has no input 'other'"),
        ("version = 1\n[inputs.image]\nstd = [1, 0, 1]\n", "setting std is bad"),
        ("version = 1\n[inputs.image]\nmean = [1, [2]]\n", "setting mean is bad"),
        ("version = 1\n[inputs.image.order]\na = 1\n", "setting order is bad"),
        ("version = 2\n[inputs.image]\norder = 'bgr'\n", "have version 2"),
        ("[inputs.image]\norder = 'bgr'\n", "another form"),
        ("version = 1\nfoo = 3\n[inputs]\n", "no key 'foo'"),
        ("version = 1\ninputs = 3\n", "another form"),
        ("version = true\n[inputs]\n", "another form"),
        ("version = ", "cannot be read"),
        ("\0", "cannot be read"),
        ("a = " + "[" * 5000, "cannot be read"),
    ],
)
def test_bad_settings_of_a_compile_are_refused(
    text: str, words: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        tcc.compile(folder / "sums.onnx", preprocess=tmp_path / "p.toml")
    assert str(tmp_path / "p.toml") in caught.value.where


def test_a_file_beside_the_model_is_not_read(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(SUMS), tmp_path / "sums.onnx")
    words = ["compile", str(tmp_path / "sums.onnx"), "-o", str(tmp_path / "sums.so")]
    artifacts = []
    for text in (None, "broken"):
        for name in ("preprocess.toml", "sums.toml", "p.toml"):
            if text:
                (tmp_path / name).write_text(text)
        assert cli.execute(words) == 0
        artifacts.append((tmp_path / "sums.so").read_bytes())
    assert artifacts[0] == artifacts[1]
