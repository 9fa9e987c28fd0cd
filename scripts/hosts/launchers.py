"""MPI's launchers and libraries in folders, and their options, for comm_check."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("libmpi_abi.so.1", "libmpi.so.40", "libmpi.so.12")


@dataclass(frozen=True, slots=True)
class Launcher:
    """The program mpiexec and a library that it starts programs with."""

    mpiexec: Path
    library: Path
    is_open_mpi: bool

    @property
    def name(self) -> str:
        """The folder and the library."""
        return f"{self.mpiexec.parents[1].name}/{self.library.name}"

    def command(self, ranks: int) -> tuple[str, ...]:
        """Starts ranks on this host; Open MPI has options for root and more ranks than cores."""
        own = ("--allow-run-as-root", "--oversubscribe") if self.is_open_mpi else ()
        return (str(self.mpiexec), *own, "-n", str(ranks))

    def on_hosts(self, ranks: int, hosts: Sequence[str], agent: str) -> tuple[str, ...]:
        """Starts ranks on hosts in turns, by an agent with the arguments of ssh.

        The other ranks live on where one dies.
        """
        command, *rest = self.command(ranks)
        if self.is_open_mpi:
            slots = ",".join(f"{host}:{ranks}" for host in hosts)
            own = ["--host", slots, "--map-by", "node", "--with-ft", "ulfm"]
            return (command, *own, "--prtemca", "plm_ssh_agent", agent, *rest)
        own = ["-hosts", ",".join(hosts), "-launcher", "rsh", "-launcher-exec", agent]
        return (command, *own, "-disable-auto-cleanup", *rest)


def launchers(prefixes: Sequence[Path]) -> list[Launcher]:
    """The launcher and the library of each binary interface that is there.

    A prefix has bin/mpiexec and lib/.
    """
    found = []
    for prefix in prefixes:
        mpiexec = prefix / "bin" / "mpiexec"
        paths = [prefix / "lib" / name for name in LIBRARIES]
        there = [path for path in paths if path.is_file() and mpiexec.is_file()]
        if there:
            said = subprocess.run(
                [mpiexec, "--version"], capture_output=True, text=True, check=False
            )
            found += [Launcher(mpiexec, path, "Open MPI" in said.stdout) for path in there]
    return found
