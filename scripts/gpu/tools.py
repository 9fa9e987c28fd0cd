"""Runs NVIDIA's tools on kernels of a folder: compute-sanitizer's checks, and Nsight Compute."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# The tasks that run under a tool, in a process of their own.
WATCHED = ("sanitize", "profile")
CHECKS = ("memcheck", "racecheck", "synccheck", "initcheck")
SANITIZER, PROFILER = "compute-sanitizer", "ncu"
_CUDA = "/usr/local/cuda"
_FOLDERS = (f"{_CUDA}/bin", f"{_CUDA}/compute-sanitizer", "/opt/nvidia/nsight-compute")
# Matches the names of tcc's kernels, but not of torch's.
_SYMBOL = "tcc_kernel"
_FOUND = 86  # exit code of the sanitizer if a check reports an error
_END_SECONDS = 20.0


def present_tools() -> tuple[str, ...]:
    """Returns the names of the tools (SANITIZER, PROFILER) that are installed here."""
    return tuple(name for name in (SANITIZER, PROFILER) if _place(name))


def _place(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *_FOLDERS)))


def commands(task: str, check: str) -> list[list[str]]:
    """Returns command lines of the tool for `task`, the best first.

    The caller adds the command that runs the kernels. `check` is one of CHECKS, the checks of the
    sanitizer. If the tool's version lacks an option of a command line, the next one leaves it out.
    """
    if task == "profile":
        only = ["--kernel-name", f"regex:{_SYMBOL}", "--launch-count", "1"]
        return [[PROFILER, *only, "--set", "full"], [PROFILER, *only]]
    plain = [SANITIZER, "--tool", check, "--error-exitcode", str(_FOUND)]
    if check == "initcheck":  # it must watch the stores of all kernels, also of torch's
        return [plain]
    return [[*plain, "--kernel-regex", f"kns={_SYMBOL}"], plain]


def watch(
    task: str, check: str, names: Sequence[str], folder: Path, out: Path, seconds: float,
    rehearsal: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Runs the kernels `names` of the folder under a tool, whose output goes to `out`.

    `task` is "sanitize" or "profile", and `check` is one of CHECKS. Returns {"result": ...} or
    {"failed": reason}, as a worker does. In a `rehearsal` no tool watches the kernels.
    """
    process = [sys.executable, "-m", "gpu.small", str(folder), *names]
    for command in [[]] if rehearsal else commands(task, check):
        tool = [_place(command[0]) or command[0], *command[1:]] if command else []
        code, text = _run([*tool, *process], folder, seconds)
        out.write_text(text)
        if code is None:
            return {"failed": f"took more than {seconds:.0f} s (see {out.name})"}
        if f"{names[0]}: " in text:  # the kernels ran, so this version of the tool has the options
            break
    last = next((line for line in reversed(text.splitlines()) if "SUMMARY" in line), "")
    summary = last.strip("= ") or f"exit code {code}"
    if rehearsal:
        summary = f"STAND-IN: no tool watched the kernels, {summary}"
    if code:
        return {"failed": f"{summary} (see {out.name})"}
    return {"result": {"said": summary, "text": out.name}}


def _run(command: Sequence[str], folder: Path, seconds: float) -> tuple[int | None, str]:
    """Returns (exit code, output); the exit code is None if the command took too long."""
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            text, _ = process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:  # the driver does not let the killed process end
            text = ""
        return None, text
    return process.returncode, text
