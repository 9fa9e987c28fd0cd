"""Trials of decisions above schedules give right results, equal bytes, and a lock that a compile
takes."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from onnx import numpy_helper
from tcc.artifact import load
from tcc.cli.tune import tune
from tcc.driver import compile_model, model_choices
from tcc.options import read_options
from tcc.runtime.summary_text import lock_text as counts_text
from tcc.runtime.trials import Trial, Turn
from tcc.trials import TrialCompiler
from tcc.tune.lock import Lock
from tcc.tune.lock_file import lock_text, read_lock
from tcc.tune.measurement import FIRST, SEARCH, TIMED
from tcc.tune.records import read_records
from tcc.tune.sweep import Effort, Sweep
from tcc.tune.verdicts import decide

CHANNELS, SIZE = 32, 40
TEXT = f"""
<ir_version: 9, opset_import: ["": 17]> m (float[1, {CHANNELS}, {SIZE}, {SIZE}] x) => (
    float[1, {CHANNELS}, {SIZE}, {SIZE}] y) {{
  p = Conv<pads = [1, 1, 1, 1]>(x, w)
  r = Relu(p)
  q = Conv<pads = [1, 1, 1, 1]>(r, v)
  y = Relu(q)
}}
"""
CPU = {"cpu": "x86-64-v3"}
F32 = NDArray[np.float32]


def weights(name: str) -> F32:
    rng = np.random.default_rng(ord(name))
    return (0.1 * rng.standard_normal((CHANNELS, CHANNELS, 3, 3))).astype(np.float32)


def images() -> F32:
    rng = np.random.default_rng(1)
    return rng.standard_normal((1, CHANNELS, SIZE, SIZE)).astype(np.float32)


@cache
def oracle() -> NDArray[np.float64]:
    """Returns the output in float64, as a sum of shifted images, one for each weight of a
    filter."""
    value = images()[0].astype(np.float64)
    for name in "wv":
        filters, padded = weights(name).astype(np.float64), np.pad(value, ((0, 0), (1, 1), (1, 1)))
        value = np.zeros_like(value)
        for i in range(3):
            for j in range(3):
                shifted = padded[:, i : i + SIZE, j : j + SIZE]
                value += np.einsum("oc,chw->ohw", filters[:, :, i, j], shifted)
        value = np.maximum(value, 0)
    return value[None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("model") / "m.onnx"
    proto = onnx.parser.parse_model(TEXT)
    for name in "wv":
        proto.graph.initializer.append(numpy_helper.from_array(weights(name), name))
    onnx.save(proto, path)
    return path


@pytest.fixture(scope="module")
def compiler(model: Path) -> TrialCompiler:
    return TrialCompiler(model, read_options(CPU))


def the(compiler: TrialCompiler, kind: str) -> Any:
    """Returns the decision of a kind; the model has a single one with alternatives."""
    (decision,) = [d for d in compiler.decisions if d.op.startswith(f"{kind}: ")]
    return decision


def forced(model: Path, folder: Path, site: str, text: str) -> TrialCompiler:
    """Returns the compiler of the model with one line of --choices."""
    line = json.dumps({"site": site, "alternative": text})
    (folder / "choices.jsonl").write_text(line)
    return TrialCompiler(model, read_options({**CPU, "choices": str(folder / "choices.jsonl")}))


def test_the_decisions_are_tried_by_their_predicted_time(compiler: TrialCompiler) -> None:
    assert {d.op.partition(":")[0] for d in compiler.decisions} >= {"join", "join-part"}
    seconds = [decision.seconds for decision in compiler.decisions]
    assert seconds == sorted(seconds, reverse=True)
    kernels = {kernel.site for kernel in compiler.kernels}
    assert kernels.isdisjoint(decision.site for decision in compiler.decisions)


def test_every_alternative_computes_the_result_of_the_model(
    compiler: TrialCompiler, tmp_path: Path
) -> None:
    expected = oracle()
    plain = compiler.compile_trial({}, tmp_path / "p.so").path.read_bytes()
    kernels = {k.site: k.space.near(k.analytic)[0].text for k in compiler.kernels}
    differences = 0
    for decision in compiler.decisions:
        for text in decision.alternatives:
            trial = compiler.compile_trial({decision.site: text, **kernels}, tmp_path / "t.so")
            assert decision.site not in {*trial.refused, *trial.removed}
            (result,) = load(trial.path, 2).run({"x": images()}).values()
            np.testing.assert_allclose(result, expected, rtol=0, atol=1e-4 * expected.max())
            trial = compiler.compile_trial({decision.site: text}, tmp_path / "t.so")
            differences += trial.path.read_bytes() != plain
    assert differences >= 3
    assert compiler.compile_trial({}, tmp_path / "p.so").path.read_bytes() == plain


def test_a_trial_has_the_kernels_of_a_compile_with_the_choice(
    compiler: TrialCompiler, model: Path, tmp_path: Path
) -> None:
    """The choices are the worst form of a convolution, a transposed storage order, and separate
    kernels."""
    ledger = model_choices(model, read_options(CPU))
    first = {decision.site.kind: decision for decision in reversed([*ledger.decisions()])}
    plain = compiler.compile_trial({}, tmp_path / "p.so").path.read_bytes()
    for kind in ("derive", "order", "join"):
        decision = first[kind]
        (text,) = {a.text for a in decision.alternatives} - {decision.choice.text}
        site = decision.site.digest
        trial = compiler.compile_trial({site: text}, tmp_path / "t.so")
        data = trial.path.read_bytes()
        assert data != plain
        other = forced(model, tmp_path, site, text)
        assert other.compile_trial({}, tmp_path / "t.so").path.read_bytes() == data
        assert site not in {d.site for d in other.decisions}
        kernels = {kernel.site for kernel in other.kernels}
        assert {s for s in trial.steps if s} == kernels
        assert trial.ops.keys() == kernels - {kernel.site for kernel in compiler.kernels}


def test_a_choice_that_does_not_fit_is_refused(compiler: TrialCompiler, tmp_path: Path) -> None:
    decision = the(compiler, "join")
    trial = compiler.compile_trial({decision.site: "sideways"}, tmp_path / "t.so")
    assert "no alternative 'sideways'" in trial.refused[decision.site]
    plain = compiler.compile_trial({}, tmp_path / "p.so")
    assert trial.steps == plain.steps


def test_a_choice_without_a_site_is_reported(compiler: TrialCompiler, tmp_path: Path) -> None:
    join = the(compiler, "join")
    kernels = {k.site: k.analytic for k in compiler.kernels}
    trial = compiler.compile_trial({join.site: "apart", **kernels}, tmp_path / "t.so")
    present = {site for site in trial.steps if site}
    assert {*trial.removed} == kernels.keys() - present != set()


# ---- a handicap, with a simulated clock ---------------------------------------------------------


class Handicapped:
    """Compiles real artifacts. A run takes the predicted seconds, times `loss` unless the
    alternative `text` is forced at `site`."""

    def __init__(self, compiler: TrialCompiler, site: str, text: str, loss: float) -> None:
        self.compiler, self.site, self.text, self.loss = compiler, site, text, loss
        self.now = 0.0
        self.slow: dict[Path, bool] = {}

    def clock(self) -> float:
        return self.now

    def compile_trial(self, choices: Any, output: Path) -> Trial:
        self.now += 2
        self.slow[output] = choices.get(self.site) != self.text
        return self.compiler.compile_trial(choices, output)

    def check(self, trial: Trial) -> None:
        (result,) = load(trial.path, 2).run({"x": images()}).values()
        np.testing.assert_allclose(result, oracle(), rtol=0, atol=1e-4 * oracle().max())

    def drop(self, trials: Any) -> None:
        pass

    def peak(self) -> float:
        return 1e9

    def turn(self, trial: Trial, seconds: float) -> Turn:
        self.now += seconds
        time = trial.price * (self.loss if self.slow[trial.path] else 1.0)
        return Turn(time, (time / len(trial.steps),) * len(trial.steps))


def test_a_sweep_regains_a_planted_handicap_and_a_compile_takes_its_lock(
    compiler: TrialCompiler, model: Path, tmp_path: Path
) -> None:
    join = the(compiler, "join")
    world = Handicapped(compiler, join.site, "apart", 1.5)
    plain, other = (compiler.compile_trial(choices, tmp_path / "a.so")
                    for choices in ({}, {join.site: "apart"}))  # fmt: skip
    loss = 1.5 * plain.price / other.price
    assert loss > 1.15
    sweep = Sweep(
        compiler.kernels, compiler.home, world.compile_trial, world, tmp_path,
        Effort(60.0, trials=1, search=4, confirm=10, skip=0.02),
        progress=lambda line: None, clock=world.clock, decisions=compiler.decisions,
    )  # fmt: skip
    verdicts = decide([*sweep.measurements()], compiler.home)
    rows = {entry.site: entry for entry in verdicts.entries}
    assert (rows[join.site].verdict, rows[join.site].alternative) == ("changed", "apart")
    assert verdicts.model is not None
    assert verdicts.model[0] > 1 + 0.9 * (loss - 1)
    # The new kernels have entries, so that a check and --require-tuned pass.
    assert {rows[site].verdict for site in other.ops} == {"skipped"}
    lock = tmp_path / "tcc.lock.json"
    lock.write_text(lock_text(Lock().with_measured((compiler.home, e) for e in verdicts.entries)))
    options = read_options({**CPU, "tuned": str(lock), "require_tuned": 0.01})
    result = compile_model(model, options, tmp_path / "m.so")
    assert result.summary.tuned is not None
    assert result.summary.tuned.unfit == 0
    assert result.summary.tuned.applied >= len(other.ops) + 1
    # The kernel that computed both stages has an entry, and no longer occurs.
    assert result.summary.tuned.unrelated > 0
    removed = f"{result.summary.tuned.unrelated} belong to other models or are removed by other"
    assert f"{removed} entries" in counts_text(asdict(result.summary.tuned))
    (output,) = load(result.path, 2).run({"x": images()}).values()
    np.testing.assert_allclose(output, oracle(), rtol=0, atol=1e-4 * oracle().max())
    check = ["--check", "--lock", str(lock), "--cpu", "x86-64-v3"]
    answer = CliRunner().invoke(tune, [str(model), *check])
    assert answer.output.endswith("0 missing, 0 stale, 0 unused\n")
    assert answer.exit_code == 0


def test_a_real_sweep_times_whole_runs_of_its_shard_of_decisions(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may be busy, so any verdict is allowed. The shard has one decision."""
    monkeypatch.chdir(tmp_path)
    compiler = TrialCompiler(model, read_options({}))
    join = the(compiler, "join")
    shard = f"{int(join.site, 16) % 4999 + 1}/4999"
    sweep = [str(model), "--time", "5s", "--shard", shard, "--records", "r.jsonl"]
    first = CliRunner().invoke(tune, [*sweep, "--lock", "a.json"])
    assert first.exit_code in (0, 1), first.output
    records = [record.measurement for record in read_records([Path("r.jsonl")])]
    timed = [m for m in records if m.site == join.site]
    assert {m.candidate for m in timed} == {*join.alternatives}
    assert {m.outcome for m in timed} == {TIMED}
    assert {m.phase for m in timed} >= {SEARCH}
    assert all(1e-6 < second < 10 for m in timed for second in (*m.seconds, *m.partner))
    (section,) = read_lock(Path("a.json")).sections.values()
    verdict = section[join.site].verdict
    assert verdict in ("changed", "kept", "slow machine")
    if verdict == "changed":
        assert {m.phase for m in timed} >= {FIRST}
    answer = CliRunner().invoke(tune, [str(model), "--from", "r.jsonl", "--lock", "b.json"])
    assert answer.exit_code == first.exit_code
    assert Path("b.json").read_bytes() == Path("a.json").read_bytes()
