"""Runs the part of `gpu_check` that needs a GPU: steps with time limits, and results after each
step.

This module and the worker run with the machine's own Python, 3.10 or newer.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from gpu.budget import Budget
from gpu.names import is_wanted, split
from gpu.plan import KINDS, READY, GpuStep, forecast, plan, with_twins
from gpu.report import failures, table
from gpu.tools import PROFILER, SANITIZER, WATCHED, present_tools, watch

_PROBE = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
# A probe imports torch. That takes long the first time if torch's files come over a network.
_PROBE_SECONDS = 150.0
# A driver may need this many seconds to release the device of a killed process.
_END_SECONDS = 30.0
# After this many items with kernels in Gluon have hung or crashed, the remaining ones come last.
_FEW = 2


class Steps(Protocol):
    """The interface of a worker that carries out steps."""

    def ready(self, seconds: float) -> str:
        """Starts the worker's process if none is running, within `seconds`.

        Returns the reason of a failure, or "".
        """

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Returns {"result": ...} or {"failed": reason}, after at most `seconds`.

        A failure also has the key "broken" if the process hung or ended.
        """


def carry_out(
    folder: Path, index: Mapping[str, Any], steps: Steps, budget: Budget, out: Path,
    resume: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Takes all steps that the budget allows; returns the results.

    With `resume`, steps whose results are in `out` are not taken again, unless the code of their
    item has changed. Raises ValueError if those results are of another device.

    The results so far are written to `out` after every step. If several items that have a twin
    (kernels in Gluon) break their process, the remaining such items come last, because each may
    cost the full time limit of a step.
    """
    results: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "rehearsal": is_rehearsal(index),
        "tcc": index["tcc"], "archs": index["archs"], "refused": index["refused"],
        "device": {}, "items": {i["name"]: {"facts": i} for i in index["items"]}, "skipped": [],
        "tools": {}, "done": [],
    }  # fmt: skip
    before = _before(results, out) if resume else {}
    unproven = with_twins(index["items"])
    waiting, late = deque(_plan(index)), deque[GpuStep]()
    broken_items = 0
    while waiting or late:
        step = waiting.popleft() if waiting else late.popleft()
        if f"{step.task} {step.name}" in results["done"]:
            continue
        if step.task == "jax" and not results["device"].get("jax"):
            continue
        is_unproven = step.task in ("kernel", "model") and step.name in unproven
        if is_unproven and broken_items >= _FEW and waiting:
            late.append(step)
            continue
        answer = _take(step, results, index, folder, steps, budget, out)
        if answer is not None and "result" in answer:
            results["done"].append(f"{step.task} {step.name}")
        if step.task == "device" and _differ(before, results["device"]):
            raise ValueError(f"{out.name} has results of another device: {before['device']}")
        broken_items += is_unproven and answer is not None and bool(answer.get("broken"))
        results["spent_seconds"] = budget.spent()
        _write(results, out)
    return results


def _plan(index: Mapping[str, Any]) -> list[GpuStep]:
    return list(plan(index["items"], index.get("tools", ()), is_rehearsal(index)))


def _before(results: dict[str, Any], out: Path) -> dict[str, Any]:
    """Adds what `out` has of items with the same code to `results`; returns the facts of its
    device.

    The step "device" is taken again, because it tells whether the device is the same.
    """
    if not out.exists():
        return {}
    old = json.loads(out.read_text())
    unchanged = {
        name
        for name, item in results["items"].items()
        if item["facts"].get("digest") == old["items"].get(name, {}).get("facts", {}).get("digest")
    }
    for name in unchanged & old["items"].keys():
        facts = {key: value for key, value in old["items"][name].items() if key != "failed"}
        results["items"][name] = {**facts, "facts": results["items"][name]["facts"]}
    # The sanitizer and the profiler run on all kernels together, so they count only if no kernel
    # has changed.
    if unchanged == results["items"].keys():
        results["tools"] = {n: tool for n, tool in old["tools"].items() if "failed" not in tool}
        unchanged |= results["tools"].keys()
    results["done"] = [step for step in old["done"] if step.split()[-1] in unchanged]
    return dict(old["device"])


def _differ(before: Mapping[str, Any], device: Mapping[str, Any]) -> bool:
    """Returns True if two steps "device" ran on devices with other names."""
    return "device" in before and "device" in device and before["device"] != device["device"]


def _take(
    step: GpuStep, results: dict[str, Any], index: Mapping[str, Any], folder: Path, steps: Steps,
    budget: Budget, out: Path,
) -> dict[str, Any] | None:  # fmt: skip
    """Takes a step: returns its answer, and adds the answer to `results`.

    Returns None, and adds the step to the skipped ones, if too little time is left.
    """
    kind, has_tool = KINDS[step.task], step.task in WATCHED
    starting = None if has_tool else budget.grant(READY.limit, READY.minimum)
    failed = steps.ready(starting) if starting is not None else ""
    seconds = budget.grant(kind.limit, kind.minimum)
    if seconds is None:
        results["skipped"].append(f"{step.task} {step.name}")
        return None
    if has_tool:
        text = out.with_suffix(f".{step.name}.txt")
        answer = watch(
            step.task, step.name, step.item["of"], folder, text, seconds, is_rehearsal(index)
        )
    elif failed:
        answer = {"failed": failed, "broken": True}
    else:
        request = {"task": step.task, "item": step.item, "folder": str(folder)}
        answer = steps.ask({**request, "device": index["device"]}, seconds)
    _keep(results, step, answer)
    print(f"{budget.spent():6.1f} s  {step.task} {step.name}: {_line(answer)}", flush=True)
    return answer


def _write(results: Mapping[str, Any], out: Path) -> None:
    """Writes the results (`out`) and their table; a reader finds a complete file at any time."""
    for path, text in (
        (out, json.dumps(results, indent=1) + "\n"),
        (out.with_suffix(".txt"), table(results)),
    ):
        partial = path.with_name(f".{path.name}.part")
        partial.write_text(text)
        partial.replace(path)


def is_rehearsal(index: Mapping[str, Any]) -> bool:
    """Returns True if the folder's artifacts are for a CPU, so that no figure holds for a GPU."""
    return bool(index["device"] == "cpu")


def _keep(results: dict[str, Any], step: GpuStep, answer: Mapping[str, Any]) -> None:
    place = results["items"].get(step.name, results["device"])
    if step.task in WATCHED:
        place = results["tools"].setdefault(step.name, {})
    if "failed" in answer:
        place.setdefault("failed", {})[step.task] = answer["failed"]
    else:
        place.update(answer["result"])


def _line(answer: Mapping[str, Any]) -> str:
    if "failed" in answer:
        return f"failed: {answer['failed']}".splitlines()[0][:150]
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in answer["result"].items()
    )


class Worker:
    """Runs `gpu.worker` in the folder `folder`, in a process of its own; its errors go to `log`.

    A new process starts after a step that failed or took too long.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        self._folder, self._log = folder, log
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        try:
            answer = self._answer(request, seconds)
        except (OSError, ValueError) as error:  # the process ended, or its answer is incomplete
            answer = {"failed": f"{type(error).__name__}: {error}", "broken": True}
        # After a failure, the device's context may be broken, so the process ends. (A failed
        # recording is no failure here: the worker itself then tests the context.)
        if "failed" in answer:
            self.close()
        return answer

    def ready(self, seconds: float) -> str:
        if self._process is not None:
            return ""
        answer = self._line(self._start(), seconds)
        if "failed" in answer:
            self.close()
        return str(answer.get("failed", ""))

    def _answer(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._ended(process)
        return self._line(process, seconds)

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        """Returns the next answer of the process, or {"failed": ...} after `seconds`.

        The first answer of a process says that it is ready.
        """
        assert process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            if not ready.select(seconds):
                return {"failed": f"took more than {seconds:.0f} s", "broken": True}
        line = process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else self._ended(process)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpu.worker"],
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        return self._process

    def _ended(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        try:
            end = f"ended with code {process.wait(_END_SECONDS)}"
        except subprocess.TimeoutExpired:
            end = "does not end"
        return {"failed": f"the process {end} (see {self._log.name})", "broken": True}

    def close(self) -> None:
        """Kills the process and its children.

        Waits for their end, but not forever, because a driver may hold a killed process back.
        """
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):  # the process has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_END_SECONDS)


def why_no_gpu() -> str | None:
    """Returns a sentence that says why this machine cannot measure, or None if torch has a GPU."""
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"torch did not answer within {_PROBE_SECONDS:.0f} s"
    if probe.returncode:
        return "torch cannot be imported: " + (probe.stderr.strip().splitlines() or ["?"])[-1]
    return None if int(probe.stdout.split()[-1]) else "torch sees no GPU on this machine"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    budget = Budget(options.seconds)
    index = json.loads((options.folder / "index.json").read_text())
    names = split(options.only)
    index["items"] = [item for item in index["items"] if is_wanted(item["name"], names)]
    index["tools"] = (SANITIZER, PROFILER) if is_rehearsal(index) else present_tools()
    reason = why_not(index, options.json.resolve())
    if reason is not None:
        print(f"gpu_check: {reason}; nothing was measured")
        return 1
    print(forecast(_plan(index), budget.left()), flush=True)
    worker = Worker(options.folder, options.json.with_suffix(".log"))
    try:
        folder, resume = options.folder.resolve(), options.resume
        results = carry_out(folder, index, worker, budget, options.json, resume)
    except ValueError as error:
        print(f"gpu_check: {error}")
        return 1
    finally:
        worker.close()
    print(table(results))
    return 1 if failures(results) else 0


def why_not(index: Mapping[str, Any], out: Path) -> str | None:
    """Returns a sentence that says why the steps cannot run, or None if they can.

    A rehearsal must not write its results to scripts/results.
    """
    if not is_rehearsal(index):
        return why_no_gpu()
    in_results = out.parent.name == "results" and out.parent.parent.name == "scripts"
    return "scripts/results must not hold the figures of a rehearsal" if in_results else None


if __name__ == "__main__":
    sys.exit(main())
