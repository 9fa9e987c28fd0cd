"""Runs artifacts for 64-bit Arm in qemu through a small C program."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from tcc import driver
from tcc.artifact import read_manifest
from tcc.backends.artifact.toolchain import runtime_folder
from tcc.ir.types import DTYPES
from tcc.options import read_options

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
OLDER = "qemu-x86_64"  # The emulator of older processors of this machine's architecture.
LIBRARIES = Path("/usr/aarch64-linux-gnu")
MISSING = [tool for tool in (COMPILER, EMULATOR) if not shutil.which(tool)]
needs_emulator = pytest.mark.skipif(
    bool(MISSING),
    reason=f"needs {' and '.join(MISSING)} (Debian: qemu-user gcc-aarch64-linux-gnu)",
)

needs_older = pytest.mark.skipif(
    platform.machine() != "x86_64" or not all(map(shutil.which, (OLDER, "cc"))),
    reason=f"needs {OLDER} on x86-64 (Debian: qemu-user)",
)

Arrays = Mapping[str, np.ndarray]


def compile_emulated(model: Any, path: Path, **options: Any) -> Path:
    """Compiles an ONNX model or a graph to an artifact."""
    settings = read_options({"target": "cpu:aarch64", "jobs": 1, **options})
    if isinstance(model, Path):
        return driver.compile_model(model, settings, path).path
    with patch.object(driver, "load_batched", lambda graph, *_, **__: (graph, None)):
        return driver.compile_model(model, settings, path).path


@cache
def client(compiler: str = COMPILER) -> Path:
    """Returns the program that runs artifacts.

    It stays in `build`, because test workers may end without their exit handlers.
    """
    program = Path(__file__).parents[2] / "build" / f"raw_client-{compiler}"
    program.parent.mkdir(exist_ok=True)
    source = Path(__file__).with_name("raw_client.c")
    flags = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror")
    include = f"-I{runtime_folder() / 'include'}"
    with TemporaryDirectory(dir=program.parent) as folder:
        binary = Path(folder) / "client"
        subprocess.run((compiler, *flags, include, source, "-o", binary, "-ldl"), check=True)
        # A rename is atomic, because another worker may be running the old program.
        binary.replace(program)
    return program


def started(
    path: Path, folder: Path, cpu: str = "max", threads: int = 2
) -> subprocess.CompletedProcess[str]:
    """Runs the artifact on the arrays in `folder` and returns the finished process."""
    settings = ("-E", f"TCC_NUM_THREADS={threads}", "-L", str(LIBRARIES))
    return _started((EMULATOR, "-cpu", cpu, *settings, client()), path, folder)


def started_older(path: Path, folder: Path, cpu: str) -> subprocess.CompletedProcess[str]:
    """Runs the artifact on an emulated x86-64 processor and returns the finished process."""
    return _started((OLDER, "-cpu", cpu, client("cc")), path, folder)


def _started(
    command: Sequence[str | Path], path: Path, folder: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (*command, path, folder), capture_output=True, text=True, timeout=300, check=False
    )


def run_emulated(
    path: Path, feeds: Arrays, folder: Path, cpu: str = "max", threads: int = 2
) -> dict[str, np.ndarray]:
    """Runs the artifact on the emulator's processor `cpu` and returns the outputs."""
    manifest = read_manifest(path)
    folder.mkdir(exist_ok=True)
    for number, port in enumerate(manifest["inputs"]):
        array = np.asarray(feeds[port["name"]], order="C")
        sizes = np.array(array.shape, np.int64).tobytes()
        (folder / f"in{number}").write_bytes(sizes + array.tobytes())
    process = started(path, folder, cpu, threads)
    assert (process.returncode, process.stderr) == (0, "")
    return {
        port["name"]: _output(folder / f"out{number}", port)
        for number, port in enumerate(manifest["outputs"])
    }


def _output(path: Path, port: Mapping[str, Any]) -> np.ndarray:
    rank, data = len(port["shape"]), path.read_bytes()
    sizes = np.frombuffer(data[: 8 * rank], np.int64)
    dtype = DTYPES[port["dtype"]]
    kind = np.uint16 if dtype.name == "bf16" else dtype.carrier
    return np.frombuffer(data[8 * rank :], kind).reshape(sizes)
