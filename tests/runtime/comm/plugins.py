"""Plugins of the communication library, and ranks on this host that use them."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from library import HERE, run
from tcc.backends.artifact.toolchain import runtime_folder

INCLUDES = f"-I{runtime_folder() / 'include'}"


def build_file_engine(folder: Path, *flags: str) -> Path:
    """The engine of files as a plugin."""
    made = folder / "engine.so"
    warnings = ("-Wall", "-Wextra", "-Werror")
    run("cc", "-O1", "-fPIC", "-shared", *warnings, INCLUDES, *flags, HERE / "file_engine.c",
        "-o", made)  # fmt: skip
    return made


def has_gloo(prefix: Path) -> bool:
    """Whether Gloo's headers are in this prefix."""
    return (prefix / "include" / "gloo" / "transport" / "tcp" / "device.h").is_file()


def build_gloo(folder: Path, prefix: Path) -> Path:
    """The adapter for the Gloo of a prefix with include/ and lib/."""
    made = folder / "tcc_gloo.so"
    command = ("c++", "-std=c++17", "-O1", "-fPIC", "-shared", INCLUDES, "-isystem")
    link = (f"-L{prefix}/lib", "-lgloo", "-Wl,--allow-shlib-undefined", "-lpthread")
    run(*command, prefix / "include", runtime_folder() / "plugins" / "gloo.cpp", *link, "-o", made)
    return made


def gloo_variables(prefix: Path) -> dict[str, str]:
    """For programs that load the adapter: the loopback device, where the libraries lie."""
    paths = (prefix / "lib", prefix / "lib" / "x86_64-linux-gnu")
    before = os.environ.get("LD_LIBRARY_PATH", "")
    found = ":".join((*map(str, paths), before))
    return {"GLOO_SOCKET_IFNAME": "lo", "LD_LIBRARY_PATH": found}


def free_port() -> int:
    """A port of the loopback device that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def run_ranks(
    size: int, plugin: Path, *command: str | Path, seconds: float = 100, **variables: str
) -> list[str]:
    """What ranks print that meet over TCP; raises AssertionError with the errors of one."""
    shared = variables | {
        "TCC_COMM_PLUGIN": str(plugin), "TCC_SIZE": str(size),
        "TCC_RENDEZVOUS": f"127.0.0.1:{free_port()}",
    }  # fmt: skip
    with ThreadPoolExecutor(size) as pool:
        ranks = [
            pool.submit(run, *command, seconds=seconds, TCC_RANK=str(i), **shared)
            for i in range(size)
        ]
        return [rank.result() for rank in ranks]


def has_oneccl(prefix: Path) -> bool:
    """Whether oneCCL's headers are in this prefix."""
    return (prefix / "include" / "oneapi" / "ccl.hpp").is_file()


def build_oneccl(folder: Path, prefix: Path) -> Path:
    """The adapter for the oneCCL of a prefix with include/ and lib/."""
    made = folder / "tcc_oneccl.so"
    command = ("c++", "-std=c++17", "-O1", "-fPIC", "-shared", INCLUDES, "-isystem")
    link = (f"-L{prefix}/lib", "-lccl", "-Wl,--allow-shlib-undefined", "-lpthread")
    run(*command, prefix / "include", runtime_folder() / "plugins" / "oneccl.cpp", *link,
        "-o", made)  # fmt: skip
    return made


def oneccl_variables(prefix: Path) -> dict[str, str]:
    """For programs that load the adapter without MPI: where the libraries lie, and few spins."""
    before = os.environ.get("LD_LIBRARY_PATH", "")
    return {
        "LD_LIBRARY_PATH": f"{prefix / 'lib'}:{before}", "CCL_PROCESS_LAUNCHER": "none",
        "CCL_ATL_TRANSPORT": "ofi", "CCL_LOG_LEVEL": "error", "CCL_YIELD": "sched_yield",
    }  # fmt: skip


def has_ucc(prefix: Path) -> bool:
    """Whether UCC's headers are in this prefix."""
    return (prefix / "include" / "ucc" / "api" / "ucc.h").is_file()


def build_ucc(folder: Path, prefix: Path) -> Path:
    """The adapter for the UCC of a prefix with include/ and lib/."""
    made = folder / "tcc_ucc.so"
    command = ("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", INCLUDES)
    link = (f"-L{prefix}/lib", "-lucc", "-Wl,--allow-shlib-undefined")
    run(*command, f"-isystem{prefix}/include", runtime_folder() / "plugins" / "ucc.c", *link,
        "-o", made)  # fmt: skip
    return made


def ucc_variables(prefix: Path) -> dict[str, str]:
    """For programs that load the adapter: where the libraries lie, and the loopback device."""
    before = os.environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": f"{prefix / 'lib'}:{before}", "UCX_NET_DEVICES": "lo"}
