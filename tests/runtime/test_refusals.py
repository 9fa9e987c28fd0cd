"""The C interface refuses wrong calls with a reason, and they do no harm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import programs
from tcc.backends.artifact.toolchain import runtime_folder

from tests.processes import finished

HERE = Path(__file__).parent
FLAGS = (
    "-std=gnu11", "-O0", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)  # fmt: skip


def test_arguments_that_cannot_be_right(kernels: bytes, mlp_path: Path, tmp_path: Path) -> None:
    program, lists = tmp_path / "refusals", tmp_path / "lists.so"
    programs.link(programs.handles(), kernels, lists, weights=[bytes(4096)])
    include = f"-I{runtime_folder() / 'include'}"
    command = ("cc", *FLAGS, include, HERE / "refusals.c", "-o", program, "-ldl", "-lm")
    subprocess.run([*map(str, command)], check=True)
    result = finished(program, mlp_path, lists)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr[-3000:]
