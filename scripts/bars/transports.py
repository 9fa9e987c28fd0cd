"""Compares models on two ranks with one rank, over each way in which ranks exchange arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from environment import ROOT
from hosts.launchers import Launcher
from tcc.backends.artifact.comm_library import build_comm_library
from tcc.backends.artifact.toolchain import find_toolchain

from bars.divided import CASES, MOST_ERROR, compared, compiled, tcc
from bars.engines import installed
from bars.figures import Figure, say

sys.path.insert(0, str(ROOT))
from tests.ranks import run_ranks

_RUNS = 2
# A rank that runs an artifact several times on equal arrays, and writes the results.
_RANK = f"""
import sys
from pathlib import Path
import numpy as np
from tcc.artifact import load
from tcc.cli.arrays import inputs_of, write_arrays
from tcc.runtime import comm as comms

_, artifact, folder, backend = sys.argv
with comms.open(backends=backend) as comm:
    module = load(Path(artifact), threads=1, comm=comm)
    for number in range({_RUNS}):
        arrays = inputs_of(Path(artifact), module.inputs, (), 3)
        write_arrays(module.run(arrays, seed=3), Path(folder) / f"run{{number}}.rank{{comm.rank}}")
"""


def transports(folder: Path) -> Iterator[Figure]:
    """Yields the largest error of two ranks, for each model and transport.

    The transports are shared memory and the MPI library of each mpiexec.  A figure is met only if
    both ranks have equal bits in all runs.
    """
    library = build_comm_library(find_toolchain(), folder)
    ways: dict[str, Callable[[Path, Path], None]] = {
        "shared memory": partial(_over_memory, library)
    }
    for launcher in installed():
        ways[launcher.name] = partial(_over_mpi, launcher, library)
    for name in CASES:
        say(f"{name}: compiling for 1 and 2 ranks")
        artifact = compiled(name, "1,2", folder)
        tcc(("run", str(artifact), "--seed=3", f"--output={folder}/{name}.one"), library)
        for place, (way, write_results) in enumerate(ways.items()):
            say(f"{name}: {way}")
            results = folder / f"{name}.{place}"
            write_results(artifact, results)
            error, equal = compared(folder / f"{name}.one", sorted(results.iterdir()))
            yield Figure(
                f"{name} on 2 ranks, {way}",
                f"{error:.1e} {'equal' if equal else 'DIFFER'}",
                f"<= {MOST_ERROR:.0e}, equal",
                error <= MOST_ERROR and equal,
            )
        artifact.unlink()


def _over_memory(library: Path, artifact: Path, results: Path) -> None:
    run_ranks(2, _RANK, library, artifact, results, "shared")


def _over_mpi(launcher: Launcher, library: Path, artifact: Path, results: Path) -> None:
    command = (*launcher.command(2), sys.executable, "-c", _RANK, str(artifact), str(results))
    variables = {**os.environ, **launcher.variables, "TCC_COMM_LIBRARY": str(library)}
    subprocess.run((*command, "mpi"), env=variables, check=True)
