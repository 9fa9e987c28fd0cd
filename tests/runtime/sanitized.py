"""The whole runtime with sanitizers, compiled once for all drivers that are linked with it: with
those of addresses and undefined behaviour, or with that of threads."""

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
    """Compiles the runtime to objects in `folder`: another worker may be waiting for them, so all
    processors do."""

    def compile_one(source: Path) -> None:
        made = folder / source.parent.name  # two folders have files of one name
        made.mkdir(exist_ok=True)
        subprocess.run((*_command(flags), "-c", str(source)), cwd=made, check=True)

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, runtime_sources()))


class Sanitized:
    """Programs with the objects that `build_sanitized` wrote into `folder`; with FLAGS,
    allocations and trips of loops can be made to fail."""

    def __init__(self, folder: Path, flags: Sequence[str] = FLAGS) -> None:
        self.folder, self.flags = folder, flags

    def program(self, name: str, *sources: Path, flags: Sequence[str] = ()) -> Path:
        """The program of these C files and the runtime; no other has its name."""
        made = self.folder / name
        if not made.exists():
            objects = [str(path) for path in sorted(self.folder.glob("*/*.o"))]
            own = self.folder / f"{name}.{os.getpid()}"  # two workers may be making it
            command = (*_command(self.flags), *flags, *map(str, sources), *objects, "-o", str(own))
            subprocess.run((*command, "-lm", "-lpthread", "-ldl"), check=True)
            own.rename(made)
        return made


def run_sanitized(program: Path, *arguments: str) -> str:
    """What it prints; fails with the sanitizers' report."""
    result = finished(program, *arguments, env={**os.environ, "ASAN_OPTIONS": OPTIONS})
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout
