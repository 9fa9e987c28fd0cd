"""Prices beside measured times: statistics of invented numbers, and one kernel from end to end."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from tcc.artifact import read_manifest
from tcc.driver import compile_model
from tcc.options import read_options

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import price_main
import price_report
from price_kernels import KernelBuffer, planned, sample
from price_times import KernelCode, KernelMemory, RoundEffort, Schedules

Array = NDArray[np.float32]
ROWS, DEPTH, COLUMNS = 96, 64, 160
_HEAD = '<ir_version: 9, opset_import: ["": 17]> m'
PRODUCT = (
    f"{_HEAD} (float[{ROWS}, {DEPTH}] x, float[{DEPTH}, {COLUMNS}] w) => (float[{ROWS}, {COLUMNS}]"
    " y) {p = MatMul(x, w) y = Relu(p)}"
)
ATTENTION = (
    f"{_HEAD} (float[3, 80, 32] q, float[3, 32, 80] k, float[3, 80, 32] v) => (float[3, 80, 32] y)"
    " {s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v)}"
)


def product(path: Path) -> Path:
    """Writes the model y = relu(x w), where w is a constant."""
    w = np.random.default_rng(0).standard_normal((DEPTH, COLUMNS)).astype(np.float32)
    proto = onnx.parser.parse_model(PRODUCT.replace(f", float[{DEPTH}, {COLUMNS}] w", ""))
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    onnx.save(proto, path)
    return path


# ---- statistics ---------------------------------------------------------------------------------


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Returns Spearman's rank correlation by its definition: ranks by counting smaller values,
    correlated by covariances."""
    x, y = (
        np.array([sum(u < v for u in side) + sum(u == v for u in side) / 2 for v in side])
        for side in (a, b)
    )
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / np.sqrt((x @ x) * (y @ y)))


def kernel(prices: list[float], seconds: list[float], launches: int = 1) -> dict[str, Any]:
    return {
        "name": "k",
        "launches": launches,
        "space": 99,
        "prices": {"1": prices},
        "seconds": {"1": seconds},
        "calm": {"1": [True, False]},
    }


def results(*kernels: dict[str, Any]) -> dict[str, Any]:
    words = ("processor", "machine", "date", "model", "precision", "sample", "seed", "rounds")
    return price_report.completed(
        {w: w for w in words} | {"threads": [1], "left_out": {}, "kernels": list(kernels)}
    )


def test_ranks_correlate_from_one_end_to_the_other() -> None:
    prices = [3.0, 1.0, 4.0, 1.5, 9.0]
    assert price_report.spearman(prices, [p**3 for p in prices]) == pytest.approx(1)
    assert price_report.spearman(prices, [1 / p for p in prices]) == pytest.approx(-1)
    assert price_report.spearman(prices, [2.0] * 5) is None
    assert price_report.spearman(prices[:2], prices[:2]) is None


def test_equal_values_share_a_rank() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        a, b = (rng.integers(0, 5, 12).astype(float).tolist() for _ in range(2))
        assert price_report.spearman(a, b) == pytest.approx(rank_correlation(a, b))


def test_regret_is_over_the_best_that_was_measured() -> None:
    best = price_report.kernel_figures(kernel([2.0, 1.0, 3.0], [4.0, 5.0, 6.0]), "1")
    assert (best["ratio"], best["regret"], best["first_regret"]) == (2.0, 1.0, 1.25)
    worst = price_report.kernel_figures(kernel([1.0, 2.0, 3.0], [6.0, 5.0, 4.0]), "1")
    assert (worst["rank"], worst["regret"]) == (pytest.approx(-1), 1.5)


def test_the_error_of_a_model_is_taken_over_its_kernels() -> None:
    good = [kernel([1.0, 2.0, 3.0], [1.1, 2.0, 4.0], 2) for _ in range(9)]
    run_results = results(*good, kernel([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]))
    figures = run_results["figures"]["1"]
    assert figures["hold"] == pytest.approx(0.9)
    assert figures["seconds"] == pytest.approx(9 * 2 * 1.1 + 3.0)
    assert figures["best_seconds"] == pytest.approx(9 * 2 * 1.1 + 1.0)
    assert price_report.met(run_results["figures"])
    worse = results(*good[1:], run_results["kernels"][-1])
    assert not price_report.met(worse["figures"])
    assert price_report.together([run_results, worse])["1"]["hold"] == pytest.approx(17 / 19)
    assert not price_report.met(price_report.together([run_results, worse]))
    head, *rows = price_report.table(run_results).split("threads: 1\n")[1].splitlines()
    assert len({len(row) for row in (head, *rows[:10])}) == 1
    assert rows[0].split() == ["k", "2", "1100000.0", "10%", "1.10", "1.00", "1.00", "1.00",
                               "3/99", "1/2"]  # fmt: skip


# ---- one kernel ---------------------------------------------------------------------------------


def test_a_kernel_from_end_to_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(price_main, "TIMES_FOLDER", tmp_path / "kept")
    model = product(tmp_path / "m.onnx")
    brief = ["--sample=5", "--rounds=2", "--seconds=1e-4", "--patience=0", "--threads=2"]
    words = [str(model), "--only=MatMul", *brief]
    assert price_main.main(None, [*words, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    (row,) = report["kernels"]
    assert len(set(row["schedules"])) == len(row["schedules"]) > 3
    assert row["space"] > 10  # fewer on processors with short vectors
    # the first price is that of the chosen schedule, which artifacts contain
    compile_model(model, read_options({}), tmp_path / "m.so")
    (fact,) = read_manifest(tmp_path / "m.so")["variants"][0]["kernels"]
    assert row["prices"]["2"][0] == pytest.approx(fact["seconds"], rel=1e-3)
    assert row["name"] == f"0: {fact['source']}"
    for threads in ("1", "2"):
        prices, seconds = row["prices"][threads], row["seconds"][threads]
        assert len(prices) == len(seconds) == len(row["schedules"])
        assert all(1e-7 < s < 1 for s in seconds)
        figures = row["figures"][threads]
        assert figures["ratio"] == pytest.approx(seconds[0] / prices[0])
        assert figures["rank"] == pytest.approx(rank_correlation(prices, seconds))
        assert figures["regret"] == pytest.approx(seconds[0] / min(seconds))
    # times are kept: the same again, now as a table
    assert price_main.main(None, words) == 0
    text, said = capsys.readouterr()
    assert text == price_report.table(report) + "\n"
    assert "lacks: " in text.splitlines()[0]
    assert "m 1/1: 0: " in said


def test_an_unknown_kernel_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert price_main.main(None, [str(product(tmp_path / "m.onnx")), "--only=other"]) == 2
    assert "--only other" in capsys.readouterr().err


def attention(q: Array, k: Array, v: Array) -> Array:
    powers = np.exp(q @ k)
    return powers / powers.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize(
    ("text", "meant"),
    [(PRODUCT, lambda x, w: np.maximum(x @ w, 0)), (ATTENTION, attention)],
    ids=("product", "attention"),
)
def test_all_schedules_compute_the_same(
    text: str, meant: Callable[..., Array], tmp_path: Path
) -> None:
    proto = onnx.parser.parse_model(text)
    onnx.save(proto, tmp_path / "m.onnx")
    model = planned(tmp_path / "m.onnx", read_options({}))
    (only_kernel,) = model.kernels
    drawn = sample(model, only_kernel, 6, seed=3)
    assert len(drawn.candidates) > 5
    assert drawn.refused == 0
    code = KernelCode(drawn.candidates, model.backend.target, weights=0)
    running = Schedules(code, tmp_path)
    shapes = [
        tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        for value in (*proto.graph.input, *proto.graph.output)
    ]
    *input_places, result = (
        np.frombuffer((ctypes.c_float * prod(shape)).from_address(int(at)), np.float32)
        for shape, at in zip(shapes, running.memory.table[0], strict=True)
    )
    rng = np.random.default_rng(0)
    for place in input_places:
        place[:] = rng.standard_normal(len(place), np.float32)
    expected = meant(
        *(place.reshape(shape) for place, shape in zip(input_places, shapes, strict=False))
    )
    for number in range(len(drawn.candidates)):
        result[:] = np.nan
        running.turn(number, threads=1, seconds=0)
        np.testing.assert_allclose(result, expected.ravel(), rtol=1e-3, atol=1e-4)


def test_each_time_is_that_of_its_schedule(tmp_path: Path) -> None:
    class Calm:
        """Answers disturbed twice, then calm; nobody waits."""

        looks = 0

        def calm(self) -> bool:
            self.looks += 1
            return self.looks > 2

        def patient(self) -> bool:
            return False

    model = planned(product(tmp_path / "m.onnx"), read_options({}))
    drawn = sample(model, model.kernels[0], 2, seed=0)
    code = KernelCode(drawn.candidates, model.backend.target, weights=0)
    code.units[2] = 0  # nothing to do: far below the others
    calm: Any = Calm()
    rounds = Schedules(code, tmp_path).rounds(RoundEffort(2, 1e-4), 1, calm)
    assert rounds.calm == [False, True]
    assert all(min(times[:2]) > 3 * times[2] > 0 for times in rounds.seconds)
    assert rounds.medians() == rounds.seconds[1]


def test_constants_rotate_as_in_a_model_and_nothing_overlaps() -> None:
    constant, other = KernelBuffer(5 << 20, True, "f32"), KernelBuffer(1000, False, "i64")
    buffers_of_kernels = [[other, constant], [other, KernelBuffer(4 << 20, True, "f32")]]
    table = (memory := KernelMemory(buffers_of_kernels, rotated=48 << 20)).table
    assert len(set(table[:, 0])) == 1
    assert len(set(table[:, 1])) == len(table) == 48 // 5
    spans = sorted(
        {(int(a), b.bytes) for row in table for a, b in zip(row, (other, constant), strict=True)}
    )
    assert all(start + size <= after for (start, size), (after, _) in pairwise(spans))
    assert ctypes.c_float.from_address(int(table[-1, 1]) + (5 << 20) - 4).value == np.float32(1e-3)
    assert ctypes.c_int64.from_address(int(table[0, 0])).value == 0
    del memory
    assert len(KernelMemory(buffers_of_kernels, rotated=6 << 20).table) == 1
