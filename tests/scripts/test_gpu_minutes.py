"""`scripts/gpu_check` measures first what no run has measured, and a stopped run continues."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the reference needs torch")

from .test_gpu_check import ROOT, Clock, Started, row

sys.path.insert(0, str(ROOT / "scripts"))

from gpu import news, report, run, tools, worker
from gpu.budget import Budget
from gpu.build import compile_with_tcc, host_items, make_folder
from gpu.devices import Cpu
from gpu.plan import plan
from gpu.tools import PROFILER, SANITIZER

pytestmark = pytest.mark.xdist_group("gpu-check")


def index_of(*items: dict[str, Any]) -> dict[str, Any]:
    return {"tcc": "0", "archs": ["sm_90"], "device": "cuda", "refused": {}, "items": [*items]}


class Device(Started):
    """A worker on the device `name`; every step takes 20 seconds, steps of `failing` fail."""

    def __init__(self, clock: Clock, name: str = "H200", failing: str = "") -> None:
        self.clock, self.name, self.failing, self.requests = clock, name, failing, list[str]()

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        self.clock.now += 20.0
        item = request["item"].get("name", "device")
        self.requests.append(f"{request['task']} {item}")
        if request["task"] == "device":
            return {"result": {"device": self.name}}
        return {"failed": "no"} if item == self.failing else {"result": {"seconds": 1e-4}}


ROWS = [row(name, "kernel", "f32", digest=name) for name in ("a", "b", "c", "d")]


def carried_out(worker: Device, out: Path, seconds: float, items: list[Any]) -> dict[str, Any]:
    budget = Budget(seconds, clock=worker.clock)
    return run.carry_out(out.parent, index_of(*items), worker, budget, out, resume=True)


def test_a_stopped_run_continues_with_what_is_missing(tmp_path: Path) -> None:
    out, clock = tmp_path / "out.json", Clock()
    first = Device(clock, failing="b")
    assert carried_out(first, out, 90.0, ROWS)["skipped"] == ["kernel d"]
    assert first.requests == ["device device", "kernel a", "kernel b", "kernel c"]
    items = [*ROWS[:2], {**ROWS[2], "digest": "changed"}, ROWS[3]]
    second = Device(clock)
    results = carried_out(second, out, 1000.0, items)
    assert second.requests == ["device device", "kernel b", "kernel c", "kernel d"]
    assert report.failures(results) == []
    assert all(item["seconds"] > 0 for item in results["items"].values())
    third = Device(clock)
    carried_out(third, out, 1000.0, items)
    assert third.requests == ["device device"]


def test_results_of_two_devices_are_not_mixed(tmp_path: Path) -> None:
    out, clock = tmp_path / "out.json", Clock()
    carried_out(Device(clock), out, 1000.0, ROWS[:1])
    text = out.read_text()
    with pytest.raises(ValueError, match="results of another device: H200"):
        carried_out(Device(clock, "A100"), out, 1000.0, ROWS)
    assert out.read_text() == text


def test_checks_of_tools_run_again_if_a_kernel_has_changed(tmp_path: Path) -> None:
    index = index_of(*ROWS[:1])
    out = tmp_path / "out.json"
    tool = {"said": "0 errors"}
    old = {
        "device": {"device": "H200"}, "tools": {"memcheck": tool},
        "done": ["kernel a", "sanitize memcheck"],
        "items": {"a": {"facts": ROWS[0], "seconds": 1.0}},
    }  # fmt: skip
    out.write_text(json.dumps(old))
    for digest, done in (("a", old["done"]), ("other", [])):
        facts = {**index["items"][0], "digest": digest}
        results: dict[str, Any] = {"items": {"a": {"facts": facts}}, "tools": {}, "done": []}
        assert run._before(results, out) == {"device": "H200"}
        assert results["done"] == done
        assert results["tools"] == ({"memcheck": tool} if done else {})
        assert ("seconds" in results["items"]["a"]) == bool(done)


def test_what_no_run_has_measured_comes_first() -> None:
    facts = {"same": "same", "changed": "changed", "new": "never"}
    items = [row(name, "kernel", "f32", news=value) for name, value in facts.items()]
    items += [row("old_bf16", "model", "bf16", news="same")]
    items += [row("new_bf16", "model", "bf16", news="never")]
    steps = [f"{step.task} {step.name}" for step in plan(items)]
    assert steps[1:6] == [
        "model new_bf16", "kernel new", "kernel changed", "model old_bf16", "kernel same",
    ]  # fmt: skip
    assert steps[6:8] == ["compiled new_bf16", "compiled old_bf16"]


def test_news_are_told_from_the_last_run(tmp_path: Path) -> None:
    before = {"items": {"a": {"facts": {"digest": "1"}, "error": 0.0}, "b": {"facts": {}}}}
    (tmp_path / "run.json").write_text(json.dumps(before))
    measured = news.measured(tmp_path / "run.json")
    told = [news.news_of(name, digest, measured) for name, digest in (("a", "1"), ("a", "2"))]
    assert told == ["same", "changed"]
    assert news.news_of("b", "1", measured) == "never"
    (tmp_path / "table.txt").write_text("kernel  us\nsoftmax_f32_8mb  1.0\n  indented 2\n\n")
    measured = news.measured(tmp_path / "table.json")
    assert news.news_of("softmax_f32_8mb", "1", measured) == "changed"
    assert news.news_of("indented", "1", measured) == "never"
    assert news.measured(tmp_path / "absent.json") == {}
    real = news.measured(ROOT / "scripts" / "results" / "gpu_check.json")
    assert {"gemm_bf16_k1024", "resnet50_bf16"} <= real.keys()


def test_a_rehearsal_replaces_tools_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "small.py").write_text("import sys\nprint(f'{sys.argv[2]}: 0.001')\n")
    out = tmp_path / "text"
    answer = tools.watch("sanitize", "memcheck", ["a"], tmp_path, out, 60.0, rehearsal=True)
    assert answer["result"]["said"] == "STAND-IN: no tool watched the kernels, exit code 0"
    items = [row("small_a", "small", "f32"), row("softmax_f32_8mb", "kernel", "f32")]
    tasks = [step.task for step in plan(items, (SANITIZER, PROFILER), brief=True)]
    assert (tasks.count("sanitize"), tasks.count("profile")) == (1, 1)


def test_matmuls_of_the_machines_cpu_are_timed_on_each_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_host_threads", lambda: [1, 2])
    folder = tmp_path / "folder"
    make_folder(folder, host_items([], ("x86-64-v3",), 64), ["sm_90"], compile_with_tcc)
    index = json.loads((folder / "index.json").read_text())
    assert [item["kind"] for item in index["items"]] == ["host"] * 3
    items = {}
    for item in index["items"]:
        result = worker.host({"item": item, "folder": str(folder)}, Cpu())
        assert result["error"] <= item["tolerance"]
        assert list(result["host_seconds"]) == ["1", "2"]
        assert all(min(pair) > 0 for pair in result["host_seconds"].values())
        items[item["name"]] = {"facts": item, **result}
    lines = [*report._hosts({"items": items})]
    assert lines[1].startswith("CPU of this machine: ")
    assert "host_i8_x86-64-v3" in lines[-1]


def test_a_cpu_without_the_instructions_of_a_matmul_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise worker.runtime.RuntimeFailure("the CPU lacks amx_bf16")

    monkeypatch.setattr(worker, "_module", refuse)
    monkeypatch.setattr(worker, "_reference", lambda *_: None)
    item = {"inputs": [], "precision": "bf16", "kind": "host"}
    result = worker.host({"item": item, "folder": ""}, Cpu())
    assert result == {"said": "the CPU lacks amx_bf16"}
    lines = [*report._hosts({"items": {"host_bf16": {"facts": item, **result}}})]
    assert lines[-1].endswith("the CPU lacks amx_bf16")
