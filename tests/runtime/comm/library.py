"""Programs of this folder with the communication library's sources, compiled once a session."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tcc.backends.artifact.comm_library import comm_sources
from tcc.backends.artifact.toolchain import runtime_folder

HERE = Path(__file__).parent
WARNINGS = ("-Wall", "-Wextra", "-Werror")
LIBRARIES = ("-lm", "-lpthread", "-ldl")
# So that a test of failing calls for memory reaches those of the library alone.
FAILING = ("-include", str(HERE / "failing.h"))


def build_objects(folder: Path, *flags: str) -> list[str]:
    """The library's objects, in `folder`."""
    base = runtime_folder()
    includes = (f"-I{base / 'include'}", f"-I{base / 'src'}")
    folder.mkdir(parents=True, exist_ok=True)
    command = ("cc", "-std=gnu11", *WARNINGS, *flags, *includes, "-c", *map(str, comm_sources()))
    subprocess.run(command, cwd=folder, check=True)
    return [str(path) for path in sorted(folder.glob("*.o"))]


def build_program(folder: Path, name: str, objects: Sequence[str], *flags: str) -> Path:
    """The program `name`.c of this folder, or of the path `name`, with the library's objects."""
    includes = (f"-I{runtime_folder() / 'include'}", f"-I{HERE}")
    source = str(HERE / f"{name}.c")
    command = ("cc", "-std=gnu11", *WARNINGS, *flags, *includes, source, *objects)
    made = folder / Path(name).name
    subprocess.run((*command, "-o", str(made), *LIBRARIES), check=True)
    return made


def run(*command: str | Path, seconds: float = 100, **variables: str) -> str:
    """What a program prints; fails with its errors."""
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=seconds,
        check=False, env=os.environ | variables,
    )  # fmt: skip
    assert result.returncode == 0, f"{command}: {result.returncode}\n{result.stderr[-3000:]}"
    return result.stdout
