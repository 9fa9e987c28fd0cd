"""Finds MPI's launchers and libraries, and starts ranks without a launcher, for comm_check."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Pairs (launcher, MPI library of its programs), as paths in a prefix. In Debian's packages, both
# have other names.
_PAIRS = (
    ("bin/mpiexec", "lib/libmpi_abi.so.1"),
    ("bin/mpiexec", "lib/libmpi.so.40"),
    ("bin/mpiexec", "lib/libmpi.so.12"),
    ("bin/mpiexec.openmpi", "lib/x86_64-linux-gnu/libmpi.so.40"),
    ("bin/mpiexec.mpich", "lib/x86_64-linux-gnu/libmpich.so.12"),
)


@dataclass(frozen=True, slots=True)
class Launcher:
    """The program mpiexec, and the MPI library of the programs that it starts."""

    mpiexec: Path
    library: Path
    backends = "mpi"

    @property
    def variables(self) -> dict[str, str]:
        """Returns the environment variables for ranks."""
        return {"TCC_MPI_LIBRARY": str(self.library)}

    @property
    def is_open_mpi(self) -> bool:
        return self.library.name == "libmpi.so.40"

    @property
    def reaches_hosts(self) -> bool:
        """Returns True if `on_hosts` supports the launcher.

        It does not support Debian's Open MPI 4, whose options differ.
        """
        return not self.is_open_mpi or self.mpiexec.name == "mpiexec"

    @property
    def compiler(self) -> Path:
        """Returns the path of mpicc, the C compiler for programs that this launcher starts."""
        return self.mpiexec.with_name(self.mpiexec.name.replace("mpiexec", "mpicc"))

    @property
    def name(self) -> str:
        """Returns "FOLDER/LIBRARY": the names of the prefix and of the MPI library."""
        return f"{self.mpiexec.parents[1].name}/{self.library.name}"

    def command(self, ranks: int) -> tuple[str, ...]:
        """Returns the command that starts ranks on this host.

        Open MPI needs options to run as root, and to run more ranks than there are cores.
        """
        options = ("--allow-run-as-root", "--oversubscribe") if self.is_open_mpi else ()
        return (str(self.mpiexec), *options, "-n", str(ranks))

    def on_hosts(self, ranks: int, hosts: Sequence[str], agent: str) -> tuple[str, ...]:
        """Returns the command that starts ranks on the hosts in turn.

        `agent` is a program with the arguments of ssh (host, command), which runs a command on a
        host. If a rank dies, the other ranks stay alive.
        """
        command, *arguments = self.command(ranks)
        if self.is_open_mpi:
            slots = ",".join(f"{host}:{ranks}" for host in hosts)
            options = ["--host", slots, "--map-by", "node", "--with-ft", "ulfm"]
            return (command, *options, "--prtemca", "plm_ssh_agent", agent, *arguments)
        options = ["-hosts", ",".join(hosts), "-launcher", "rsh", "-launcher-exec", agent]
        return (command, *options, "-disable-auto-cleanup", *arguments)


@dataclass(frozen=True)
class ByHand:
    """Ranks that use a plugin and are started one by one, without a launcher.

    No environment variable tells them which ranks share a host.
    """

    name: str
    plugin: Path
    more: Mapping[str, str]  # further environment variables
    backends = "shared,plugin"
    is_open_mpi = False

    @property
    def variables(self) -> dict[str, str]:
        """Returns the environment variables for ranks."""
        return {"TCC_COMM_PLUGIN": str(self.plugin), **self.more}

    def on_hosts(self, ranks: int, hosts: Sequence[str], agent: str) -> tuple[str, ...]:
        """Returns the command that starts ranks on the hosts in turn, through `agent`.

        The caller appends the arguments `sh -c COMMAND`, where each rank runs COMMAND.
        """
        rank_commands = (
            f"TCC_RANK={rank} {agent} {hosts[rank % len(hosts)]} 'eval \"$RUN\"' &"
            for rank in range(ranks)
        )
        job = f'export RUN="$2" TCC_SIZE={ranks} TCC_RENDEZVOUS={hosts[0]}:29400'
        job += f" TCC_TOKEN={secrets.token_hex(16)}"
        return ("sh", "-c", " ".join((f"{job};", *rank_commands, "wait")))


def launchers(prefixes: Sequence[Path]) -> list[Launcher]:
    """Returns a `Launcher` for each pair of _PAIRS whose files exist in one of the prefixes."""
    result = []
    for prefix in prefixes:
        for mpiexec, library in ((prefix / a, prefix / b) for a, b in _PAIRS):
            if mpiexec.is_file() and library.is_file():
                result.append(Launcher(mpiexec, library))
    return result
