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

# Steps that run in a process of their own, under a tool.
WATCHED = ("sanitize", "profile")
CHECKS = ("memcheck", "racecheck", "synccheck", "initcheck")
SANITIZER, PROFILER = "compute-sanitizer", "ncu"
_CUDA = "/usr/local/cuda"
_FOLDERS = (f"{_CUDA}/bin", f"{_CUDA}/compute-sanitizer", "/opt/nvidia/nsight-compute")
# Matches the names of tcc's kernels, but not of torch's.
_SYMBOL = "tcc_kernel"
_FOUND = 86  # exit code of a check that found something
_END_SECONDS = 20.0


def present_tools() -> tuple[str, ...]:
    """Returns the tools that this machine has."""
    return tuple(name for name in (SANITIZER, PROFILER) if _place(name))


def _place(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *_FOLDERS)))


def commands(task: str, check: str) -> list[list[str]]:
    """Returns command lines of the tool, without the process to watch; the best comes first.

    Later command lines are for versions of the tool that lack an option.
    """
    if task == "profile":
        only = ["--kernel-name", f"regex:{_SYMBOL}", "--launch-count", "1"]
        return [[PROFILER, *only, "--set", "full"], [PROFILER, *only]]
    plain = [SANITIZER, "--tool", check, "--error-exitcode", str(_FOUND)]
    if check == "initcheck":  # it must see the stores of all kernels
        return [plain]
    return [[*plain, "--kernel-regex", f"kns={_SYMBOL}"], plain]


def watch(
    task: str, check: str, names: Sequence[str], folder: Path, out: Path, seconds: float
) -> dict[str, Any]:
    """Runs the kernels `names` of the folder under a tool, whose output goes to `out`.

    Returns an answer like a worker's: {"result": ...} or {"failed": reason}.
    """
    process = [sys.executable, "-m", "gpu.small", str(folder), *names]
    for command in commands(task, check):
        tool = _place(command[0]) or command[0]
        code, text = _run([tool, *command[1:], *process], folder, seconds)
        out.write_text(text)
        if code is None:
            return {"failed": f"took more than {seconds:.0f} s (see {out.name})"}
        if f"{names[0]}: " in text:  # the process ran, so the tool knows the options
            break
    last = next((line for line in reversed(text.splitlines()) if "SUMMARY" in line), "")
    summary = last.strip("= ") or f"exit code {code}"
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
        except subprocess.TimeoutExpired:  # a driver holds the process back, so it is left alone
            text = ""
        return None, text
    return process.returncode, text
