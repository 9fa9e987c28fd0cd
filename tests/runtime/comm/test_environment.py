"""Rank, size and rendezvous come from the variables of launchers, in their own formats."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

TCC = {"TCC_RANK": "1", "TCC_SIZE": "4", "TCC_RENDEZVOUS": "job"}
TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-node0-9@1",
}  # fmt: skip
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
SLURM = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "77", "SLURM_NODEID": "2",
}  # fmt: skip
KUBERNETES = {"JOB_COMPLETION_INDEX": "2", "TCC_SIZE": "3", "TCC_RENDEZVOUS": "indexed"}


def settings(programs: Path, variables: dict[str, str]) -> str:
    """Returns the settings that the library derives from these variables alone."""
    command = (str(programs / "settings"),)
    process = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return process.stdout.strip()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TCC, "1 4 -1 -1 0 job"),
        (TCC | {"TCC_LOCAL_RANK": "1", "TCC_LOCAL_SIZE": "4", "TCC_EPOCH": "3"}, "1 4 1 4 3 job"),
        (TORCHRUN, "3 8 3 4 2 node0:29500 port + 1"),
        (OPEN_MPI, "1 2 1 2 0 prterun-node0-9@1"),
        (HYDRA, "0 2 0 1 0"),
        (SLURM, "5 6 1 -1 0 77:0"),
        # tasks of each node of a step, in the order of nodes
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, "5 6 1 2 0 77:0"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x2),4"}, "5 6 1 4 0 77:0"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1,2,3"}, "5 6 1 3 0 77:0"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "6", "SLURM_NODEID": "0"}, "5 6 1 6 0 77:0"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "6", "SLURM_NODEID": ""}, "5 6 1 -1 0 77:0"),
        (KUBERNETES, "2 3 -1 1 0 indexed"),
        # launchers nest: the ranks of the inner launcher count
        (SLURM | TORCHRUN, "3 8 3 4 2 node0:29500 port + 1"),
        (KUBERNETES | {"TCC_SIZE": "2"} | OPEN_MPI, "1 2 1 2 0 indexed"),
        # two launchers agree
        (OPEN_MPI | {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
         "1 2 -1 -1 0 a:1 port + 1"),
        # a name for the job takes precedence over the launcher's
        (TORCHRUN | {"TCC_RENDEZVOUS": "mine"}, "3 8 3 4 2 mine"),
        # RANK and WORLD_SIZE are common names: torchrun sets them with an address
        (TCC | {"RANK": "3", "WORLD_SIZE": "8"}, "1 4 -1 -1 0 job"),
        # ranks of several hosts meet at the first host, at the job's port
        (SLURM | {"SLURM_STEP_NODELIST": "node[07-09,12],other"},
         "5 6 1 -1 0 77:0 at node07:65224"),
        (SLURM | {"SLURM_STEP_NODELIST": "a-1,b-2"}, "5 6 1 -1 0 77:0 at a-1:65224"),
        (SLURM | {"SLURM_STEP_NODELIST": "a", "TCC_RENDEZVOUS": "b:1"}, "5 6 1 -1 0 b:1"),
        # settings that a launcher does not give
        (KUBERNETES | {"TCC_EPOCH": "4", "TCC_LOCAL_SIZE": "3", "TCC_LOCAL_RANK": "2"},
         "2 3 2 3 4 indexed"),
        (HYDRA | {"TCC_EPOCH": "4", "TCC_RENDEZVOUS": "a:1"}, "0 2 0 1 4 a:1"),
        # the secret; `none` is an explicit choice
        (TCC | {"TCC_TOKEN": "of the job"}, "1 4 -1 -1 0 job with a token"),
        (TCC | {"TCC_TOKEN": "none"}, "1 4 -1 -1 0 job unguarded"),
        (TCC | {"TCC_TOKEN": ""}, "1 4 -1 -1 0 job"),
        # a Slurm batch script is no step
        ({k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"} | TCC, "1 4 -1 -1 0 job"),
    ],
)  # fmt: skip
def test_launchers(programs: Path, variables: dict[str, str], expected: str) -> None:
    assert settings(programs, variables) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "1: no launcher says which rank this process is"),
        ({"TCC_RANK": "0"}, "1: TCC_RANK is set and TCC_SIZE is not"),
        ({"TCC_SIZE": "2"}, "1: TCC_SIZE is set and TCC_RANK is not"),
        (TCC | {"TCC_RANK": "4"}, "1: TCC_RANK=4 and TCC_SIZE=4 contradict"),
        (TCC | {"TCC_RANK": "one"}, "1: TCC_RANK=one: expected a number from 0 on"),
        (TCC | {"TCC_SIZE": "-2"}, "1: TCC_SIZE=-2: expected a number from 0 on"),
        (TCC | {"TCC_SIZE": "99999999999"}, "1: TCC_SIZE=99999999999: expected a number"),
        (TCC | {"TCC_LOCAL_SIZE": "5", "TCC_LOCAL_RANK": "1"},
         "1: TCC_LOCAL_SIZE=5 and TCC_SIZE=4 contradict"),
        (TCC | {"TCC_LOCAL_SIZE": "1", "TCC_LOCAL_RANK": "1"},
         "1: TCC_LOCAL_RANK=1 and TCC_LOCAL_SIZE=1 contradict"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "7(x9)"},
         "1: SLURM_STEP_TASKS_PER_NODE=7 and SLURM_STEP_NUM_TASKS=6 contradict"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x3)", "TCC_LOCAL_SIZE": "6"},
         "1: TCC_LOCAL_SIZE=6 and SLURM_STEP_TASKS_PER_NODE=2 contradict"),
        *((SLURM | {"SLURM_STEP_TASKS_PER_NODE": text},
           f"1: SLURM_STEP_TASKS_PER_NODE={text} says no number for SLURM_NODEID=2")
          for text in ("2", "1(x2)", "2(x", "2(x1", "2(x1)3(x9)", "2,,2", "two(x3)", "-2(x3)",
                       "2(x-1),3")),
        (TCC | OPEN_MPI, "1: TCC_SIZE=4 and OMPI_COMM_WORLD_SIZE=2 contradict"),
        (TORCHRUN | HYDRA, "1: RANK=3 and PMI_RANK=0 contradict"),
        (TORCHRUN | {"TCC_EPOCH": "1"},
         "1: TCC_EPOCH=1 and TORCHELASTIC_RESTART_COUNT=2 contradict"),
        (TORCHRUN | {"TCC_LOCAL_SIZE": "8"},
         "1: TCC_LOCAL_SIZE=8 and LOCAL_WORLD_SIZE=4 contradict"),
        (HYDRA | {"TCC_LOCAL_RANK": "1"}, "1: TCC_LOCAL_RANK=1 and MPI_LOCALRANKID=0 contradict"),
        (HYDRA | OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
         "1: OMPI_COMM_WORLD_LOCAL_SIZE=2 and MPI_LOCALNRANKS=1 contradict"),
        (TCC | {"TCC_RENDEZVOUS": "x" * 201}, "1: TCC_RENDEZVOUS: more than 200 bytes"),
        (TCC | {"TCC_TOKEN": "x" * 65}, "1: token: more than 64 bytes"),
    ],
)  # fmt: skip
def test_contradictions(programs: Path, variables: dict[str, str], expected: str) -> None:
    assert settings(programs, variables).startswith(expected)
