"""Engines from shared objects: one of files, and Gloo where it is installed."""

from __future__ import annotations

import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from library import HERE, run
from tcc.backends.artifact.toolchain import runtime_folder

GLOO = Path(os.environ.get("TCC_TEST_GLOO", "/usr"))
INCLUDES = f"-I{runtime_folder() / 'include'}"


def build_engine(folder: Path, *flags: str) -> Path:
    """The engine of files as a plugin."""
    made = folder / "engine.so"
    warnings = ("-Wall", "-Wextra", "-Werror")
    run("cc", "-O1", "-fPIC", "-shared", *warnings, INCLUDES, *flags, HERE / "file_engine.c",
        "-o", made)  # fmt: skip
    return made


def free_port() -> int:
    """A port of the loopback device that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def run_ranks(size: int, plugin: Path, *command: str | Path, **variables: str) -> list[str]:
    """What ranks on this host print that meet over TCP."""
    shared = variables | {
        "TCC_COMM_PLUGIN": str(plugin), "TCC_SIZE": str(size),
        "TCC_RENDEZVOUS": f"127.0.0.1:{free_port()}",
    }  # fmt: skip
    with ThreadPoolExecutor(size) as pool:
        ranks = [pool.submit(run, *command, TCC_RANK=str(i), **shared) for i in range(size)]
        return [rank.result() for rank in ranks]


@pytest.mark.parametrize("size", [1, 2])
def test_the_matrix_over_files(programs: Path, tmp_path: Path, size: int) -> None:
    command = (programs / "matrix", "0", "short", "plugin")
    printed = run_ranks(size, build_engine(tmp_path), *command, TMPDIR=str(tmp_path))
    assert printed == ["ok\n"] * size


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("-DVERSION=9",), r"engine.so has no engine of version 1"),
        (("-DWITHOUT=test",), r"engine.so: a function of its engine is NULL"),
        (("-Dtcc_comm_plugin_get=another",), r"engine.so has no function tcc_comm_plugin_get"),
    ],
)
def test_another_interface_is_refused(
    programs: Path, tmp_path: Path, flags: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(
        AssertionError, match=rf"no backend fits.*plugin: TCC_COMM_PLUGIN=.*{expected}"
    ):
        run_ranks(1, build_engine(tmp_path, *flags), programs / "matrix", "0", "short", "plugin")


def test_a_missing_file_is_named(programs: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"plugin: TCC_COMM_PLUGIN: /no/engine.so: cannot open"
    ):
        run_ranks(1, Path("/no/engine.so"), programs / "matrix", "0", "short", "plugin")


def test_a_rendezvous_without_a_port_is_named(programs: Path, tmp_path: Path) -> None:
    variables = {
        "TCC_RANK": "0", "TCC_SIZE": "2", "TCC_RENDEZVOUS": "job", "TMPDIR": str(tmp_path),
        "TCC_COMM_PLUGIN": str(build_engine(tmp_path)),
    }  # fmt: skip
    with pytest.raises(AssertionError, match=r"meet at HOST:PORT, and 'job' is none"):
        run(programs / "matrix", "0", "short", "plugin", **variables)


# ---- Gloo --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapter, compiled with the machine's Gloo."""
    headers = GLOO / "include" / "gloo" / "transport" / "tcp" / "device.h"
    if not headers.is_file():
        pytest.skip(f"no Gloo in {GLOO}: install libgloo-dev, or set TCC_TEST_GLOO to its prefix")
    made = tmp_path_factory.mktemp("gloo") / "tcc_gloo.so"
    source = runtime_folder() / "plugins" / "gloo.cpp"
    command = ("c++", "-std=c++17", "-O1", "-fPIC", "-shared", INCLUDES, "-isystem")
    link = (f"-L{GLOO}/lib", "-lgloo", "-Wl,--allow-shlib-undefined", "-lpthread")
    subprocess.run((*command, GLOO / "include", source, *link, "-o", made), check=True)
    return made


def test_the_matrix_over_gloo(programs: Path, gloo: Path) -> None:
    paths = (GLOO / "lib", GLOO / "lib" / "x86_64-linux-gnu", os.environ.get("LD_LIBRARY_PATH", ""))
    variables = {
        "GLOO_SOCKET_IFNAME": "lo", "LD_LIBRARY_PATH": ":".join(str(path) for path in paths),
    }  # fmt: skip
    command = (programs / "matrix", "0", "short", "plugin")
    assert run_ranks(2, gloo, *command, **variables) == ["ok\n"] * 2
