"""MPI's launchers and libraries in folders, and ranks without a launcher, for comm_check."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# A launcher and the library of its programs, in a prefix; Debian's have names of their own.
_PAIRS = (
    ("bin/mpiexec", "lib/libmpi_abi.so.1"),
    ("bin/mpiexec", "lib/libmpi.so.40"),
    ("bin/mpiexec", "lib/libmpi.so.12"),
    ("bin/mpiexec.openmpi", "lib/x86_64-linux-gnu/libmpi.so.40"),
    ("bin/mpiexec.mpich", "lib/x86_64-linux-gnu/libmpich.so.12"),
)


@dataclass(frozen=True, slots=True)
class Launcher:
    """The program mpiexec and a library that it starts programs with."""

    mpiexec: Path
    library: Path
    backends = "mpi"

    @property
    def variables(self) -> dict[str, str]:
        """For ranks."""
        return {"TCC_MPI_LIBRARY": str(self.library)}

    @property
    def is_open_mpi(self) -> bool:
        return self.library.name == "libmpi.so.40"

    @property
    def reaches_hosts(self) -> bool:
        """Whether `on_hosts` knows its options: Debian's Open MPI 4 has others."""
        return not self.is_open_mpi or self.mpiexec.name == "mpiexec"

    @property
    def compiler(self) -> Path:
        """The C compiler for its programs."""
        return self.mpiexec.with_name(self.mpiexec.name.replace("mpiexec", "mpicc"))

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


@dataclass(frozen=True)
class ByHand:
    """Ranks of a plugin that are started one by one: nothing tells which are of one host."""

    name: str
    plugin: Path
    more: Mapping[str, str]  # variables
    backends = "shared,plugin"
    is_open_mpi = False

    @property
    def variables(self) -> dict[str, str]:
        """For ranks."""
        return {"TCC_COMM_PLUGIN": str(self.plugin), **self.more}

    def on_hosts(self, ranks: int, hosts: Sequence[str], agent: str) -> tuple[str, ...]:
        """As of a launcher; the ranks' command follows, as arguments `sh -c COMMAND`."""
        each = (
            f"TCC_RANK={rank} {agent} {hosts[rank % len(hosts)]} 'eval \"$RUN\"' &"
            for rank in range(ranks)
        )
        job = f'export RUN="$2" TCC_SIZE={ranks} TCC_RENDEZVOUS={hosts[0]}:29400'
        job += f" TCC_TOKEN={secrets.token_hex(16)}"
        return ("sh", "-c", " ".join((f"{job};", *each, "wait")))


def launchers(prefixes: Sequence[Path]) -> list[Launcher]:
    """The launcher and the library of each binary interface that is in one of the prefixes."""
    found = []
    for prefix in prefixes:
        for mpiexec, library in ((prefix / a, prefix / b) for a, b in _PAIRS):
            if mpiexec.is_file() and library.is_file():
                found.append(Launcher(mpiexec, library))
    return found
