"""Runs lifetimes.py, with its models, and with sanitizers under which Python may run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import programs
from library import HERE, WATCHED, build_shared
from programs import Builder
from tcc.backends.artifact.comm_library import comm_sources
from tcc.ir.program import (
    Collective,
    CollectiveKind,
    Copy,
    Input,
    IntOp,
    Program,
    Reduction,
    Symmetric,
    Wait,
)
from tcc.ir.types import DTYPES

from tests.processes import finished


def summed() -> Program:
    """Returns y = the sum of all ranks' relu(x): f32[n], in memory that ranks share."""
    b = Builder()
    n, four = b.let(IntOp.DIM, 0, 0), b.const(4)
    size = b.let(IntOp.MUL, n, four)
    b.input("x", "f32", [n], "[n]")
    x, y = b.buffer(Input(0)), b.output("y", "f32", [n], "[n]")
    send, receive = b.buffer(Symmetric(b.const(0), size)), b.buffer(Symmetric(size, size))
    b.allocate(y, size)
    b.launch("relu", n, [x, send], [])
    kind, dtype = CollectiveKind.ALL_REDUCE, DTYPES["f32"]
    b.body += [
        Collective(kind, Reduction.SUM, send, receive, (n,), dtype, 0),
        Wait(0, send, receive),
        Copy(y, receive, size),
    ]
    return b.program()


def plain() -> Program:
    """Returns y = relu(x), f32[n]."""
    b = Builder()
    n = b.let(IntOp.DIM, 0, 0)
    b.input("x", "f32", [n], "[n]")
    x, y = b.buffer(Input(0)), b.output("y", "f32", [n], "[n]")
    b.allocate(y, b.let(IntOp.MUL, n, b.const(4)))
    b.launch("relu", n, [x, y], [])
    return b.program()


def link_models(folder: Path, kernels: bytes) -> None:
    """Writes the models of lifetimes.py into `folder`."""
    for name, program in (("summed", summed()), ("plain", plain())):
        programs.link(program, kernels, folder / f"{name}.so")


def run_orders(
    folder: Path,
    library: Path,
    *arguments: str,
    seconds: float = 120,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Returns the last line of lifetimes.py; fails with its lines on bad orders."""
    environment = os.environ | {"TCC_COMM_LIBRARY": str(library)} | {**(variables or {})}
    command = (sys.executable, HERE / "lifetimes.py", folder, *arguments)
    process = finished(*command, seconds=seconds, env=environment)
    assert process.returncode == 0, f"{process.stdout[-3000:]}{process.stderr[-3000:]}"
    return process.stdout.splitlines()[-1]


def watched_python() -> dict[str, str] | str:
    """Returns the environment variables with which this Python runs under ASan and UBSan, or a
    sentence that says why it cannot."""
    compiler = shutil.which("cc")
    if compiler is None:
        return "no C compiler"
    libraries = [
        subprocess.run(
            (compiler, f"-print-file-name=lib{name}.so"), capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("asan", "ubsan")
    ]
    if not all(map(os.path.isabs, libraries)):
        return "the compiler has no libraries of ASan and UBSan"
    variables = {
        "LD_PRELOAD": " ".join(libraries), "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaks
    }  # fmt: skip
    command = (sys.executable, "-c", "import numpy")
    trial = finished(*command, env=os.environ | variables)
    if trial.returncode:
        return f"this Python does not run under ASan: {trial.stderr[-200:].strip()}"
    return variables


def build_watched_library(folder: Path, objects: Sequence[Path] = ()) -> Path:
    """Builds libtcc_comm.so with ASan and UBSan, from its files or from objects with these
    flags."""
    return build_shared(folder, "libtcc_comm.so", objects or comm_sources(), *WATCHED)
