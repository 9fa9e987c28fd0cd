"""Loads and runs a model while system calls fail or resource limits are small, by enduring.c and by
Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import programs
from trials import HERE, RUNTIME, compile_c

from tests.runtime.interposer import INTERPOSER

# Sets a resource limit, then loads and runs the model `sys.argv[1]` on `sys.argv[2]` threads.
PYTHON = """
import gc, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
import numpy as np
from tcc.runtime import load

path, threads = sys.argv[1], int(sys.argv[2])
count = np.int64(1 << 18)
if len(sys.argv) > 3:
    which, most = map(int, sys.argv[3:])
    resource.setrlimit(which, (most, resource.getrlimit(which)[1]))
for _ in range(2):
    try:
        module = load(path, threads=threads)
        y = module(count)
        assert y.tolist() == [(1 << 18) + i for i in (1, 2, 3, 4)], y
        print("right")
    except (RuntimeError, MemoryError, OSError) as error:
        assert str(error) or isinstance(error, MemoryError)
        print(f"status: {error}")
    module = None
    gc.collect()
"""


@dataclass(frozen=True)
class Outcome:
    """The exit code of a process, its output, and the number of watched calls."""

    code: int
    text: str
    calls: int

    @property
    def good(self) -> bool:
        """Returns True if there was no signal, no wrong result and no status without a reason, and
        nothing is left behind."""
        return self.code == 0


@dataclass(frozen=True)
class Failures:
    """The files of `build_failures`, in a folder that every user may read."""

    folder: Path

    @property
    def artifact(self) -> Path:
        return self.folder / "enduring.so"

    def host(self, threads: int, *limit: int, stack: str = "", **variables: str) -> Outcome:
        """Runs the C host, under a resource limit or with `ulimit -s STACK`."""
        command = [self.folder / "enduring", self.artifact, threads, *limit]
        if stack:
            command = ["sh", "-c", f'ulimit -s {stack}; exec "$@"', "sh", *command]
        return self._outcome(command, variables)

    def python(self, threads: int, *limit: int, **variables: str) -> Outcome:
        command = [sys.executable, "-c", PYTHON, self.artifact, threads, *limit]
        told = self.folder / f"calls-{os.getpid()}"
        told.unlink(missing_ok=True)
        path = {"PYTHONPATH": ":".join(sys.path), "FAIL_TO": str(told)}
        outcome = self._outcome(command, path | variables)
        calls = told.read_text().split() if told.exists() else ("calls", "0")
        return replace(outcome, calls=int(calls[1]))

    def failing(self, at: int, on: bool, error: int) -> dict[str, str]:
        """Returns the variables with which call `at` fails, and all later calls too if `on`."""
        return {
            "LD_PRELOAD": str(self.folder / "failing.so"), "FAIL_OF": self.artifact.name,
            "FAIL_AT": str(at), "FAIL_ON": str(int(on)), "FAIL_ERROR": str(error),
        }  # fmt: skip

    def _outcome(self, command: list[object], variables: dict[str, str]) -> Outcome:
        try:
            process = subprocess.run(  # file limits do not apply to pipes
                [str(word) for word in command], env=os.environ | variables, check=False,
                timeout=60, capture_output=True, text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            return Outcome(-1, str(late), 0)
        calls = re.search(r"^calls (\d+)", process.stdout, re.MULTILINE)
        return Outcome(
            process.returncode, process.stdout + process.stderr, int(calls[1]) if calls else 0
        )


def build_failures(folder: Path, kernels: bytes) -> Failures:
    """Builds the artifact, the host, and the library that makes calls fail."""
    folder.chmod(0o755)
    program, weights = programs.enduring()
    programs.link(program, kernels, folder / "enduring.so", weights=[weights])
    preloaded = ("-O1", "-shared", "-fPIC", "-w", "-ldl", "-lpthread")
    compile_c("cc", preloaded, [INTERPOSER], folder / "failing.so")
    flags = ("-O1", f"-I{RUNTIME / 'include'}", "-ldl")
    compile_c("cc", flags, [HERE / "enduring.c"], folder / "enduring")
    return Failures(folder)
