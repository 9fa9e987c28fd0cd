"""`scripts/language`: its models, its workers, its table, and peers that cannot be installed."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from tcc.artifact import load
from tcc.driver import compile_model
from tcc.options import read_options

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from environment import environment
from language_peers import engines
from language_peers.engines import AbsentError
from language_peers.process import LanguageCase, LanguageWorker
from language_peers.shapes import STORED, LlamaShape, write_folder, write_model
from language_peers.table import Measured, model_table, ratio
from tcc.runtime.interleaved import best_ratio

TINY = LlamaShape(layers=2, width=64, heads=4, key_heads=2, hidden=96, vocabulary=300)
TOKENS = (5, 40, 7, 123, 9, 260)


# ---- models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", STORED)
def test_a_model_has_the_matrices_of_its_shape_in_its_type(tmp_path: Path, precision: str) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, TINY, precision)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, shape in TINY.matrices():
        assert tensors[name].tensor_type.name == STORED[precision]
        assert tuple(tensors[name].shape[::-1]) == shape
        values = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
        assert np.std(values) == pytest.approx(shape[1] ** -0.5, rel=0.1)
    assert {*tensors} == {name for name, _ in TINY.matrices()} | {*TINY.norms()}
    again = tmp_path / "again.gguf"
    write_model(again, TINY, precision)
    assert again.read_bytes() == path.read_bytes()
    assert sorted(tmp_path.iterdir()) == [again, path]


def test_the_default_shape_is_tinyllamas() -> None:
    shape = LlamaShape()
    elements = sum(rows * columns for _, (rows, columns) in shape.matrices())
    assert elements + shape.width * len([*shape.norms()]) == 1_100_048_384


# ---- workers -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageWorker]:
    folder = tmp_path_factory.mktemp("language")
    write_model(folder / "tiny.gguf", TINY, "f32")
    artifact = folder / "tiny.so"
    compile_model(folder / "tiny.gguf", read_options({}), artifact)
    python = Path(sys.executable)
    with LanguageWorker(python, "tcc_worker.py", artifact, "f32", 1, environment()) as process:
        assert process.peak_bytes([LanguageCase("prefill", 8)]) > 1 << 20
        yield process


def test_a_text_goes_on_token_by_token_as_at_once(worker: LanguageWorker) -> None:
    """Each call of `next` begins a new text, so that an uncleared cache would show."""
    first = worker.next_token(TOKENS)
    assert worker.next_token(TOKENS[:2]) != first
    assert worker.next_token(TOKENS) == first


def test_each_run_is_timed(worker: LanguageWorker) -> None:
    for case in (
        LanguageCase("prefill", 16),
        LanguageCase("rows", 4, 8),
        LanguageCase("decode", 1, 8),
    ):
        seconds = worker.seconds(case, 3)
        assert len(seconds) == 3
        assert min(seconds) > 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(("tcc_worker.py", "no-such.so"), "no-such.so"), (("no_worker.py", "m"), "no_worker.py")],
)
def test_a_worker_that_fails_says_why(
    tmp_path: Path, arguments: tuple[str, str], reason: str
) -> None:
    script, model = arguments
    python = Path(sys.executable)
    process = LanguageWorker(python, script, tmp_path / model, "f32", 1, environment())
    with process, pytest.raises(AbsentError, match=reason):
        process.load()


# ---- peers ---------------------------------------------------------------------------------------


def test_a_peer_that_pip_cannot_install_is_absent_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for Python imports nothing, and its pip prints pip's message."""
    stand_in = tmp_path / "bin" / "python"
    stand_in.parent.mkdir()
    stand_in.write_text(
        '#!/bin/sh\n[ "$1" = -c ] || echo "ERROR: No matching distribution"\nexit 1\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setattr(engines, "ENGINES", tmp_path)
    with pytest.raises(AbsentError, match="pip cannot install openvino-genai: ERROR: No matching"):
        engines.install(engines.PEERS["openvino"])


def test_a_folder_holds_the_model_of_the_gguf_file(tmp_path: Path) -> None:
    """The folder and the file are imported, and run on the same tokens."""
    write_model(tmp_path / "tiny.gguf", TINY, "f32")
    write_folder(tmp_path / "tiny", TINY)
    inputs = {f"cache.{n // 2}.{'kv'[n % 2]}": np.zeros((6, 2, 16), np.float32) for n in range(4)}
    inputs |= {"tokens": np.array(TOKENS), "rows": np.arange(len(TOKENS))}
    results = []
    for model in ("tiny.gguf", "tiny"):
        compiled = compile_model(tmp_path / model, read_options({}), tmp_path / f"{model}.so")
        arrays = {name: array.copy() for name, array in inputs.items()}
        results.append(load(compiled.path, 1).run(arrays)["logits"])
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4 * np.abs(results[0]).max())


# ---- table ---------------------------------------------------------------------------------------

CASES = (LanguageCase("prefill 128", 128), LanguageCase("at 128", 1, 128))


def figures() -> dict[str, Measured]:
    return {
        "tcc": Measured(
            "tcc", 0.2, 600_000_000, {"prefill 128": (0.2, 0.4, 0.3), "at 128": (0.01,)}
        ),
        "tcc bf16": Measured("tcc bf16", 0.3, 10**9, {"prefill 128": (0.1, 0.2, 0.15)}),
        "llama": Measured(
            "llama.cpp", 0.1, 5 * 10**8, {"prefill 128": (0.2, 0.1, 0.3)}, disturbed=2
        ),
        "openvino": Measured("OpenVINO", rounds={"prefill 128": (0.3, 0.3, 0.12)}),
        "ort": Measured("onnxruntime-genai", absent="it has no int8 for this model"),
    }


def test_a_ratio_pairs_the_faster_mode_with_the_fastest_peer_of_each_round() -> None:
    pairs = [(0.2, 0.1), (0.1, 0.2), (0.12, 0.15)]
    assert ratio(figures(), CASES[0]) == pytest.approx(statistics.median(a / b for a, b in pairs))
    assert ratio(figures(), CASES[1]) is None


def test_a_ratio_of_best_rounds_and_of_a_single_peer() -> None:
    assert ratio(figures(), CASES[0], best_ratio) == pytest.approx(0.1 / 0.1)
    ratios = [0.2 / 0.1, 0.1 / 0.2, 0.3 / 0.15]
    expected = pytest.approx(statistics.median(ratios))
    assert ratio(figures(), CASES[0], peer="llama") == expected
    assert ratio(figures(), CASES[0], peer="ort") is None


def test_the_table_has_speeds_ratios_and_who_is_absent() -> None:
    heading, titles, *rows, absent, _ = model_table("8 layers, int8", figures(), CASES)
    assert heading == "8 layers, int8"
    assert titles.split()[-5:] == ["load", "s", "peak", "MB", "disturbed"]
    assert rows[0].split() == ["tcc", "427", "100", "0.20", "600", "0"]
    assert rows[1].split() == ["tcc", "bf16", "853", "-", "0.30", "1000", "0"]
    assert rows[2].split() == ["llama.cpp", "640", "-", "0.10", "500", "2"]
    assert [row.split()[-2] for row in rows[4:]] == ["0.80", "1.00", "2.00", "1.50"]
    assert rows[4].split() == ["ratio", "0.80", "-"]
    assert [row[:24].strip() for row in rows[5:]] == [
        "of best rounds", "ratio, llama.cpp", "ratio, OpenVINO"
    ]  # fmt: skip
    assert absent == "no onnxruntime-genai: it has no int8 for this model"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--peers", "mlc"), "no peer 'mlc'; there are: llama, openvino, ort"),
        (("--precision", "int2"), "no precision 'int2'"),
        (("--layers", "0"), "--layers are positive numbers"),
        (("--tcc", "fast"), "--tcc is NAME=OPTIONS"),
    ],
)
def test_a_wrong_argument_is_named(arguments: tuple[str, ...], error: str) -> None:
    code = "import environment, runpy, sys; environment.enter = lambda *extras: None; "
    code += "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = (sys.executable, "-c", code, SCRIPTS / "language", *arguments)
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=SCRIPTS)
    assert result.returncode == 2
    assert error in result.stderr
