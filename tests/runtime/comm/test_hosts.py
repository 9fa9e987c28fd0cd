"""Ranks find out which of them run on one host, and their numbers there, without a launcher's
help."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from library import run
from plugins import build_file_engine, free_port, run_ranks

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
    """Ranks in different network namespaces cannot use the engine `shared`."""
    process = subprocess.run([programs / "hosts"], capture_output=True, text=True, check=False)
    if process.returncode == 77:
        pytest.skip("the kernel makes no network namespace for this user")
    assert process.stdout.strip() == "0/2 1/2 0/1"


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
    if backend == "plugin":  # a launcher's setting takes precedence
        printed = run_ranks(2, engine, sys.executable, "-c", show, **said)
        assert printed == ["0 1 1 0\n", "0 1 0 0\n"]


# Runs a command for which the kernel reports another boot id, like another host's.
ELSEWHERE = """
mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"
"""


def other_host(folder: Path) -> tuple[str | Path, ...]:
    """Returns the words before a command whose process must seem to run on another host."""
    boot = folder / "boot"
    boot.write_text("b" * 36)
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    before = ("unshare", *user, "--mount", "sh", "-c", ELSEWHERE, boot)
    if subprocess.run((*before, "true"), capture_output=True, check=False).returncode:
        pytest.skip("the kernel makes no mount namespace for this user")
    return before


@pytest.mark.parametrize("backends", ["None", "'shared'"])
def test_ranks_of_two_hosts_do_not_try_to_share_memory(
    tmp_path: Path, comm_library: Path, backends: str
) -> None:
    """Only the ranks themselves tell which of them share a host."""
    show = SHOW.replace("open()", f"open(backends={backends}, open_seconds=20)")
    variables = {
        "TCC_COMM_PLUGIN": str(build_file_engine(tmp_path)), "TCC_COMM_LIBRARY": str(comm_library),
        "TCC_SIZE": "3", "TCC_RENDEZVOUS": f"127.0.0.1:{free_port()}", "TMPDIR": str(tmp_path),
        "TCC_TOKEN": "of this test",
    }  # fmt: skip
    places = ((), other_host(tmp_path), ())

    def said(rank: int) -> str:
        command = (*places[rank], sys.executable, "-c", show)
        return run(*command, TCC_RANK=str(rank), **variables)

    with ThreadPoolExecutor(3) as pool:
        ranks = [pool.submit(said, rank) for rank in range(3)]
        if backends == "None":
            expected = ["0 2 2 0\n", "0 1 1 0\n", "1 2 0 1\n"]
            assert [rank.result() for rank in ranks] == expected
            return
        for rank in ranks:
            with pytest.raises(AssertionError, match="the ranks are not all of one host"):
                rank.result()


def test_a_name_without_a_port_is_of_one_host(tmp_path: Path, comm_library: Path) -> None:
    show = SHOW.replace("open()", "open(open_seconds=0.05)")
    variables = {"TCC_COMM_LIBRARY": str(comm_library), "TCC_RENDEZVOUS": f"job {tmp_path}"}
    expected = r"not come to 'job .*in time: 1; ranks of several hosts meet"
    with pytest.raises(AssertionError, match=expected):
        run(sys.executable, "-c", show, TCC_RANK="0", TCC_SIZE="2", **variables)
