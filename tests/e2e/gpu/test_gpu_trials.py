"""Sweeps for GPUs compile the right candidates and decide by their times.

No GPU runs here: a clock of predicted prices stands for one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import onnx
import pytest
from tcc.artifact import read_manifest
from tcc.cli import sweeping
from tcc.cli.commands import execute
from tcc.driver import compile_model
from tcc.options import read_options
from tcc.runtime import gpu_devices
from tcc.runtime.gpu_devices import missing_device
from tcc.runtime.trials import Trial, Turn
from tcc.trials import TrialCompiler
from tcc.tune.lock import Lock
from tcc.tune.lock_file import lock_text
from tcc.tune.sweep import Effort, Sweep
from tcc.tune.verdicts import decide

OPTIONS = {"target": "cuda:sm_80", "jobs": 2}
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[16, 8192] x, float[8192, 512] w) => (float[16, 512] y) {
  a = MatMul(x, w)
  y = Relu(a)
}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


@pytest.fixture(scope="module")
def compiler(model: Path) -> Iterator[TrialCompiler]:
    with ExitStack() as resources:
        yield TrialCompiler(model, read_options(OPTIONS), resources)


def kernels_of(path: Path) -> object:
    (variant,) = read_manifest(path)["variants"]
    return variant["kernels"], variant["builds"]


def test_a_trial_has_the_kernels_of_a_compile_with_its_choices(
    compiler: TrialCompiler, model: Path, tmp_path: Path
) -> None:
    plain = compiler.compile_trial({}, tmp_path / "plain.so")
    free = compile_model(model, read_options(OPTIONS), tmp_path / "free.so").path
    assert kernels_of(plain.path) == kernels_of(free)
    choices = {}
    for kernel in compiler.kernels:
        candidates = kernel.space.near(kernel.analytic)
        assert len(candidates) > 5
        assert len({c.text for c in candidates}) == len(candidates)
        choices[kernel.site] = min(candidates, key=lambda c: c.price).text
    trial = compiler.compile_trial(choices, tmp_path / "trial.so")
    assert (trial.refused, trial.removed, trial.ops) == ({}, (), {})
    assert {site for site in trial.steps if site} == choices.keys()
    lines = (json.dumps({"site": s, "alternative": text}) for s, text in choices.items())
    (tmp_path / "choices.jsonl").write_text("\n".join(lines))
    options = read_options({**OPTIONS, "choices": str(tmp_path / "choices.jsonl")})
    forced = compile_model(model, options, tmp_path / "forced.so").path
    assert kernels_of(trial.path) == kernels_of(forced) != kernels_of(free)
    again = compiler.compile_trial({}, tmp_path / "again.so")
    assert kernels_of(again.path) == kernels_of(free)
    assert again.price == plain.price


def test_a_trial_can_divide_a_sum_otherwise(compiler: TrialCompiler, tmp_path: Path) -> None:
    (decision,) = [d for d in compiler.decisions if d.op.startswith("split-k: ")]
    trial = compiler.compile_trial({decision.site: decision.alternatives[0]}, tmp_path / "t.so")
    assert trial.refused == {}
    plain = compiler.compile_trial({}, tmp_path / "plain.so")
    assert kernels_of(trial.path) != kernels_of(plain.path)


class Clock:
    """Stands for a GPU on which the analytic kernel of a site takes twice its predicted time."""

    def __init__(self, compiler: TrialCompiler, site: str) -> None:
        self._compiler, self._site, self.now = compiler, site, 0.0

    def clock(self) -> float:
        return self.now

    def check(self, trial: Trial) -> None:
        assert trial.path.exists()

    def turn(self, trial: Trial, seconds: float) -> Turn:
        steps = tuple(
            1e-4 * (2 if site == self._site and site not in trial.choices else 1)
            for site in trial.steps
        )
        self.now += max(seconds, 1.0)
        return Turn(sum(steps), steps)

    def drop(self, trials: object) -> None:
        pass

    def peak(self) -> float:
        return 1e9


def test_a_sweep_writes_a_lock_that_a_compile_takes(
    compiler: TrialCompiler, model: Path, tmp_path: Path
) -> None:
    kernel = compiler.kernels[0]
    world = Clock(compiler, kernel.site)
    sweep = Sweep(
        compiler.kernels, compiler.home, compiler.compile_trial, world, tmp_path,
        Effort(150.0, trials=1, search=4, confirm=10, challengers=1),
        progress=lambda line: None, clock=world.clock,
    )  # fmt: skip
    verdicts = decide([*sweep.measurements()], compiler.home)
    rows = {entry.site: entry for entry in verdicts.entries}
    assert rows[kernel.site].verdict == "changed"
    assert {rows[k.site].verdict for k in compiler.kernels[1:]} == {"kept"}
    lock = tmp_path / "tcc.lock.json"
    lock.write_text(lock_text(Lock().with_measured((compiler.home, e) for e in verdicts.entries)))
    options = read_options({**OPTIONS, "tuned": str(lock), "require_tuned": 0.0})
    result = compile_model(model, options, tmp_path / "tuned.so")
    assert result.summary.tuned is not None
    assert (result.summary.tuned.applied, result.summary.tuned.unfit) == (len(rows), 0)
    choice = rows[kernel.site].alternative
    trial = compiler.compile_trial({kernel.site: choice or ""}, tmp_path / "trial.so")
    assert kernels_of(trial.path) == kernels_of(result.path)


# ---- machines without a GPU ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_a_machine_without_a_driver_is_told_before_anything_is_compiled(
    model: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_devices, "_opened", lambda libraries: None)
    monkeypatch.setattr(sweeping, "TrialCompiler", None)
    assert execute(["tune", str(model), "--target", kind]) == 3
    error = capsys.readouterr().err
    assert "nothing can be measured here" in error
    assert f"at: --target {kind}" in error
    assert "no driver was found (lib" in error
    assert "--pin needs none" in error
    assert "Traceback" not in error


class Driver:
    """Stands for a driver library that has `count` devices, or fails to start."""

    def __init__(self, count: int, failed: int = 0, old: bool = False) -> None:
        self._count, self._failed, self._old = count, failed, old

    def __getitem__(self, name: str) -> object:
        if self._old:
            raise AttributeError(name)
        return self._start if name.endswith("Init") else self._devices

    def _start(self, flags: int) -> int:
        return self._failed

    def _devices(self, count: object) -> int:
        count._obj.value = self._count  # type: ignore[attr-defined]
        return 0


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        (Driver(1), ""),
        (Driver(0), "finds no GPU"),
        (Driver(1, failed=100), "finds no GPU"),
        (Driver(1, old=True), "too old (cuInit)"),
    ],
)
def test_a_driver_must_start_and_have_a_device(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, why: str
) -> None:
    monkeypatch.setattr(gpu_devices, "_opened", lambda libraries: driver)
    assert why in missing_device("cuda")
    assert (missing_device("cuda") == "") == (why == "")
    assert missing_device("cpu") == missing_device("c") == ""
