"""The whole runtime with sanitizers, compiled once for all drivers that are linked with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tcc.backends.artifact.toolchain import runtime_folder, runtime_sources

from tests.processes import finished

FLAGS = (
    "-std=c11", "-O0", "-DTCC_TEST_FAIL_ALLOCATION", "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)  # fmt: skip
OPTIONS = "allocator_may_return_null=1:detect_leaks=1:max_allocation_size_mb=256"


class Sanitized:
    """Objects of the runtime in `folder`; allocations and trips of loops can be made to fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        base = runtime_folder()
        self._compile = ("cc", *FLAGS, f"-I{base / 'include'}", f"-I{base / 'src'}")
        for name in sorted({path.parent for path in runtime_sources()}):
            sources = [str(path) for path in runtime_sources() if path.parent == name]
            (folder / name.name).mkdir()  # two folders have files of one name
            subprocess.run((*self._compile, "-c", *sources), cwd=folder / name.name, check=True)

    def program(self, name: str, *sources: Path) -> Path:
        """The program of these C files and the runtime."""
        made = self.folder / name
        if not made.exists():
            objects = [str(path) for path in sorted(self.folder.glob("*/*.o"))]
            command = (*self._compile, *map(str, sources), *objects, "-o", str(made))
            subprocess.run((*command, "-lm", "-lpthread", "-ldl"), check=True)
        return made


def run_sanitized(program: Path, *arguments: str) -> str:
    """What it prints; fails with the sanitizers' report."""
    result = finished(program, *arguments, env={**os.environ, "ASAN_OPTIONS": OPTIONS})
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout
