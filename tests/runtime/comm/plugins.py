"""Plugins of the communication library, and ranks on this host that use them."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from library import HERE, run
from tcc.backends.artifact.toolchain import runtime_folder

INCLUDES = f"-I{runtime_folder() / 'include'}"


def build_file_engine(folder: Path, *flags: str) -> Path:
    """Builds the engine over files as a plugin."""
    engine = folder / "engine.so"
    warnings = ("-Wall", "-Wextra", "-Werror")
    run("cc", "-O1", "-fPIC", "-shared", *warnings, INCLUDES, *flags, HERE / "file_engine.c",
        "-o", engine)  # fmt: skip
    return engine


@dataclass(frozen=True)
class Library:
    """The library of an engine, in a prefix with include/ and lib/, and its adapter."""

    name: str  # in the adapter's linker flag
    header: str  # included by the adapter
    source: str  # in runtime/plugins
    remedy: str
    variables: Mapping[str, str]  # for ranks on this host
    outlives_peers: bool = True  # it does not end ranks when another ends
    splits_at_once: bool = True  # several threads of a rank may create groups

    @property
    def prefix(self) -> Path:
        """Returns the prefix where tests look for the library: TCC_TEST_GLOO, TCC_TEST_ONECCL or
        TCC_TEST_UCC, else /usr."""
        return Path(os.environ.get(f"TCC_TEST_{Path(self.source).stem.upper()}", "/usr"))

    def is_in(self, prefix: Path) -> bool:
        return (prefix / "include" / self.header).is_file()

    def build(self, folder: Path, prefix: Path) -> Path:
        """Builds the adapter for the library of a prefix."""
        plugin = folder / f"tcc_{Path(self.source).stem}.so"
        warnings = ("-Wall", "-Wextra", "-Werror")
        compiler = ("cc", "-std=c11") if self.source.endswith(".c") else ("c++", "-std=c++17")
        run(*compiler, *warnings, "-O1", "-fPIC", "-shared", INCLUDES, "-idirafter",
            prefix / "include", runtime_folder() / "plugins" / self.source, f"-L{prefix}/lib",
            f"-l{self.name}", "-Wl,--allow-shlib-undefined", "-lpthread", "-o", plugin)  # fmt: skip
        return plugin

    def environment(self, prefix: Path) -> dict[str, str]:
        """Returns variables for programs that load the adapter."""
        paths = (prefix / "lib", prefix / "lib" / "x86_64-linux-gnu")
        before = os.environ.get("LD_LIBRARY_PATH", "")
        return {"LD_LIBRARY_PATH": ":".join((*map(str, paths), before)), **self.variables}


LIBRARIES = {
    "gloo": Library(
        "gloo", "gloo/transport/tcp/device.h", "gloo.cpp", "libgloo-dev",
        {"GLOO_SOCKET_IFNAME": "lo"},
    ),
    "oneccl": Library(
        "ccl", "oneapi/ccl.hpp", "oneccl.cpp", "oneCCL (the wheel oneccl-devel)",
        {"CCL_PROCESS_LAUNCHER": "none", "CCL_ATL_TRANSPORT": "ofi", "CCL_YIELD": "sched_yield"},
        outlives_peers=False, splits_at_once=False,
    ),
    "ucc": Library(
        "ucc", "ucc/api/ucc.h", "ucc.c", "UCC 1.10 or later, and UCX",
        {"UCC_LOG_LEVEL": "fatal"},
    ),
}  # fmt: skip


def free_port() -> int:
    """Returns a free port of the loopback device."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def run_ranks(
    size: int, plugin: Path, *command: str | Path, seconds: float = 100, **variables: str
) -> list[str]:
    """Returns the output of ranks that meet over TCP; raises AssertionError with the errors of a
    rank."""
    shared = {"TCC_TOKEN": secrets.token_hex(16)} | variables | {
        "TCC_COMM_PLUGIN": str(plugin), "TCC_SIZE": str(size),
        "TCC_RENDEZVOUS": f"127.0.0.1:{free_port()}",
    }  # fmt: skip
    with ThreadPoolExecutor(size) as pool:
        ranks = [
            pool.submit(run, *command, seconds=seconds, TCC_RANK=str(i), **shared)
            for i in range(size)
        ]
        return [rank.result() for rank in ranks]
