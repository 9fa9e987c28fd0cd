"""Trials in processes: right results pass, wrong results and damaged files fail, and times add
up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from tcc.cli.sweeping import peak_program
from tcc.driver import compile_model
from tcc.options import Options
from tcc.runtime.trial_runner import TrialRunner
from tcc.runtime.trials import Trial, TrialFailedError
from tcc.trials import TrialCompiler

TEXT = """
<ir_version: 9, opset_import: ["": 17]> m (float[40, 64] x) => (float[40, 48] y, int64[40] z) {
  p = MatMul(x, w)
  y = Softmax(p)
  z = ArgMax<axis = 1, keepdims = 0>(p)
}
"""


def saved(path: Path, change: float = 0.0) -> Path:
    """Saves the model, with `change` added to one of its 3,072 weights."""
    weights = np.random.default_rng(2).standard_normal((64, 48)).astype(np.float32)
    weights[3, 5] += change
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(proto, path)
    return path


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> TrialCompiler:
    return TrialCompiler(saved(tmp_path_factory.mktemp("model") / "m.onnx"), Options())


@pytest.fixture(scope="module")
def analytic(compiler: TrialCompiler, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return compiler.compile_trial({}, tmp_path_factory.mktemp("analytic") / "a.so")


@pytest.fixture
def runner(analytic: Trial, tmp_path: Path) -> Iterator[TrialRunner]:
    folder = tmp_path / "run"
    folder.mkdir()
    with peak_program(folder, 2) as peaks, TrialRunner(folder, drawn, 2, 1e-4, 2, peaks) as runner:
        runner.check(analytic)
        yield runner


def drawn(_: Path) -> dict[str, NDArray[np.float32]]:
    return {"x": np.random.default_rng(1).standard_normal((40, 64)).astype(np.float32)}


def compiled(text: str, place: Path) -> Path:
    """Compiles a model with the weights of the analytic model; returns the artifact's path."""
    proto = onnx.parser.parse_model(text)
    weights = np.random.default_rng(2).standard_normal((64, 48)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(proto, place.with_suffix(".onnx"))
    return compile_model(place.with_suffix(".onnx"), Options(), place.with_suffix(".so")).path


def sabotaged(analytic: Trial, path: Path) -> Trial:
    return Trial(path, {}, {}, analytic.steps, analytic.price)


def test_candidates_pass_and_their_times_add_up(
    compiler: TrialCompiler, analytic: Trial, runner: TrialRunner, tmp_path: Path
) -> None:
    choices = {k.site: k.space.near(k.analytic)[-1].text for k in compiler.kernels}
    trial = compiler.compile_trial(choices, tmp_path / "t.so")
    runner.check(trial)
    for candidate in (trial, analytic, trial):
        turn = runner.turn(candidate, 0.01)
        assert len(turn.steps) == len(candidate.steps)
        assert all(step >= 0 for step in turn.steps)
        assert 0 < sum(turn.steps) <= 1.2 * turn.seconds
        assert candidate.site_seconds(turn.steps).keys() == {k.site for k in compiler.kernels}
    runner.drop([trial])
    assert runner.turn(analytic, 0.0).seconds > 0
    assert runner.peak() > 1e6


def test_a_trial_with_another_weight_is_wrong(
    analytic: Trial, runner: TrialRunner, tmp_path: Path
) -> None:
    other = compile_model(saved(tmp_path / "o.onnx", 0.05), Options(), tmp_path / "o.so").path
    with pytest.raises(TrialFailedError) as failed:
        runner.check(sabotaged(analytic, other))
    assert failed.value.outcome == "wrong"
    assert "the output y differs" in str(failed.value.why)


def test_a_trial_that_cannot_be_loaded_crashes_and_the_next_one_runs(
    analytic: Trial, runner: TrialRunner, tmp_path: Path
) -> None:
    damaged = tmp_path / "d.so"
    damaged.write_bytes(analytic.path.read_bytes()[:5000])
    for step in (runner.check, lambda trial: runner.turn(trial, 0.0)):
        with pytest.raises(TrialFailedError) as failed:
            step(sabotaged(analytic, damaged))
        assert failed.value.outcome == "crashed"
    runner.check(analytic)
    assert runner.turn(analytic, 0.0).seconds > 0


# Plants an endless loop in a trial.
_ENDLESS = """
  n = Constant <value = int64 {1000000000000}> ()
  q = Loop (n, , p) <body = b (int64 i, bool c, float[40, 48] a) => (bool d, float[40, 48] e)
    { d = Identity(c) e = Sin(a) }>
"""


def test_a_trial_that_hangs_is_named_soon(
    analytic: Trial, runner: TrialRunner, tmp_path: Path
) -> None:
    text = TEXT.replace("  y = Softmax(p)", f"{_ENDLESS}  y = Softmax(q)")
    endless = sabotaged(analytic, compiled(text, tmp_path / "e"))
    runner._limit = 2.0  # on a busy machine the limit is longer
    for step in (runner.check, lambda trial: runner.turn(trial, 0.0)):
        start = time.monotonic()
        with pytest.raises(TrialFailedError) as failed:
            step(endless)
        assert failed.value.outcome == "hung"
        assert "did not answer within 2 s" in failed.value.why
        assert time.monotonic() - start < 60
    runner.check(analytic)


def test_a_limit_grows_with_the_price_of_a_trial(analytic: Trial, runner: TrialRunner) -> None:
    assert analytic.price > 0
    dear = replace(analytic, price=3 * analytic.price)
    cheap = replace(analytic, price=analytic.price / 3)
    assert runner._patience(dear, 0.5) == pytest.approx(0.5 + 3 * runner._limit)
    assert runner._patience(cheap, 0.0) == pytest.approx(runner._limit)
    assert 2 < runner._limit < 600
