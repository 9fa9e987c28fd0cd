"""Threads and forked children that run one program with strings and lists, under sanitizers."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import handle_programs
import programs
import pytest
from tcc.backends.artifact.encode_program import encode_program
from tcc.backends.artifact.toolchain import runtime_folder, runtime_sources
from tcc.ir.program import Program

from tests.processes import finished

PROGRAMS = {"handles": programs.handles(), "growing": handle_programs.growing(4)}


def build(folder: Path, *flags: str) -> Path:
    base = runtime_folder()
    includes = (f"-I{base / 'include'}", f"-I{base / 'src'}")
    sources = [str(Path(__file__).with_name("callers.c")), *map(str, runtime_sources())]
    command = ("cc", "-std=c11", "-O0", "-Wall", "-Wextra", "-Werror", *flags, *includes, *sources)
    command += ("-o", "callers", "-lm", "-lpthread", "-ldl")
    subprocess.run(command, cwd=folder, check=True)
    return folder / "callers"


def run(binary: Path, program: Program, callers: int, runs: int, fork: int) -> None:
    record = encode_program(program)
    path = binary.with_name("record")
    path.write_bytes(struct.pack("<q", len(record)) + record)
    result = finished(binary, path, len(programs.KERNEL_NAMES), callers, runs, fork)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr[-3000:]


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("callers"), "-fsanitize=thread")


@pytest.mark.parametrize("name", PROGRAMS)
def test_eight_callers_of_one_model_have_no_data_race(threads: Path, name: str) -> None:
    run(threads, PROGRAMS[name], 8, 10, 0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_forked_child_gets_the_same(threads: Path, name: str) -> None:
    run(threads, PROGRAMS[name], 2, 3, 1)
