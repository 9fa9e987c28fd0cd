"""Trials of a small model compute what the model says, and compile only new kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from tcc.artifact import load
from tcc.backends.workers import WorkerPool
from tcc.driver import compile_model
from tcc.errors import UserError
from tcc.options import read_options
from tcc.runtime.trials import Trial, Turn
from tcc.trials import TrialCompiler
from tcc.tune.candidates import TunedKernel
from tcc.tune.lock import Lock
from tcc.tune.lock_file import lock_text
from tcc.tune.measurement import Measurement
from tcc.tune.sweep import Effort, Sweep
from tcc.tune.verdicts import decide

ROWS, DEPTH, COLUMNS = 24, 96, 80
TEXT = f"""
<ir_version: 9, opset_import: ["": 17]> m (float[{ROWS}, {DEPTH}] x) => (
    float[{ROWS}, {COLUMNS}] y, float[{COLUMNS}, {ROWS}] z) {{
  p = MatMul(x, w)
  r = Relu(p)
  y = Softmax(r)
  t = Transpose<perm = [1, 0]>(r)
  z = Exp(t)
}}
"""
Array = NDArray[np.float32]


def weights() -> Array:
    rng = np.random.default_rng(5)
    return (0.2 * rng.standard_normal((DEPTH, COLUMNS))).astype(np.float32)


def oracle(x: Array) -> dict[str, NDArray[np.float64]]:
    """Returns the outputs in float64."""
    r = np.maximum(x.astype(np.float64) @ weights().astype(np.float64), 0)
    powers = np.exp(r - r.max(axis=1, keepdims=True))
    return {"y": powers / powers.sum(axis=1, keepdims=True), "z": np.exp(r.T)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("model") / "m.onnx"
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.append(numpy_helper.from_array(weights(), "w"))
    onnx.save(proto, path)
    return path


@pytest.fixture
def compiler(model: Path) -> TrialCompiler:
    return TrialCompiler(model, read_options({"cpu": "x86-64-v3"}))


def test_every_candidate_computes_the_result_of_the_model(
    compiler: TrialCompiler, tmp_path: Path
) -> None:
    x = np.random.default_rng(1).standard_normal((ROWS, DEPTH)).astype(np.float32)
    expected = oracle(x)
    neighbours = {k.site: [c.text for c in k.space.near(k.analytic)] for k in compiler.kernels}
    assert all(neighbours.values())
    refusals = 0
    for number in range(max(map(len, neighbours.values()))):
        choices = {site: texts[number] for site, texts in neighbours.items() if number < len(texts)}
        trial = compiler.compile_trial(choices, tmp_path / f"{number}.so")
        refusals += len(trial.refused)
        outputs = load(trial.path, 2).run({"x": x})
        for name, array in expected.items():
            np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-6)
    assert refusals < sum(map(len, neighbours.values())) / 2


def test_a_trial_has_the_bytes_that_do_not_depend_on_earlier_trials(
    compiler: TrialCompiler, model: Path, tmp_path: Path
) -> None:
    analytic = compiler.compile_trial({}, tmp_path / "t.so").path.read_bytes()
    choices = {k.site: k.space.near(k.analytic)[0].text for k in compiler.kernels}
    changed = compiler.compile_trial(choices, tmp_path / "t.so").path.read_bytes()
    assert changed != analytic
    assert compiler.compile_trial({}, tmp_path / "t.so").path.read_bytes() == analytic
    other = TrialCompiler(model, read_options({"cpu": "x86-64-v3"}))
    assert other.compile_trial(choices, tmp_path / "t.so").path.read_bytes() == changed


def test_only_new_kernels_are_compiled(
    compiler: TrialCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Any] = []
    submit = WorkerPool.submit

    def counted(pool: WorkerPool, request: Any) -> int:
        requests.append(request)
        return submit(pool, request)

    monkeypatch.setattr(WorkerPool, "submit", counted)
    compiler.compile_trial({}, tmp_path / "a.so")
    assert len(requests) == len(compiler.kernels)
    first = compiler.kernels[0]
    choices = {first.site: first.space.near(first.analytic)[0].text}
    compiler.compile_trial(choices, tmp_path / "b.so")
    assert len(requests) == len(compiler.kernels) + 1
    compiler.compile_trial({}, tmp_path / "c.so")
    compiler.compile_trial(choices, tmp_path / "d.so")
    assert len(requests) == len(compiler.kernels) + 1


def test_a_choice_of_another_kernel_is_refused(compiler: TrialCompiler, tmp_path: Path) -> None:
    first, second = compiler.kernels[:2]
    trial = compiler.compile_trial({first.site: second.analytic}, tmp_path / "a.so")
    assert trial.refused.keys() == {first.site}
    assert "loop" in trial.refused[first.site]


def test_each_step_has_its_kernel(compiler: TrialCompiler, tmp_path: Path) -> None:
    trial = compiler.compile_trial({}, tmp_path / "a.so")
    assert {s for s in trial.steps if s} == {k.site for k in compiler.kernels}
    seconds = trial.site_seconds([float(n) for n in range(len(trial.steps))])
    assert sum(seconds.values()) == sum(n for n, s in enumerate(trial.steps) if s)


def test_kernels_that_the_user_forces_are_not_tuned(
    compiler: TrialCompiler, model: Path, tmp_path: Path
) -> None:
    first = compiler.kernels[0]
    text = first.space.near(first.analytic)[0].text
    line = f'{{"site": "{first.site}", "alternative": "{text}"}}\n'
    (tmp_path / "choices.jsonl").write_text(line)
    options = read_options({"cpu": "x86-64-v3", "choices": str(tmp_path / "choices.jsonl")})
    forced = TrialCompiler(model, options)
    assert {k.site for k in forced.kernels} == {k.site for k in compiler.kernels[1:]}
    plain = compiler.compile_trial({first.site: text}, tmp_path / "t.so").path.read_bytes()
    assert forced.compile_trial({}, tmp_path / "t.so").path.read_bytes() == plain


def test_only_one_cpu_is_measured(model: Path) -> None:
    with pytest.raises(UserError, match="kernels of one processor or GPU"):
        TrialCompiler(model, read_options({"target": "c"}))


# ---- a handicap, with a simulated clock ---------------------------------------------------------


class Priced:
    """Runs nothing: a kernel takes the seconds of its price, and the clock is simulated.

    `bad` has the choices of the compile, which the sweep takes for the analytic ones.
    """

    def __init__(self, compiler: TrialCompiler, bad: dict[str, str]) -> None:
        self.compiler, self.bad, self.now = compiler, bad, 0.0
        self.spaces: dict[str, Any] = {k.site: k.space for k in compiler.kernels}

    def clock(self) -> float:
        return self.now

    def compile_trial(self, choices: Any, output: Path) -> Trial:
        self.now += 1
        return self.compiler.compile_trial({**self.bad, **choices}, output)

    def check(self, trial: Trial) -> None:
        pass

    def drop(self, trials: Any) -> None:
        pass

    def peak(self) -> float:
        return 1e9

    def turn(self, trial: Trial, seconds: float) -> Turn:
        self.now += seconds
        choices = {**self.bad, **trial.choices}
        steps = tuple(self.price(s, choices[s]) if s else 0.0 for s in trial.steps)
        return Turn(sum(steps), steps)

    def price(self, site: str, text: str) -> float:
        return float(self.spaces[site].price_of(text))


def test_a_sweep_regains_a_planted_handicap_and_a_compile_takes_its_lock(
    compiler: TrialCompiler, model: Path, tmp_path: Path
) -> None:
    neighbours = {k.site: k.space.near(k.analytic) for k in compiler.kernels}
    bad = {site: max(c, key=lambda c: c.price).text for site, c in neighbours.items()}
    world = Priced(compiler, bad)
    handicapped = [TunedKernel(k.site, k.op, bad[k.site], k.space) for k in compiler.kernels]
    loss = [world.price(k.site, bad[k.site]) / world.price(k.site, k.analytic)
            for k in compiler.kernels]  # fmt: skip
    assert max(loss) > 1.5
    measurements: list[Measurement] = []
    sweep = Sweep(
        handicapped, compiler.home, world.compile_trial, world, tmp_path, Effort(400.0),
        progress=lambda line: None, clock=world.clock,
    )  # fmt: skip
    measurements.extend(sweep.measurements())
    verdicts = decide(measurements, compiler.home)
    regained = {e.site: e.gain[0] for e in verdicts.entries if e.gain is not None}
    for kernel, factor in zip(compiler.kernels, loss, strict=True):
        if factor > 1.05:
            assert regained[kernel.site] > 1 + 0.9 * (factor - 1)
    lock = tmp_path / "tcc.lock.json"
    lock.write_text(lock_text(Lock().with_measured((compiler.home, e) for e in verdicts.entries)))
    options = read_options({"cpu": "x86-64-v3", "tuned": str(lock)})
    tuned = compile_model(model, options, tmp_path / "m.so").summary.tuned
    assert tuned is not None
    assert (tuned.applied, tuned.unfit) == (len(verdicts.entries), 0)
