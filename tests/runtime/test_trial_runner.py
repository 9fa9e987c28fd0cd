"""Trials in processes: right results pass, wrong ones and damaged files fail, times add up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from tcc.cli.sweeping import _peak_program
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
    """Saves the model; `change` is added to one of its 3,072 weights."""
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
    with _peak_program(folder, 2) as peaks, TrialRunner(folder, drawn, 2, 1e-4, 2, peaks) as runner:
        runner.check(analytic)
        yield runner


def drawn(_: Path) -> dict[str, NDArray[np.float32]]:
    return {"x": np.random.default_rng(1).standard_normal((40, 64)).astype(np.float32)}


def sabotaged(analytic: Trial, path: Path) -> Trial:
    return Trial(path, {}, {}, analytic.steps, analytic.price)


def test_candidates_pass_and_their_times_add_up(
    compiler: TrialCompiler, analytic: Trial, runner: TrialRunner, tmp_path: Path
) -> None:
    choices = {k.site: k.space.near(k.analytic)[-1].text for k in compiler.kernels}
    trial = compiler.compile_trial(choices, tmp_path / "t.so")
    runner.check(trial)
    for each in (trial, analytic, trial):
        turn = runner.turn(each, 0.01)
        assert len(turn.steps) == len(each.steps)
        assert all(step >= 0 for step in turn.steps)
        assert 0 < sum(turn.steps) <= 1.2 * turn.seconds
        assert each.site_seconds(turn.steps).keys() == {k.site for k in compiler.kernels}
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
