"""Ranks of different hosts meet with a secret, or by the explicit choice of none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from plugins import build_file_engine, free_port

from tests.processes import finished

SECONDS = 60  # seconds of a rank
SUM = """
import numpy as np
from tcc.runtime import comm
with comm.open(backends="plugin") as ranks:
    print(ranks.all_reduce(np.array([ranks.rank + 1], np.int32)))
"""
Launcher = Callable[[int, int], dict[str, str]]  # (rank, port) to the rank's variables
Run = Callable[..., list[CompletedProcess[str]]]


def torchrun(rank: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def slurm(rank: int, port: int) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": str(rank), "SLURM_STEP_ID": "0",
        "SLURM_JOB_ID": str(port), "SLURM_STEP_NODELIST": "localhost,other",
    }  # fmt: skip


def kubernetes(rank: int, port: int) -> dict[str, str]:
    return {
        "JOB_COMPLETION_INDEX": str(rank), "TCC_SIZE": "2", "TCC_RENDEZVOUS": f"127.0.0.1:{port}",
    }  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_file_engine(tmp_path_factory.mktemp("engine"))


@pytest.fixture
def run(engine: Path, comm_library: Path) -> Run:
    """Returns a function that runs two ranks which sum over files."""

    def both(launcher: Launcher, port: int, **variables: str) -> list[CompletedProcess[str]]:
        environment = {name: text for name, text in os.environ.items() if name != "TCC_TOKEN"}
        environment |= {"TCC_COMM_PLUGIN": str(engine), "TMPDIR": str(engine.parent)}
        environment |= {"TCC_COMM_LIBRARY": str(comm_library)} | variables
        with ThreadPoolExecutor(2) as pool:
            running = [
                pool.submit(
                    finished, sys.executable, "-c", SUM, seconds=SECONDS,
                    env=environment | launcher(rank, port),
                )
                for rank in range(2)
            ]  # fmt: skip
            return [rank.result() for rank in running]

    return both


@pytest.mark.parametrize("launcher", [torchrun, slurm, kubernetes])
def test_without_a_secret_no_job_meets(run: Run, launcher: Launcher) -> None:
    for process in run(launcher, free_port()):
        assert process.returncode != 0
        assert "has no secret, and ranks that meet over a network (" in process.stderr
        assert "set TCC_TOKEN to the same random text on all ranks" in process.stderr


@pytest.mark.parametrize("launcher", [torchrun, slurm, kubernetes])
def test_a_secret_is_enough(run: Run, launcher: Launcher) -> None:
    for process in run(launcher, free_port(), TCC_TOKEN="of this test"):
        assert (process.returncode, process.stdout, process.stderr) == (0, "[3]\n", "")


def test_the_choice_of_none_is_printed(run: Run) -> None:
    port = free_port()
    for number, process in enumerate(run(kubernetes, port, TCC_TOKEN="none")):
        assert (process.returncode, process.stdout) == (0, "[3]\n"), process.stderr
        assert process.stderr == (
            f"tcc: rank {number} of 2 meets the others at '127.0.0.1:{port}' without a secret "
            "(TCC_TOKEN=none): whoever reaches that port can take part\n"
        )
