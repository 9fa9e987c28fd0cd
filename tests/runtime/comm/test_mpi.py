"""The operation matrix runs over MPI, if a library with the standard binary interface is
installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from library import run

PREFIX = Path(os.environ.get("TCC_TEST_MPI", sys.prefix))
LIBRARY = PREFIX / "lib" / "libmpi_abi.so.1"
MPIEXEC = PREFIX / "bin" / "mpiexec"


@pytest.fixture
def launcher() -> str:
    if not (LIBRARY.is_file() and MPIEXEC.is_file()):
        pytest.skip(f"no MPI library in {PREFIX}: install the wheel mpich, or set TCC_TEST_MPI")
    return str(MPIEXEC)


def test_the_matrix_over_mpi(launcher: str, programs: Path) -> None:
    command = (launcher, "-n", "3", programs / "matrix", "0", "short", "mpi")
    assert run(*command, TCC_MPI_LIBRARY=str(LIBRARY)).count("ok") == 3  # lines may mix


def test_two_threads_in_one_comm_over_mpi(launcher: str, programs: Path) -> None:
    command = (launcher, "-n", "2", programs / "crossed", "0", "mpi")
    assert run(*command, TCC_MPI_LIBRARY=str(LIBRARY)).count("ok") == 2


def test_a_program_that_has_initialised_mpi_is_joined(launcher: str, programs: Path) -> None:
    assert run(launcher, "-n", "2", programs / "joined", LIBRARY).count("ok") == 2


def test_a_missing_library_is_named(programs: Path) -> None:
    variables = {"TCC_RANK": "0", "TCC_SIZE": "1", "TCC_MPI_LIBRARY": "/no/libmpi.so"}
    with pytest.raises(AssertionError, match=r"no backend fits 1 ranks.*TCC_MPI_LIBRARY: /no/"):
        run(programs / "matrix", "0", "short", "mpi", **variables)


def test_a_world_of_another_launcher_is_refused(launcher: str, programs: Path) -> None:
    variables = {"TCC_RANK": "0", "TCC_SIZE": "2", "TCC_MPI_LIBRARY": str(LIBRARY)}
    with pytest.raises(AssertionError, match=r"rank 0 of 2, but rank 0 of 1 in the world of"):
        run(programs / "matrix", "0", "short", "mpi", **variables)
