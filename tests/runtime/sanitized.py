"""Compiles the whole runtime with sanitizers, once for all drivers: for addresses and undefined
behaviour, or for threads."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tcc.backends.artifact.toolchain import runtime_folder, runtime_sources

from tests.processes import finished

FLAGS = (
    "-std=c11", "-O0", "-DTCC_TEST_FAIL_ALLOCATION", "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)  # fmt: skip
RACES = ("-std=c11", "-O1", "-fsanitize=thread")
OPTIONS = "allocator_may_return_null=1:detect_leaks=1:max_allocation_size_mb=256"


def _command(flags: Sequence[str]) -> tuple[str, ...]:
    base = runtime_folder()
    return ("cc", *flags, f"-I{base / 'include'}", f"-I{base / 'src'}")


def build_sanitized(folder: Path, flags: Sequence[str] = FLAGS) -> None:
    """Compiles the runtime to objects in `folder`, on all processors, because another worker may be
    waiting."""

    def compile_one(source: Path) -> None:
        object_folder = folder / source.parent.name  # two folders have files of one name
        object_folder.mkdir(exist_ok=True)
        subprocess.run((*_command(flags), "-c", str(source)), cwd=object_folder, check=True)

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, runtime_sources()))


class Sanitized:
    """Programs with the objects of `build_sanitized` in `folder`; with FLAGS, allocations and loop
    trips can be made to fail."""

    def __init__(self, folder: Path, flags: Sequence[str] = FLAGS) -> None:
        self.folder, self.flags = folder, flags

    def program(self, name: str, *sources: Path, flags: Sequence[str] = ()) -> Path:
        """Returns the program of these C files and the runtime, built once; `name` must be
        unique."""
        program_path = self.folder / name
        if not program_path.exists():
            objects = [str(path) for path in sorted(self.folder.glob("*/*.o"))]
            private_path = self.folder / f"{name}.{os.getpid()}"  # two workers may be building it
            command = (
                *_command(self.flags),
                *flags,
                *map(str, sources),
                *objects,
                "-o",
                str(private_path),
            )
            subprocess.run((*command, "-lm", "-lpthread", "-ldl"), check=True)
            private_path.rename(program_path)
        return program_path


def run_sanitized(program: Path, *arguments: str) -> str:
    """Returns the output of a program; fails with the sanitizers' report."""
    result = finished(program, *arguments, env={**os.environ, "ASAN_OPTIONS": OPTIONS})
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout
