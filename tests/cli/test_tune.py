"""`tcc tune --pin` works, and so do the commands that take its lock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import click
import onnx
import pytest
from click.testing import CliRunner, Result
from tcc.cli import sweeping
from tcc.cli.commands import execute
from tcc.cli.compile import compile
from tcc.cli.inspect import inspect
from tcc.cli.tune import Duration, tune
from tcc.tune.lock import VERDICTS
from tcc.tune.lock_file import read_lock
from tcc.tune.measurement import Measurement
from tcc.tune.records import read_records

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 64] x, float[64, 32] w) => (float[n, 32] y) {
  a = MatMul(x, w)
  y = Softmax(a)
}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(TEXT), "model.onnx")
    return Path("model.onnx")


def run(command: object, *arguments: str | Path) -> Result:
    result = CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result


def test_a_pin_has_every_decision_that_is_listed(model: Path) -> None:
    rows = [json.loads(t) for t in run(inspect, model, "--choices", "--json").output.splitlines()]
    assert run(tune, model, "--pin").output.startswith(f"tcc.lock.json: {len(rows)} choices of ")
    (section,) = read_lock(Path("tcc.lock.json")).sections.values()
    assert set(section) == {row["site"] for row in rows}
    for row in rows:
        entry = section[row["site"]]
        assert entry.verdict == "pinned"
        assert entry.op.startswith(f"{row['kind']}: sum, max, sum: f32[n0,64], f32[64,32]")
        if row["kind"] == "schedule":
            assert (entry.alternative or "").startswith("CoreKernel(")
            assert f"knobs={row['alternative']}" in (entry.alternative or "")
        else:
            assert entry.alternative == row["alternative"]


def test_a_pin_is_repeatable_and_keeps_other_sections(model: Path) -> None:
    lock = Path("tcc.lock.json")
    run(tune, model, "--pin", "--cpu", "x86-64-v3")
    first = lock.read_bytes()
    run(tune, model, "--pin", "--cpu", "x86-64-v3")
    assert lock.read_bytes() == first
    run(tune, model, "--pin", "--cpu", "x86-64-v2")
    sections = read_lock(lock).sections
    assert [target for target, _ in sections] == [
        "cpu:x86-64 (x86-64-v2)",
        "cpu:x86-64 (x86-64-v3)",
    ]
    output = run(compile, model, "--tuned", lock, "--cpu", "x86-64-v3").output
    count = len(sections["cpu:x86-64 (x86-64-v3)", 2])
    assert f"{count} of {2 * count} entries apply, {count} are for other targets or cores" in output


# ---- measuring ----------------------------------------------------------------------------------


def test_a_short_sweep_writes_a_lock_that_a_compile_takes(model: Path) -> None:
    """The machine may be busy, so any verdict is allowed; the lock must be complete."""
    result = CliRunner().invoke(tune, [str(model), "--time", "4s", "--data", "x=96x64", "--json"])
    assert result.exit_code in (0, 1), result.output
    facts = json.loads(result.stdout)
    (section,) = read_lock(Path("tcc.lock.json")).sections.values()
    assert section
    for entry in section.values():
        assert entry.verdict in ("changed", "kept", "skipped", "slow machine")
        assert (entry.verdict == "changed") == (entry.alternative is not None)
        assert entry.op.endswith(": sum, max, sum: f32[n0,64], f32[64,32]")
    counts = {name: facts[name] for name in VERDICTS}
    assert sum(counts.values()) == len(section)
    assert result.exit_code == (counts["slow machine"] > 0)
    summary = run(compile, model, "--tuned", "tcc.lock.json").output
    assert f"{len(section)} of {len(section)} entries apply" in summary


def test_a_sweep_leaves_pins_of_unknown_kernels(model: Path) -> None:
    run(tune, model, "--pin")
    before = read_lock(Path("tcc.lock.json"))
    CliRunner().invoke(tune, [str(model), "--time", "1s", "--data", "x=96x64"])
    after = read_lock(Path("tcc.lock.json"))
    ((home, entries),) = before.sections.items()
    for site, entry in entries.items():
        new = after.sections[home][site]
        if new.verdict == "pinned":
            assert new.alternative == entry.alternative
        else:
            assert new.verdict in ("kept", "changed")


# ---- records and checks -------------------------------------------------------------------------


def test_records_give_the_lock_again_and_are_not_measured_again(model: Path) -> None:
    """The machine may be busy, so any verdict is allowed."""
    sweep = [str(model), "--time", "2s", "--data", "x=96x64", "--records", "r.jsonl"]
    assert CliRunner().invoke(tune, [*sweep, "--lock", "a.json"]).exit_code in (0, 1)
    count = len(read_records([Path("r.jsonl")]))
    assert count > 0
    decide = [str(model), "--from", "r.jsonl", "--from", "r.jsonl", "--lock", "b.json"]
    assert CliRunner().invoke(tune, decide).exit_code in (0, 1)
    assert Path("b.json").read_bytes() == Path("a.json").read_bytes()
    CliRunner().invoke(tune, [*sweep, "--lock", "c.json"])
    keys = [
        (m.site, m.candidate, m.phase)
        for m in (record.measurement for record in read_records([Path("r.jsonl")]))
    ]
    assert len(keys) >= count
    assert len({*keys}) == len(keys)


def test_a_shard_without_kernels_measures_none(model: Path) -> None:
    run(tune, model, "--pin", "--lock", "pins.json")
    (section,) = read_lock(Path("pins.json")).sections.values()
    shards = {int(site, 16) % 1000 + 1 for site in section}  # shards count from 1
    other = next(number for number in range(1, 1001) if number not in shards)
    shard = ["--time", "1s", "--data", "x=96x64", "--shard", f"{other}/1000"]
    result = CliRunner().invoke(tune, [str(model), *shard])
    assert result.exit_code == 0
    assert "no kernels" in result.output


def pinned_sites(model: Path) -> list[str]:
    """Returns the sites of the model's kernels."""
    run(tune, model, "--pin", "--lock", "pins.json")
    (section,) = read_lock(Path("pins.json")).sections.values()
    return [s for s, e in section.items() if (e.alternative or "").startswith("CoreKernel(")]


def test_a_check_names_missing_stale_and_unused_entries(model: Path) -> None:
    run(tune, model, "--pin")
    assert "0 missing, 0 stale, 0 unused" in run(tune, model, "--check").output
    lock = Path("tcc.lock.json")
    (site,) = pinned_sites(model)
    text = lock.read_text()
    lock.write_text(text.replace(site, "0" * 32))
    result = CliRunner().invoke(tune, [str(model), "--check"], standalone_mode=False)
    assert result.return_value == 1
    assert f"missing: schedule: sum, max, sum: f32[n0,64], f32[64,32], site {site}" in result.output
    assert "unused: line " in result.output
    lock.write_text(text.replace("CoreKernel(", "CoreKernel(nothing="))
    result = CliRunner().invoke(tune, [str(model), "--check", "--json"], standalone_mode=False)
    assert result.return_value == 1
    ((kind, reason),) = json.loads(result.stdout)["problems"]
    assert kind == "stale"
    assert reason.startswith("--tuned tcc.lock.json, line ")
    assert lock.read_text() == text.replace("CoreKernel(", "CoreKernel(nothing=")


def test_models_that_share_a_lock_use_all_of_it(model: Path) -> None:
    onnx.save(onnx.parser.parse_model(TEXT.replace("32", "48")), "other.onnx")
    for name in (model, "other.onnx"):
        run(tune, name, "--pin")
    result = CliRunner().invoke(tune, [str(model), "--check"], standalone_mode=False)
    assert result.return_value == 1
    assert "unused: line" in result.output
    assert "missing" not in result.output.splitlines()[0]
    assert "0 missing, 0 stale, 0 unused" in run(tune, model, "other.onnx", "--check").output


class Recorded:
    """Stands for a sweep: it yields fixed measurements of the kernels, then raises `ends` unless
    that is None."""

    rounds: tuple[float, ...] = (1e-3,) * 12
    slow = False
    ends: type[BaseException] | None = None

    def __init__(self, *arguments: object, **settings: object) -> None:
        pass

    def measurements(self) -> Iterator[Measurement]:
        peaks = (1e9,) + (1e9 if not self.slow else 5e8,) * 11
        faster = tuple(s / 1.5 for s in self.rounds)
        for phase in ("search", "first", "second"):
            yield Measurement(
                "cpu:made-up", 2, "0" * 32, "an op", "CoreKernel()", phase, "timed", faster,
                self.rounds, peaks,
            )  # fmt: skip
        yield Measurement("cpu:made-up", 2, "1" * 32, "small", "", "search", "skipped")
        if self.ends:
            raise self.ends


@pytest.mark.parametrize(
    ("slow", "ends", "code", "verdict"),
    [
        (False, None, 0, "changed"),
        (False, KeyboardInterrupt, 130, "changed"),
        (True, None, 1, "slow machine"),
    ],
)
def test_the_end_of_a_sweep_decides_the_exit_code(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    slow: bool,
    ends: type[BaseException] | None,
    code: int,
    verdict: str,
) -> None:
    class Compiler:
        def __init__(self, *arguments: object) -> None:
            self.home, self.compile_trial, self.constants = ("cpu:made-up", 2), None, 1
            self.kernels = [SimpleNamespace(site=digit * 32) for digit in "01"]
            self.decisions: list[object] = []

    monkeypatch.setattr(Recorded, "slow", slow)
    monkeypatch.setattr(Recorded, "ends", ends)
    monkeypatch.setattr(sweeping, "Sweep", Recorded)
    monkeypatch.setattr(sweeping, "TrialCompiler", Compiler)
    monkeypatch.setattr(sweeping, "TrialRunner", lambda *arguments: nullcontext())
    assert execute(["tune", str(model)]) == code
    (entries,) = read_lock(Path("tcc.lock.json")).sections.values()
    assert [e.verdict for e in entries.values()] == [verdict, "skipped"]
    out, err = capsys.readouterr()
    counts = ("1 changed, 1 skipped", "1 skipped, 1 slow machine")
    assert out.endswith(f"tcc.lock.json: {counts[slow]}\n")
    if verdict == "changed":
        assert entries["0" * 32].gain == (1.5, 1.5)
        assert "1.500 times as fast (at least 1.500): an op" in out
    else:
        assert "no choice changed" in err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("24h", 86400), ("7", 7)]
)
def test_a_time_has_a_unit(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    "text", ["", "m", "-5s", "0s", "25h", "1e3s", "9" * 50 + "s", "٣m", "1.5m"]
)
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)
