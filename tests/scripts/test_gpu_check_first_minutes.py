"""`scripts/gpu_check` does the right work first, runs under watching tools, and does not wait
without need."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from .test_gpu_check import ITEMS, ROOT, Clock, Scripted, Started, row

sys.path.insert(0, str(ROOT / "scripts"))

from tcc.artifact import read_manifest
from tcc.driver import compile_model
from tcc.options import read_options

from gpu import measure, report, run, tools
from gpu.budget import Budget
from gpu.devices import Cpu, Gpu
from gpu.kernels import CHECKED, MeasuredKernel, kernels
from gpu.names import MODELS, asks_for_models, is_wanted
from gpu.plan import plan
from models.manifest import model_spec
from tests.lib.interpreter.running import NEEDS_TRITON

pytestmark = pytest.mark.xdist_group("gpu-check")


# ---- tools that watch --------------------------------------------------------------------------

TOOL = """#!/bin/sh
echo "$0 $*" >> "{log}"
case "$*" in *racecheck*kernel-regex*) echo "unrecognised option"; exit 1;; esac
while [ "$1" != "-m" ]; do last=$1; shift; done
"$last" "$@" || exit 1
echo "========= ERROR SUMMARY: {errors} errors"
exit {code}
"""


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder whose kernels print their names, with tools on the PATH, of which one lacks
    an option; `log` records their calls."""
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "small.py").write_text(
        "import sys, time\n"
        "for name in sys.argv[2:]:\n"
        "    print(f'{name}: 0.001', flush=True)\n"
        "    if name == 'hangs': time.sleep(60)\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("compute-sanitizer", "ncu"):
        write_tool(tmp_path, name)
    return tmp_path


def write_tool(folder: Path, name: str, errors: int = 0, code: int = 0) -> None:
    path = folder / name
    path.write_text(TOOL.format(log=folder / "log", errors=errors, code=code))
    path.chmod(0o755)


def test_checks_watch_the_kernels_and_their_text_is_kept(watched: Path) -> None:
    assert tools.present_tools() == ("compute-sanitizer", "ncu")
    for check in tools.CHECKS:
        out = watched / f"{check}.txt"
        answer = tools.watch("sanitize", check, ["small_a", "small_b"], watched, out, 60.0)
        assert answer == {"result": {"said": "ERROR SUMMARY: 0 errors", "text": out.name}}
        assert "small_a: 0.001\nsmall_b: 0.001\n" in out.read_text()
    calls = (watched / "log").read_text().splitlines()
    regex = ["--kernel-regex kns=tcc_kernel" in call for call in calls]
    assert regex == [True, True, False, True, False]  # racecheck twice; initcheck sees all
    write_tool(watched, "compute-sanitizer", errors=3, code=86)
    answer = tools.watch("sanitize", "memcheck", ["a"], watched, watched / "x.txt", 60.0)
    assert answer == {"failed": "ERROR SUMMARY: 3 errors (see x.txt)"}


def test_a_tool_that_takes_too_long_ends_with_its_children(watched: Path) -> None:
    answer = tools.watch("profile", "ncu_a", ["hangs"], watched, watched / "x.txt", 1.0)
    assert answer == {"failed": "took more than 1 s (see x.txt)"}
    assert "hangs: 0.001" in (watched / "x.txt").read_text()


def test_findings_of_tools_are_failures_of_tcc_alone(watched: Path, tmp_path: Path) -> None:
    write_tool(watched, "compute-sanitizer", errors=2, code=86)
    write_tool(watched, "ncu", code=1)
    items = [row("small_a", "small", "bf16"), row("softmax_f32_8mb", "kernel", "f32")]
    index = {
        "tcc": "0", "archs": ["sm_90"], "device": "cuda", "refused": {}, "items": items,
        "tools": tools.present_tools(),
    }  # fmt: skip
    out = tmp_path / "out.json"
    results = run.carry_out(watched, index, Scripted(Clock()), Budget(1000.0), out)
    assert report.failures(results) == [
        f"{check}: sanitize failed: ERROR SUMMARY: 2 errors (see out.{check}.txt)"
        for check in tools.CHECKS
    ]
    (told,) = report.absent(results)
    assert told.startswith("ncu_softmax_f32: profile failed: ERROR SUMMARY: 0 errors")
    assert "small sizes: 1 of 1 kernels ran, largest error 1.0e-03" in report.table(results)
    assert "softmax_f32_8mb: 0.001" in (tmp_path / "out.ncu_softmax_f32.txt").read_text()


# ---- waits that a run must avoid ---------------------------------------------------------------


def test_a_build_of_kernels_alone_reads_no_torch() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "sys.modules['torch'] = None\n"
        "from gpu.build import all_items\n"
        "print(len(list(all_items(['gemm_f32_k1024'], ['sm_90']))))\n"
    )
    command = [sys.executable, "-c", code, str(ROOT / "scripts"), str(ROOT)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (0, "1\n"), process.stderr


@pytest.mark.parametrize(
    ("only", "asked"),
    [("", True), ("gemm", False), ("gemm,softmax_f32", False), ("bert", True), ("small_", False),
     ("gemm,vit_b16_bf16", True), ("bert_base.b16_bf16_triton", True)],
)  # fmt: skip
def test_models_are_built_on_request(only: str, asked: bool) -> None:
    assert asks_for_models(only) == asked


def test_names_with_and_without_the_small_ones() -> None:
    assert is_wanted("small_gemm_bf16_k256", ["gemm"])
    assert is_wanted("small_gemm_bf16_k256", ["small_"])
    assert not is_wanted("gemm_bf16_k1024", ["small_"])
    assert not is_wanted("small_gemm_bf16_k256", ["softmax"])


def test_times_without_a_recording_do_not_end_the_process(tmp_path: Path) -> None:
    class Timed(run.Worker):
        closed = 0

        def _answer(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
            failed = {"failed": "no", "broken": True}
            return failed if request["task"] == "fails" else {"result": {"timed": "events"}}

        def close(self) -> None:
            self.closed += 1

    worker = Timed(tmp_path, tmp_path / "log")
    assert worker.ask({"task": "kernel"}, 1.0) == {"result": {"timed": "events"}}
    assert worker.closed == 0
    worker.ask({"task": "fails"}, 1.0)
    assert worker.closed == 1


def test_a_context_that_a_recording_broke_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's GPU functions stand for a device that refuses to record, and works or is broken
    afterwards."""

    class Refused:
        def __enter__(self) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: Refused())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    device = Gpu()
    device.name = "cpu"  # the device on which the sum is computed
    assert device.recorded(lambda: None) is None
    monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.zeros(8))
    with pytest.raises(RuntimeError, match="does not add after a failed recording"):
        device.recorded(lambda: None)


def test_a_start_has_time_of_its_own() -> None:
    """A process that restarts after a hang imports torch and opens the device before its step."""
    clock, granted = Clock(), dict[str, float]()

    class Slow(Started):
        def ready(self, seconds: float) -> str:
            granted["start"] = seconds
            clock.now += 100.0
            return ""

        def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
            granted[request["task"]] = seconds
            return {"result": {"error": 1e-3, "seconds": 1e-4}}

    index = {"tcc": "0", "archs": ["sm_90"], "device": "cuda", "refused": {}, "items": ITEMS[2:3]}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        run.carry_out(Path(folder), index, Slow(), Budget(480.0, clock=clock), out)
    assert granted == {"start": 150.0, "device": 60.0, "kernel": 30.0}


def test_runs_that_cannot_be_recorded_are_timed_call_by_call() -> None:
    class Plain(Cpu):
        def recorded(self, batch: Any) -> Any:
            return None

    (timing,) = measure.compare(Plain(), [measure.Work(lambda i: i, 2)])
    assert timing.how == "events"
    assert timing.seconds > 0


# ---- kernels in Gluon ---------------------------------------------------------------------------


def languages(model: Any, folder: Path, **options: Any) -> set[str]:
    """Returns the languages of the model's kernels for Hopper."""
    path = folder / "x.so"
    compile_model(model, read_options({"target": "cuda:sm_90", **options}), path)
    (variant,) = read_manifest(path)["variants"]
    return {kernel["language"] for kernel in variant["builds"][0]["kernels"]}


@pytest.mark.gpu
@NEEDS_TRITON[1]
def test_the_small_pass_and_the_models_have_kernels_in_gluon(tmp_path: Path) -> None:
    """In the models, the second matmul of a feed-forward layer has a Gluon kernel, because its
    operand is stored as bf16."""
    kernels_by_name: dict[str, MeasuredKernel] = {}
    for kernel in kernels(CHECKED):
        kernels_by_name.setdefault(kernel.name.partition("_k")[0], kernel)
    for name in ("attention_bf16", "gemm_bf16"):
        assert languages(
            kernels_by_name[name].model, tmp_path, **kernels_by_name[name].options
        ) == {"gluon"}, name
    (batched,) = (name for name in MODELS if name.startswith("bert_base.b"))
    rows, hidden = prod(model_spec(batched).inputs[0].shape), 768
    rng, shapes = (
        np.random.default_rng(0),
        {"first": (64, 4 * hidden), "second": (4 * hidden, hidden)},
    )
    tensors = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    layer = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "first"], ["wide"]),
            helper.make_node("Relu", ["wide"], ["kept"]),
            helper.make_node("MatMul", ["kept", "second"], ["y"]),
        ],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, hidden])],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in tensors.items()],
    )
    assert "gluon" in languages(helper.make_model(layer), tmp_path, precision="bf16")


def test_checks_get_the_kernels_that_they_understand() -> None:
    gluon, other = row("small_gemm", "small", "bf16"), row("small_softmax", "small", "f32")
    twin = row("small_gemm_triton", "small", "bf16", twin_of="small_gemm")
    steps = plan([gluon, twin, other], ["compute-sanitizer"])
    checked_kernels = {step.name: step.item["of"] for step in steps if step.task == "sanitize"}
    assert (
        checked_kernels["memcheck"]
        == checked_kernels["synccheck"]
        == [i["name"] for i in (gluon, twin, other)]
    )
    assert (
        checked_kernels["racecheck"]
        == checked_kernels["initcheck"]
        == [twin["name"], other["name"]]
    )
