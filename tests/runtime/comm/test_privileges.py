"""Programs with raised privileges ignore the environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from library import build_whole, run
from tcc.backends.artifact.comm_library import comm_sources
from tcc.backends.artifact.toolchain import runtime_folder

# A call of the function that reads a variable, under any name, or a use of the variables
# themselves.
READS = re.compile(r"\b(\w*getenv|environ|__environ)\b\s*(\(|\[|;|\)|,)")
FILES = {
    "TCC_COMM_PLUGIN": "/no/engine.so", "TCC_MPI_LIBRARY": "/no/mpi.so",
    "TCC_NCCL_LIBRARY": "/no/nccl.so", "TCC_RCCL_LIBRARY": "/no/rccl.so",
}  # fmt: skip
JOB = {"TCC_RANK": "0", "TCC_SIZE": "1", "TCC_RENDEZVOUS": "/no/job"}


def sources() -> list[Path]:
    """Returns all files of the runtime that are compiled to native code."""
    base = runtime_folder()
    kinds = (".c", ".h", ".cpp")
    return sorted(path for path in base.rglob("*") if path.suffix in kinds)


def test_every_variable_is_read_by_secure_getenv() -> None:
    calls = [
        (path.name, line.strip())
        for path in sources()
        for line in path.read_text().splitlines()
        if READS.search(line)
    ]
    assert len(calls) > 10, "the pattern finds no calls"
    assert [call for call in calls if "secure_getenv(" not in call[1]] == []


def test_the_library_calls_no_getenv(comm_library: Path) -> None:
    names = run("nm", "-D", "--undefined-only", comm_library)
    assert "secure_getenv" in names
    assert not re.search(r" (__secure_)?getenv\b", names)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_whole(tmp_path_factory.mktemp("raised"), "raised", comm_sources(), "-O1")


def raised(program: Path) -> Path:
    """Returns a copy of `program` that gets another group when it starts."""
    groups = {os.getegid(), *([65534] if os.geteuid() == 0 else os.getgroups())}
    copy = program.with_name("with-group")
    shutil.copy(program, copy)
    for group in groups - {os.getegid()}:
        os.chown(copy, -1, group)
        copy.chmod(0o2755)
        if subprocess.run([copy], capture_output=True, check=False).stdout[:1] == b"1":
            return copy
    pytest.skip("this user has no second group, or the file system grants none to programs")


def test_a_program_with_raised_privileges_reads_no_variable(program: Path) -> None:
    said = run(program, **FILES, **JOB)
    assert said.startswith("0\n")
    assert all(f"{path}" in said for path in (*FILES.values(), "/no/job"))
    said = run(raised(program), **FILES, **JOB)
    assert "/no/" not in said
    assert "plugin: TCC_COMM_PLUGIN names no file" in said
    assert "launcher: no launcher says which rank this process is" in said
