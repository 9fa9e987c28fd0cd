"""Commands on a full disk print one error, exit with code 2, and leave no files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.lib.quantise_models import Classifier, write_samples

SOFTMAX = """<ir_version: 9, opset_import: ["": 17]>
    three (float[rows, 3] x) => (float[rows, 3] y) { y = Softmax(x) }"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with model.onnx, its artifact model.so, and a model with samples to
    quantise."""
    place = tmp_path_factory.mktemp("full")
    onnx.save(onnx.parser.parse_model(SOFTMAX), place / "model.onnx")
    Classifier().save(place / "good.onnx")
    write_samples(place / "samples", 4)
    command = (sys.executable, "-m", "tcc", "compile", "model.onnx", "-q")
    subprocess.run(command, cwd=place, check=True)
    return place


def on_disk(folder: Path, words: str, kibibytes: int, disk: Path) -> tuple[int, str, list[str]]:
    """Returns (exit code, stderr, remaining files) of a command on a disk of the given size in KiB.

    The disk holds the temporary files and everything that the command writes to OUT. A disk of 4
    KiB is full from the start. The disk is mounted for the command alone; the test is skipped where
    mounting is not allowed.
    """
    script = (
        'mount -t tmpfs -o size="$1"k tmpfs "$2" || exit 99; mkdir "$2/tmp"; disk="$2"\n'
        '[ "$1" -gt 4 ] || head -c 4096 /dev/zero >"$disk/filler"; shift 2\n'
        '"$@" >/dev/null; code=$?; find "$disk" -type f ! -name filler; exit $code'
    )
    command = (sys.executable, "-m", "tcc", *words.replace("OUT", str(disk)).split())
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed")
    process = subprocess.run(
        [unshare, "--user", "--map-root-user", "--mount",
         "sh", "-c", script, "sh", str(kibibytes), str(disk), *command],
        cwd=folder, env={**os.environ, "TMPDIR": str(disk / "tmp")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if process.returncode == 99 or process.stderr.startswith("unshare:"):
        pytest.skip(f"no disk can be mounted: {process.stderr}")
    return process.returncode, process.stderr, process.stdout.split()


@pytest.mark.parametrize(
    ("words", "kibibytes"),
    [
        ("compile model.onnx -o OUT/m.so", 16),
        ("compile model.onnx -o OUT/m.so", 80),  # the linker fails
        ("run model.so --input x=9000x3xf32=1 --output OUT/results", 32),
        ("profile model.so --input x=1x3xf32=1 --runs 3 -o OUT/page.html", 64),
        ("quantize good.onnx --data samples -o OUT/q.onnx", 8),  # samples cannot be stored
        ("quantize good.onnx --data samples -o OUT/q.onnx", 36),  # the worker cannot say why
        ("quantize good.onnx --data samples -o OUT/q.onnx", 48),  # the worker fails
        ("plan model.onnx --ranks 2 --input x=2x3 -o OUT/plan.json", 4),
        ("verify model.onnx model.so --input x=9000x3xf32", 32),
    ],
)
def test_a_full_disk_is_one_error(folder: Path, tmp_path: Path, words: str, kibibytes: int) -> None:
    code, text, files = on_disk(folder, words, kibibytes, tmp_path)
    assert code == 2, text
    assert text.count("error: ") == 1, text
    assert "Traceback" not in text
    assert files == []
