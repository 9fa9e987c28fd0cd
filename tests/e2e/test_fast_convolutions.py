"""Algorithms that trade rounding for speed are on by default, off on request, and bounded in
bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import tcc
from onnx import helper
from tcc.backends.cpu.backend import CpuBackend
from tcc.backends.cpu.detect import detect
from tcc.driver import CompileResult, compile_model
from tcc.options import NUMERICS, read_options
from tcc.target import parse_target

from tests.lib.agreement import FLOAT, Array, expected, model_of, session, value


def layers() -> onnx.ModelProto:
    """Returns two 3 x 3 convolutions of 48 channels, the second dilated, with a residual
    between."""
    rng = np.random.default_rng(0)

    def weights() -> Array:
        return (rng.standard_normal((48, 48, 3, 3)) / 20).astype(np.float32)

    pads = {"pads": [1, 1, 1, 1]}
    return model_of(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], **pads),
            helper.make_node("Add", ["c", "x"], ["s"]),
            helper.make_node("Relu", ["s"], ["r"]),
            helper.make_node("Conv", ["r", "v"], ["y"], pads=[2, 2, 2, 2], dilations=[2, 2]),
        ],
        [value("x", FLOAT, [1, 48, 22, 19])],
        [value("y", FLOAT, [1, 48, 22, 19])],
        {"w": weights(), "b": rng.standard_normal(48).astype(np.float32), "v": weights()},
    )


def compiled(folder: Path, name: str, **options: object) -> tuple[CompileResult, Array]:
    # the prices of one processor, so that the machine does not matter
    settings = read_options({"cpu": "x86-64-v3", **options})
    artifact = compile_model(layers(), settings, folder / f"{name}.so")
    x = np.random.default_rng(1).standard_normal((1, 48, 22, 19)).astype(np.float32)
    reference = expected(session(layers()), {"x": x})["y"]
    result = tcc.load(artifact.path, threads=2).run({"x": x})["y"]
    assert np.abs(result - reference).max() <= 1e-5 * np.abs(reference).max()
    return artifact, result


def test_strict_numerics_divide_by_scales() -> None:
    target = parse_target("cpu", "icelake-server", detect)
    codes = (CpuBackend(target, read_options({"numerics": n}), 0) for n in NUMERICS)
    assert [code.settings.requantize for code in codes] == [True, False]


def test_strict_numerics_and_bounded_weights(tmp_path: Path) -> None:
    default, fast = compiled(tmp_path, "default")
    strict, exact = compiled(tmp_path, "strict", numerics="strict")
    small, identical = compiled(tmp_path, "small", weight_growth=1)
    one, _ = compiled(tmp_path, "one", weight_growth=2.6)
    assert strict.summary.variants[0].kernels == small.summary.variants[0].kernels
    assert max(strict.summary.variants[0].growth, small.summary.variants[0].growth) < 1.1
    assert 1.5 < one.summary.variants[0].growth <= 2.6
    assert 4 < default.summary.variants[0].growth <= 5.1
    np.testing.assert_array_equal(exact, identical)
    assert not np.array_equal(exact, fast)
    check_bad_pixels(tcc.load(default.path, threads=2), tcc.load(strict.path, threads=2))


def check_bad_pixels(fast: tcc.Module, exact: tcc.Module) -> None:
    """Checks that a bad pixel changes the same results in default numerics as in strict
    numerics."""
    x = np.random.default_rng(2).standard_normal((1, 48, 22, 19)).astype(np.float32)
    clean = exact.run({"x": x})["y"]
    for number, bad in enumerate((1e4, 1e6, 1e30, -3.4e38, np.inf, np.nan)):
        spoilt = x.copy()
        spoilt[0, 7 * number, 9, 3 * number] = bad
        reference, output = (m.run({"x": spoilt})["y"] for m in (exact, fast))
        is_clean = reference == clean
        assert 0.5 < is_clean.mean() < 0.99
        assert np.abs(output - reference)[is_clean].max() <= 1e-5 * np.abs(clean).max()
        np.testing.assert_array_equal(np.isfinite(output), np.isfinite(reference))
