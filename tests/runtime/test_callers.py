"""Threads and forked children run one program with strings and lists, under sanitizers."""

from __future__ import annotations

import struct
from pathlib import Path

import handle_programs
import programs
import pytest
from sanitized import Sanitized
from tcc.backends.artifact.encode_program import encode_program
from tcc.ir.program import Program

from tests.processes import finished

PROGRAMS = {"handles": programs.handles(), "growing": handle_programs.growing(4)}


def run(binary: Path, program: Program, folder: Path, callers: int, runs: int, fork: int) -> None:
    record = encode_program(program)
    path = folder / "record"
    path.write_bytes(struct.pack("<q", len(record)) + record)
    result = finished(binary, path, len(programs.KERNEL_NAMES), callers, runs, fork)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr[-3000:]


@pytest.fixture(scope="module")
def threads(racing: Sanitized) -> Path:
    source = Path(__file__).with_name("callers.c")
    return racing.program("callers", source, flags=("-Wall", "-Wextra", "-Werror"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_eight_callers_of_one_model_have_no_data_race(
    threads: Path, name: str, tmp_path: Path
) -> None:
    run(threads, PROGRAMS[name], tmp_path, 8, 10, 0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_forked_child_gets_the_same(threads: Path, name: str, tmp_path: Path) -> None:
    run(threads, PROGRAMS[name], tmp_path, 2, 3, 1)
