"""A pinned model has the same bytes for all margins and candidate lists that versions may have."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tcc
from click.testing import CliRunner
from onnx import numpy_helper
from tcc.artifact import read_manifest
from tcc.cli.tune import tune
from tcc.driver import CompileResult, compile_model
from tcc.errors import UserError
from tcc.ir.tile.group import TileGroup
from tcc.options import Options
from tcc.passes.tile.cpu import plan
from tcc.runtime.summary_text import lock_text
from tcc.schedule.cpu import candidates
from tcc.schedule.cpu.candidates import Knob
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.margins import MARGINS
from tcc.tune.applied import NotTuned
from tcc.tune.lock import CHANGED, KEPT, Lock
from tcc.tune.lock_file import read_lock, update_lock

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
pinned (float[4, 8, 20, 20] x, float[rows, 384] u) => (float[4, 24] y, float[rows, 384] z) {
  a = Conv<pads=[1, 1, 1, 1]>(x, w1)
  b = Relu(a)
  c = Conv(b, w2)
  d = Sigmoid(c)
  e = ReduceMean<axes=[2, 3], keepdims=0>(d)
  y0 = MatMul(e, w3)
  y = Softmax<axis=-1>(y0)
  f = MatMul(u, w4)
  g = Tanh(f)
  z = MatMul(g, w5)
}
"""
SHAPES = {
    "w1": (16, 8, 3, 3), "w2": (64, 16, 1, 1), "w3": (64, 24), "w4": (384, 768), "w5": (768, 384),
}  # fmt: skip
CPU = "x86-64-v3"
OPTIONS = Options(target="cpu", cpu=CPU, name="pinned", jobs=1, buckets=(("rows", (1,)),))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    proto, rng = onnx.parser.parse_model(TEXT), np.random.default_rng(3)
    for name, shape in SHAPES.items():
        array = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    path = tmp_path_factory.mktemp("pinned") / "pinned.onnx"
    onnx.save(proto, path)
    return path


@pytest.fixture(scope="module")
def lock(model: Path) -> Path:
    """Returns a lock that `tcc tune --pin` wrote."""
    path = model.with_name("tcc.lock.json")
    flags = ["--cpu", CPU, "--bucket", "rows=1", "--name", "pinned"]
    arguments = [str(model), "--pin", "--lock", str(path), *flags, "--json"]
    result = CliRunner().invoke(tune, arguments, catch_exceptions=False)
    assert json.loads(result.output)["entries"] == read_lock(path).count
    return path


def compiled(model: Path, options: Options, name: str = "out") -> CompileResult:
    folder = model.with_name(name)
    folder.mkdir(exist_ok=True)
    return compile_model(model, options, folder / "model.so")


def data(model: Path, options: Options, name: str = "out") -> bytes:
    return compiled(model, options, name).path.read_bytes()


@contextmanager
def another_version(factor: float) -> Iterator[None]:
    """Multiplies all margins, extends lists of candidates, and changes the rule for tiles.

    A later version may do the same.
    """
    before = {name: margin.saves for name, margin in MARGINS.items()}
    lists, rule = (candidates._CONTRACTION, candidates._PLAIN), plan.choose

    def larger_tiles(group: TileGroup, core: CoreModel) -> Schedule:
        knobs = replace(core.knobs, grain=2 * core.knobs.grain, panel=core.knobs.panel or 1)
        return rule(group, replace(core, knobs=knobs))

    plan.choose = larger_tiles
    try:
        for margin in MARGINS.values():
            object.__setattr__(margin, "saves", margin.saves * factor)
        candidates._CONTRACTION = (
            Knob("copy", (1,)), Knob("panel", (1, 2, 3, 4)), Knob("k_block", (64, 96, 128, 768)),
        )  # fmt: skip
        candidates._PLAIN = (Knob("wide", (1, 2, 3, 8, 16)), Knob("grain", (2, 3, 64)))
        yield
    finally:
        candidates._CONTRACTION, candidates._PLAIN = lists
        plan.choose = rule
        for name, margin in MARGINS.items():
            object.__setattr__(margin, "saves", before[name])


@pytest.fixture(scope="module")
def before(model: Path, lock: Path) -> bytes:
    return data(model, replace(OPTIONS, tuned=lock))


@pytest.mark.parametrize(("factor", "jobs"), [(0.0, 1), (3.0, 16)])
def test_a_pinned_model_has_the_same_bytes_in_another_version(
    model: Path, lock: Path, before: bytes, factor: float, jobs: int
) -> None:
    with another_version(factor):
        result = compiled(model, replace(OPTIONS, tuned=lock, jobs=jobs))
    assert result.path.read_bytes() == before
    assert result.summary.tuned is not None
    assert result.summary.tuned.applied == read_lock(lock).count
    assert not result.warnings


def test_the_changed_version_chooses_differently_without_a_lock(model: Path) -> None:
    free = data(model, OPTIONS)
    with another_version(0.0):
        assert data(model, OPTIONS) != free


def test_a_pinned_model_computes_the_same_and_its_manifest_names_the_lock(
    model: Path, lock: Path
) -> None:
    path = compiled(model, replace(OPTIONS, tuned=lock)).path
    manifest = read_manifest(path)
    assert manifest["tuned"] == {"sha256": hashlib.sha256(lock.read_bytes()).hexdigest()}
    plain = read_manifest(compiled(model, OPTIONS, "plain").path)
    assert "tuned" not in plain
    kernels, weights = ([v[k] for v in manifest["variants"]] for k in ("kernels", "weights"))
    assert kernels == [v["kernels"] for v in plain["variants"]]
    assert weights == [v["weights"] for v in plain["variants"]]  # buckets share constants
    rng = np.random.default_rng(4)
    feeds = {
        "x": rng.standard_normal((4, 8, 20, 20)).astype(np.float32),
        "u": rng.standard_normal((3, 384)).astype(np.float32),
    }
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for reference, output in zip(
        session.run(None, feeds), tcc.load(path).run(feeds).values(), strict=True
    ):
        assert np.abs(output - reference).max() <= 1e-5 * np.abs(reference).max()


def edited(lock: Path, name: str, old: str, new: str) -> Path:
    path = lock.with_name(name)
    text = lock.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_entries_that_do_not_fit_are_named_and_change_nothing(model: Path, lock: Path) -> None:
    free = compiled(model, OPTIONS, "free").path
    broken = edited(lock, "broken.json", "parallel=(l0", "parallel=(l9")
    result = compiled(model, replace(OPTIONS, tuned=broken))
    tuned = result.summary.tuned
    assert tuned is not None
    assert tuned.unfit == len(result.warnings) == broken.read_text().count("parallel=(l9")
    assert all("there is no loop 'l9'" in w and f"{broken}, line " in w for w in result.warnings)
    assert tuned.applied + tuned.unfit == read_lock(broken).count
    variants = (read_manifest(path)["variants"] for path in (result.path, free))
    assert [v["kernels"] for v in next(variants)] == [v["kernels"] for v in next(variants)]
    other = edited(lock, "vectors.json", "lanes=8, registers=16", "lanes=16, registers=32")
    warnings = compiled(model, replace(OPTIONS, tuned=other)).warnings
    assert any("32 vectors of 16 f32, and the processor has 16 of 8" in w for w in warnings)


def test_entries_of_other_targets_cores_and_models_are_counted(model: Path, lock: Path) -> None:
    text = edited(lock, "others.json", '"cores": 2', '"cores": 96')
    tuned = compiled(model, replace(OPTIONS, tuned=text)).summary.tuned
    assert tuned is not None
    assert (tuned.applied, tuned.unfit, tuned.elsewhere) == (0, 0, read_lock(text).count)
    small = model.with_name("small.onnx")
    onnx.save(
        onnx.parser.parse_model(
            TEXT.split("pinned (")[0] + "g (float[7] x) => (float[7] y) { y = Exp(x) }"
        ),
        small,
    )
    tuned = compiled(small, replace(OPTIONS, tuned=lock, buckets=())).summary.tuned
    assert tuned is not None
    assert (tuned.applied, tuned.unrelated) == (0, read_lock(lock).count)
    text = lock_text(asdict(tuned))
    assert text.endswith(f"{tuned.unrelated} belong to other models")


def test_a_lock_forces_a_kernel_that_no_price_chooses(model: Path, lock: Path) -> None:
    """In each matmul, the first nest has register blocks of a single row."""

    def one_row(text: str) -> str:
        return re.sub(r"(nests=\(Nest\(.*?blocks=\(\(l1, \d+\), \(l0, )\d+", r"\g<1>1", text)

    text = lock.read_text()
    other = edited(lock, "forced.json", text, one_row(text))
    result = compiled(model, replace(OPTIONS, tuned=other), "forced")
    assert not result.warnings
    kernels, plain = (
        [k["seconds"] for v in read_manifest(path)["variants"] for k in v["kernels"]]
        for path in (result.path, compiled(model, replace(OPTIONS, tuned=lock), "plain").path)
    )
    assert kernels != plain
    u = np.random.default_rng(5).standard_normal((70, 384)).astype(np.float32)
    feeds = {"x": np.zeros((4, 8, 20, 20), np.float32), "u": u}
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for reference, output in zip(
        session.run(None, feeds), tcc.load(result.path).run(feeds).values(), strict=True
    ):
        assert np.abs(output - reference).max() <= 1e-5 * np.abs(reference).max()


def test_kernels_without_an_entry_fail_and_write_nothing(model: Path, lock: Path) -> None:
    required = replace(OPTIONS, tuned=lock, require_tuned=0.01)
    compiled(model, required)
    rows = [t for t in lock.read_text().splitlines() if '"schedule: ' in t]
    missing = json.loads(rows[0].rstrip(","))["site"]
    partial = edited(lock, "partial.json", missing, "f" * 32)
    output = model.with_name("nothing.so")
    with pytest.raises(NotTuned) as error:
        compile_model(model, replace(required, tuned=partial, require_tuned=0.0), output)
    assert error.value.exit_code == 1
    assert missing in error.value.why
    assert error.value.why.count("site ") == 1
    assert not output.exists()
    with pytest.raises(UserError):
        compile_model(model, replace(OPTIONS, require_tuned=0.0), output)


def test_a_second_pin_keeps_choices_that_were_measured(model: Path, lock: Path) -> None:
    path = lock.with_name("again.json")
    path.write_bytes(lock.read_bytes())
    home = next(iter(read_lock(path).sections))
    schedules = [e for e in read_lock(path).sections[home].values() if e.op.startswith("schedule")]
    first, second, *_ = schedules

    def measured(old: Lock) -> Lock:
        changed = replace(first, verdict=CHANGED, gain=(1.5, 1.4))
        unchanged = replace(second, verdict=KEPT, alternative=None, gain=(1.01, 0.99))
        return old.with_entries([(home, changed), (home, unchanged)])

    update_lock(path, measured)
    flags = ["--cpu", CPU, "--bucket", "rows=1"]
    CliRunner().invoke(
        tune, [str(model), "--pin", "--lock", str(path), *flags], catch_exceptions=False
    )
    entries = read_lock(path).sections[home]
    assert entries[first.site].record == replace(first, verdict=CHANGED, gain=(1.5, 1.4)).record
    assert entries[second.site].record == replace(second, gain=(1.01, 0.99)).record


def test_a_lock_and_choices_serve_together(model: Path, lock: Path) -> None:
    rows = [json.loads(t.rstrip(",")) for t in lock.read_text().splitlines() if '"site"' in t]
    row = next(r for r in rows if r["op"] == "schedule: sum: f32[1,384], f32[384,768]")
    file = lock.with_name("choices.jsonl")
    file.write_text(json.dumps({**row, "alternative": "Knobs(panel=2)"}))
    options = {"tuned": lock, "choices": file, "buckets": {"rows": [1]}}
    with pytest.warns(tcc.CompileWarning, match="has no effect"):
        module = tcc.compile(model, cpu=CPU, jobs=1, **options)
    assert module.manifest["tuned"]
    with pytest.raises(UserError) as error:
        tcc.compile(model, cpu=CPU, tuned=lock.with_name("missing.json"))
    assert error.value.where == f"--tuned {lock.with_name('missing.json')}"
