"""Which ranks run on one host: their numbers there, without a launcher that says them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from library import run
from plugins import build_file_engine, run_ranks

SHOW = """
from tcc.runtime import comm
with comm.open() as it:
    part = it.split(0, -it.rank)
    print(it.local_rank, it.local_size, part.rank, part.local_rank)
    part.close()
"""


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("a", "0/1"),
        ("a a a", "0/3 1/3 2/3"),
        ("a a b b", "0/2 1/2 0/2 1/2"),
        ("a b a b a", "0/3 0/2 1/3 1/2 2/3"),
        ("a ab a", "0/2 0/1 1/2"),
    ],
)
def test_ranks_are_counted_by_host(programs: Path, hosts: str, expected: str) -> None:
    assert run(programs / "hosts", *hosts.split()).strip() == expected


def test_a_process_of_another_network_is_of_another_host(programs: Path) -> None:
    """As `shared` needs it."""
    done = subprocess.run([programs / "hosts"], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("the kernel makes no network namespace for this user")
    assert done.stdout.strip() == "0/2 1/2 0/1"


@pytest.mark.parametrize("backend", ["plugin", "shared"])
def test_ranks_find_their_numbers_where_they_meet(
    tmp_path: Path, comm_library: Path, backend: str
) -> None:
    engine = build_file_engine(tmp_path)
    show = SHOW.replace("open()", f"open(backends='{backend}')")
    variables = {"TMPDIR": str(tmp_path), "TCC_COMM_LIBRARY": str(comm_library)}
    printed = run_ranks(2, engine, sys.executable, "-c", show, **variables)
    assert printed == ["0 2 1 0\n", "1 2 0 1\n"]
    said = variables | {"TCC_LOCAL_RANK": "0", "TCC_LOCAL_SIZE": "1"}
    if backend == "plugin":  # a launcher's word goes before
        printed = run_ranks(2, engine, sys.executable, "-c", show, **said)
        assert printed == ["0 1 1 0\n", "0 1 0 0\n"]
