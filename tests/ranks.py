"""Processes on this machine that are the ranks of one job."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .processes import tethered

Array = np.ndarray[Any, np.dtype[Any]]


def start_ranks(
    size: int, script: str, library: Path, *arguments: object, **variables: str
) -> list[subprocess.Popen[str]]:
    """Starts `size` Python processes that run `script` with the arguments."""
    job = {
        "TCC_COMM_LIBRARY": str(library), "TCC_SIZE": str(size), "TCC_NUM_THREADS": "1",
        "TCC_RENDEZVOUS": f"test-{uuid.uuid4()}",
    }  # fmt: skip
    return [
        subprocess.Popen(
            [*tethered(), sys.executable, "-c", script, *map(str, arguments)],
            env=os.environ | job | {"TCC_RANK": str(rank)} | variables,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip


def run_ranks(
    size: int,
    script: str,
    library: Path,
    *arguments: object,
    killed: Collection[int] = (),
    **variables: str,
) -> list[str]:
    """Returns the output of the ranks, in order; fails with the errors of failing ranks, except the
    ranks in `killed`."""
    ranks = start_ranks(size, script, library, *arguments, **variables)
    try:
        ended = [process.communicate(timeout=100) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    failed = {rank for rank, process in enumerate(ranks) if process.returncode}
    assert failed == {*killed}, ended
    return [out for out, _ in ended]


RUN = """
import sys
import numpy as np
import tcc
from tcc.runtime import comm as comms

_, folder, *models = sys.argv
with comms.open() as comm:
    for name in models:
        module = tcc.load(f"{folder}/{name.format(rank=comm.rank)}.so", comm=comm)
        assert module.ranks in (0, comm.size)
        for number in range(2):
            feeds = np.load(f"{folder}/{name}.{comm.rank}.npz".replace("{rank}", ""))
            found = module.run(dict(feeds))
        np.savez(f"{folder}/{name}.{comm.rank}.found.npz".replace("{rank}", ""), **found)
"""


def on_ranks(
    folder: Path, library: Path, models: Mapping[str, Sequence[Mapping[str, Array]]]
) -> dict[str, list[Mapping[str, Array]]]:
    """Returns each rank's results for its inputs of each model; `{rank}` in a name stands for the
    rank."""
    size = len(next(iter(models.values())))
    for name, feeds in models.items():
        for rank, inputs in enumerate(feeds):
            np.savez(folder / f"{name}.{rank}.npz".replace("{rank}", ""), **inputs)
    run_ranks(size, RUN, library, folder, *models)
    return {
        name: [
            dict(np.load(folder / f"{name}.{rank}.found.npz".replace("{rank}", "")))
            for rank in range(size)
        ]
        for name in models
    }
