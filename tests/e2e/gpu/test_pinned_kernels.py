"""A lock fixes the kernels of a model for GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner, Result
from tcc.artifact import read_manifest
from tcc.cli.compile import compile
from tcc.cli.tune import tune
from tcc.errors import UserError
from tcc.schedule.gpu import candidates, choose
from tcc.schedule.margins import MARGINS
from tcc.tune.applied import NotTuned
from tcc.tune.lock import Lock
from tcc.tune.lock_file import lock_text, read_lock

from tests.part import part

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


def test_a_pin_of_two_targets_has_a_section_for_each(model: Path) -> None:
    run(tune, model, "--pin", "--target", "cuda:sm_80+cpu", "--cpu", "x86-64-v3", "--jobs", "2")
    (cpu, _), (gpu, processors) = read_lock(Path("tcc.lock.json")).sections
    assert (cpu, gpu) == ("cpu:x86-64 (x86-64-v3)", "cuda:sm_80")
    assert processors > 50
    rows = [row for s in read_lock(Path("tcc.lock.json")).sections.values() for row in s.values()]
    assert any((row.alternative or "").startswith("BlockKernel(") for row in rows)
    flags = ("--tuned", "tcc.lock.json", "--target", "cuda:sm_80", "--jobs", "2", "--json")
    tuned = json.loads(run(compile, model, *flags).stdout)["tuned"]
    assert (tuned["unfit"], tuned["unrelated"], tuned["warnings"]) == (0, 0, [])
    assert tuned["applied"] > 0
    # A site names its target in the listing only, so one lock serves both kinds of compiles.
    assert tuned["applied"] + tuned["elsewhere"] == len(rows)


@pytest.fixture
def become_another_version(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that changes all margins and the lists of candidates, as a later version
    may."""

    def change() -> None:
        monkeypatch.setattr(candidates, "_LINES", (64, 512))
        monkeypatch.setattr(candidates, "_ROWS", 1 << 10)
        monkeypatch.setattr(choose, "_VARIED", 1)
        for margin in MARGINS.values():
            monkeypatch.setitem(changed, margin.name, margin.saves)
            object.__setattr__(margin, "saves", 0.9)

    changed: dict[str, float] = {}
    yield change
    for name, saves in changed.items():
        object.__setattr__(MARGINS[name], "saves", saves)


def split() -> onnx.ModelProto:
    """Returns a model with a sum so long that several tiles divide it."""
    return onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[16, 8192] x, float[8192, 512] w) => (float[16, 512] y) {
          a = MatMul(x, w)
          y = Relu(a)
        }""")


def attention() -> onnx.ModelProto:
    """Returns a model with attention that is large enough for warpgroups."""
    shape = "bfloat16[1, 9, 1024, 64]"
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 23]>
        g ({shape} q, {shape} k, {shape} v) => ({shape} y) {{
          y = Attention(q, k, v)
        }}""")


CASES = {
    "rows": (None, "cuda:sm_80", "f32", r"^blocks: "),
    "parts of a sum on CUDA": (split, "cuda:sm_80", "f32", r"^split-k: .*"),
    "parts of a sum on ROCm": (split, "rocm:gfx942", "f32", r"^split-k: .*"),
    "warpgroups": (attention, "cuda:sm_90", "bf16", r"^blocks: sum, max, sum, sum: bf16"),
    "warps of 32 lanes on ROCm": (None, "rocm:gfx1100", "f32", r"^blocks: "),
}


@pytest.mark.parametrize("name", part("pinned kernels", CASES, 2))
def test_a_pinned_gpu_model_has_the_same_code_in_another_version(
    model: Path, become_another_version: Callable[[], None], name: str
) -> None:
    make, target, precision, kernel = CASES[name]
    if make is not None:
        onnx.save(make(), model)
    flags = ("--target", target, "--precision", precision, "--jobs", "2")
    output = (*flags, "--name", "m", "-o", "model.so")
    run(tune, model, "--pin", *flags)
    (section,) = read_lock(Path("tcc.lock.json")).sections.values()
    assert any(re.match(kernel, entry.op) for entry in section.values())
    assert "0 missing, 0 stale, 0 unused" in run(tune, model, "--check", *flags).output
    tuned = ("--tuned", "tcc.lock.json", "--require-tuned", "0%")
    summary = run(compile, model, *output, *tuned).output
    assert f"{len(section)} of {len(section)} entries apply" in summary
    before = Path("model.so").read_bytes()
    languages = {row["language"] for row in builds(Path("model.so"))}
    assert languages == {"gluon" if name == "warpgroups" else "triton"}
    become_another_version()
    run(compile, model, *output, *tuned)
    assert Path("model.so").read_bytes() == before


def builds(artifact: Path) -> list[dict[str, Any]]:
    """Returns the entry of each kernel in the only variant, for the only GPU."""
    (variant,) = read_manifest(artifact)["variants"]
    (build,) = variant["builds"]
    return build["kernels"]


def test_another_version_makes_other_code_without_a_lock(
    model: Path, become_another_version: Callable[[], None]
) -> None:
    """The test above would also pass for a compiler that ignores its lock, unless code changes
    without a lock."""
    onnx.save(split(), model)
    flags = ("--target", "cuda:sm_80", "--jobs", "2", "--name", "m", "-o", "model.so")
    run(compile, model, *flags)
    before = Path("model.so").read_bytes()
    become_another_version()
    run(compile, model, *flags)
    assert Path("model.so").read_bytes() != before


def test_each_part_of_the_gpus_needs_its_own_entries(model: Path) -> None:
    """Each of the two GPUs has its own schedule for kernels with equal sites."""
    flags = ("--target", "cuda:sm_80,sm_86", "--jobs", "2")
    run(tune, model, "--pin", *flags)
    lock = Path("tcc.lock.json")
    first, second = read_lock(lock).sections
    assert (first[0], second[0]) == ("cuda:sm_80", "cuda:sm_86")
    required = ("--tuned", lock, "--require-tuned", "1%")
    run(compile, model, *flags, *required)
    sections = read_lock(lock).sections
    (site,) = {
        entry.site
        for entry in sections[first].values()
        if (entry.alternative or "").startswith("BlockKernel(")
    }
    assert site in sections[second]
    for home in (first, second):
        entries = {s: e for s, e in sections[home].items() if s != site}
        lock.write_text(lock_text(Lock({**sections, home: entries})))
        arguments = [str(a) for a in (model, *flags, *required, "-o", "never.so")]
        with pytest.raises(NotTuned) as error:
            CliRunner().invoke(compile, arguments, standalone_mode=False, catch_exceptions=False)
        assert f"100.0% of the time, site {site}" in str(error.value.why)
        assert not Path("never.so").exists()


def test_lines_of_choices_are_entries_of_a_lock(model: Path) -> None:
    """A line that does not fit is an error here; an entry of a lock that does not fit is not."""
    flags = ("--target", "rocm:gfx942", "--jobs", "2", "--name", "m")
    run(tune, model, "--pin", *flags[:4])
    lines = [
        t.strip().rstrip(",")
        for t in Path("tcc.lock.json").read_text().splitlines()
        if '"site"' in t
    ]
    Path("choices.jsonl").write_text("\n".join(lines))
    run(compile, model, *flags, "-o", "plain.so")
    run(compile, model, *flags, "-o", "forced.so", "--choices", "choices.jsonl")
    images = [read_manifest(Path(name))["variants"] for name in ("plain.so", "forced.so")]
    assert images[0] == images[1]
    changed = [SCHEDULE.sub("BlockSchedule(blocks=((l0, 3)), parallel=(l0), warps=4, stages=1)", t)
               for t in lines]  # fmt: skip
    Path("choices.jsonl").write_text("\n".join(changed))
    with pytest.raises(UserError) as error:
        CliRunner().invoke(
            compile,
            [str(a) for a in (model, *flags, "--choices", "choices.jsonl")],
            standalone_mode=False,
            catch_exceptions=False,
        )
    assert error.value.exit_code == 2
    assert re.fullmatch(r"--choices choices.jsonl, line \d", str(error.value.where))
    assert "powers of two" in str(error.value.why)


# ---- entries that do not fit --------------------------------------------------------------------

SCHEDULE = re.compile(r"BlockSchedule\(.*?stages=\d+\)")
UNFIT = {
    "(l0, 128), (l1, 256), (l2, 64)": "more registers or shared memory than the device has",
    "(l0, 1048576), (l1, 1048576), (l2, 1048576)": "more registers or shared memory",
    "(l0, 2097152), (l1, 16), (l2, 16)": "more than 1048576 positions",
    "(l0, 48), (l1, 16), (l2, 16)": "powers of two",
    "(l0, 16), (l1, 16), (l7, 16)": "no loop 'l7'",
    "(l0, -16), (l1, 16), (l2, 16)": "powers of two",
}


@pytest.mark.parametrize("target", ["cuda:sm_80", "rocm:gfx942"])
def test_impossible_blocks_are_a_line_with_the_entry_and_the_reason(
    model: Path, target: str
) -> None:
    flags = ("--target", target, "--jobs", "2")
    run(tune, model, "--pin", *flags)
    lock = Path("tcc.lock.json")
    text = lock.read_text()
    (number,) = [n for n, line in enumerate(text.splitlines(), 1) if "BlockKernel(" in line]
    run(compile, model, *flags, "-o", "plain.so")
    for blocks, why in UNFIT.items():
        schedule = f"BlockSchedule(blocks=({blocks}), parallel=(l0), warps=8, stages=8)"
        lock.write_text(SCHEDULE.sub(schedule, text))
        json_flags = (*flags, "--tuned", lock, "--json")
        tuned = json.loads(run(compile, model, *json_flags).stdout)["tuned"]
        assert tuned["unfit"] == 1
        (warning,) = tuned["warnings"]
        assert warning.startswith(f"--tuned {lock}, line {number} has no effect: ")
        assert why in warning
    result = CliRunner().invoke(tune, [str(model), "--check", *flags], standalone_mode=False)
    assert result.return_value == 1
    assert f"stale: --tuned {lock}, line {number}: " in result.output
