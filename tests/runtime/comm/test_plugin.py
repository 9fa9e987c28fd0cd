"""Engines in shared objects work: one over files, and installed libraries."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from library import run
from plugins import LIBRARIES, build_file_engine, run_ranks


@pytest.mark.parametrize("size", [1, 2])
def test_the_matrix_over_files(programs: Path, tmp_path: Path, size: int) -> None:
    command = (programs / "matrix", "0", "short", "plugin")
    printed = run_ranks(size, build_file_engine(tmp_path), *command, TMPDIR=str(tmp_path))
    assert printed == ["ok\n"] * size


def test_threads_use_comms_at_once_over_files(programs: Path, tmp_path: Path) -> None:
    command = (programs / "beside", "plugin")
    printed = run_ranks(2, build_file_engine(tmp_path), *command, TMPDIR=str(tmp_path))
    assert printed == ["ok\n"] * 2


def test_two_threads_in_one_comm_over_files(programs: Path, tmp_path: Path) -> None:
    command = (programs / "crossed", "0", "plugin")
    printed = run_ranks(2, build_file_engine(tmp_path), *command, TMPDIR=str(tmp_path))
    assert printed == ["ok\n"] * 2


REFUSED = """
from tcc.runtime import comm as comms
with comms.open(backends="plugin") as comm:
    for call in (comm.failed, comm.shrink):
        try:
            call()
        except comms.CommError as error:
            print(error)
    comm.barrier()
"""


def test_engines_do_not_say_who_is_dead(comm_library: Path, tmp_path: Path) -> None:
    """The comm stays usable."""
    variables = {"TCC_COMM_LIBRARY": str(comm_library), "TMPDIR": str(tmp_path)}
    engine = build_file_engine(tmp_path)
    (printed,) = run_ranks(1, engine, sys.executable, "-c", REFUSED, **variables)
    assert printed.splitlines() == [
        "the backend plugin cannot tell which ranks are dead: ask what started them (unsupported)",
        "the backend plugin cannot shrink a comm: start the job again, or open a comm of the ranks "
        "that are left with a higher epoch (unsupported)",
    ]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("-DVERSION=9",), r"engine.so has no engine of version 1"),
        (("-DWITHOUT=test",), r"engine.so: a function of its engine is NULL"),
        (("-Dtcc_comm_plugin_get=another",), r"engine.so has no function tcc_comm_plugin_get"),
        (("-DBYTES=offsetof(tcc_comm_engine, test)",),
         r"engine.so: its tcc_comm_engine has 88 bytes, and needs 96 of the 104"),
    ],
)  # fmt: skip
def test_another_interface_is_refused(
    programs: Path, tmp_path: Path, flags: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(
        AssertionError, match=rf"no backend fits.*plugin: TCC_COMM_PLUGIN=.*{expected}"
    ):
        run_ranks(
            1, build_file_engine(tmp_path, *flags), programs / "matrix", "0", "short", "plugin"
        )


@pytest.mark.parametrize("size", ["offsetof(tcc_comm_engine, leave)", "sizeof engine + 8"])
def test_engines_of_other_versions_are_taken(programs: Path, tmp_path: Path, size: str) -> None:
    engine = build_file_engine(tmp_path, f"-DBYTES={size}")
    command = (programs / "beside", "plugin")
    assert run_ranks(2, engine, *command, TMPDIR=str(tmp_path)) == ["ok\n"] * 2


def test_a_missing_file_is_named(programs: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"plugin: TCC_COMM_PLUGIN: /no/engine.so: cannot open"
    ):
        run_ranks(1, Path("/no/engine.so"), programs / "matrix", "0", "short", "plugin")


def test_a_rendezvous_without_a_port_is_named(programs: Path, tmp_path: Path) -> None:
    variables = {
        "TCC_RANK": "0", "TCC_SIZE": "2", "TCC_RENDEZVOUS": "job", "TMPDIR": str(tmp_path),
        "TCC_COMM_PLUGIN": str(build_file_engine(tmp_path)),
    }  # fmt: skip
    with pytest.raises(AssertionError, match=r"meet at HOST:PORT, and 'job' is none"):
        run(programs / "matrix", "0", "short", "plugin", **variables)


# ---- libraries that may be installed -----------------------------------------------------------


PROGRAMS = [(name, ("matrix", "0", "short", "plugin")) for name in LIBRARIES] + [
    (name, ("beside", "plugin")) for name, row in LIBRARIES.items() if row.splits_at_once
]


@pytest.mark.parametrize(("name", "program"), PROGRAMS)
def test_ranks_over_a_library(
    programs: Path, tmp_path: Path, name: str, program: tuple[str, ...]
) -> None:
    library = LIBRARIES[name]
    prefix = library.prefix
    if not library.is_in(prefix):
        variable = f"TCC_TEST_{name.upper()}"
        pytest.skip(f"{prefix} has no {name}: install {library.remedy}, or set {variable}")
    plugin = library.build(tmp_path, prefix)
    command = (programs / program[0], *program[1:])
    printed = run_ranks(2, plugin, *command, **library.environment(prefix))
    # oneCCL prints its variables, too
    assert [text.splitlines()[-1] for text in printed] == ["ok", "ok"]
