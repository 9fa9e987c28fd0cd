"""Hosts work with a library that is older or newer than the headers with which they were compiled.

headers/ has copies of the first headers of comms and pools. A later version is today's header with
another field at the end of each struct that carries its size.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import programs
import pytest
from tcc.backends.artifact.comm_library import comm_sources
from tcc.backends.artifact.toolchain import runtime_folder
from tcc.runtime import abi, load
from trials import HERE, SYSTEM, WORKERS

from tests.processes import finished

RUNTIME = runtime_folder()
INCLUDE = RUNTIME / "include"
OLD = HERE / "headers"
STRUCTS = {
    "tcc_comm.h": ("} tcc_comm_config;", "} tcc_comm_call;"),
    "tcc_pool.h": (
        "    const tcc_pool_allocator *allocator; /* not NULL: instead of a range */\n};",
    ),
    "tcc.h": ("} tcc_memory;",),
}
CC = ("cc", "-std=gnu11", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror")
WATCHED = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
POOL = (*WORKERS, *SYSTEM, "budget.c", "arena.c", "sized.c")


def append_fields(include: Path) -> None:
    """Turns the headers in this folder into a later version."""
    for name, ends in STRUCTS.items():
        path = include / name
        text = path.read_text()
        for end in ends:
            assert text.count(end) == 1, end
            text = text.replace(end, end.replace("}", "    int64_t later;\n}"))
        path.write_text(text)


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of the runtime's sources with later headers."""
    copy = tmp_path_factory.mktemp("later") / "runtime"
    for name in ("include", "src"):
        shutil.copytree(RUNTIME / name, copy / name)
    append_fields(copy / "include")
    return copy


def build(made: Path, *words: str | Path) -> Path:
    command = (*CC, *map(str, words), "-o", str(made), "-lpthread", "-ldl", "-lm")
    subprocess.run(command, check=True)
    return made


def ran(*command: str | Path) -> str:
    result = finished(*command)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def refusal(struct: str, size: int, least: int, known: int) -> str:
    """Returns the output of a host that sets a field which the library lacks."""
    return (
        f"1: the {struct} is NULL or of another version: it has {size} bytes, this library takes "
        f"whole fields of {least} to {known} bytes, and zeros behind them\n"
    )


def test_structs_of_every_size(tmp_path: Path) -> None:
    sources = [RUNTIME / "src" / name for name in ("sized.c", "status.c")]
    includes = (f"-I{INCLUDE}", f"-I{RUNTIME / 'src'}")
    assert ran(build(tmp_path / "sized", *WATCHED, *includes, HERE / "sized.c", *sources)) == "ok\n"


# ---- comms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["first", "today", "later"])
def test_comms_of_hosts_of_all_versions(
    comm_library: Path, later: Path, tmp_path: Path, version: str
) -> None:
    headers = {"first": OLD / "comm-43079adc", "today": INCLUDE, "later": later / "include"}
    place = f"-Wl,-rpath,{comm_library.parent}"
    flags = ("-O1", f"-I{headers[version]}", *(("-DLATER",) if version == "later" else ()))
    host = build(tmp_path / "host", *flags, HERE / "comm_host.c", comm_library, place)
    assert ran(host) == "ok\n"
    if version == "later":
        assert ran(host, "later") == refusal("tcc_comm_config", 64, 12, 56)
        assert ran(host, "later_call") == refusal("tcc_comm_call", 56, 32, 48)


@pytest.fixture(scope="module")
def later_library(later: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds a later version of the communication library, under sanitizers."""
    sources = [later / path.relative_to(RUNTIME) for path in comm_sources()]
    flags = ("-w", *WATCHED, "-fPIC", "-shared", "-fvisibility=hidden")
    includes = (f"-I{later / 'include'}", f"-I{later / 'src'}")
    library_path = tmp_path_factory.mktemp("library") / "libtcc_comm.so"
    return build(library_path, *flags, *includes, *sources)


@pytest.mark.parametrize("version", ["first", "today"])
def test_later_libraries_take_hosts_of_this_version(
    later_library: Path, tmp_path: Path, version: str
) -> None:
    headers = {"first": OLD / "comm-43079adc", "today": INCLUDE}
    place = f"-Wl,-rpath,{later_library.parent}"
    flags = (*WATCHED, f"-I{headers[version]}")
    host = build(tmp_path / "host", *flags, HERE / "comm_host.c", later_library, place)
    assert ran(host) == "ok\n"


# ---- tables of functions -----------------------------------------------------------------------


@pytest.mark.parametrize("last", ["model_ranks", "instance_seed", "instance_unseed"])
def test_modules_of_artifacts_with_fewer_functions(
    mlp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """Python knows functions that an older artifact lacks: other bytes follow its table."""
    field = getattr(abi.Api, last)
    size, full_api = field.offset + field.size, load(mlp_path)._api
    older = ctypes.create_string_buffer(b"\xff" * ctypes.sizeof(abi.Api))
    ctypes.memmove(older, ctypes.byref(full_api), size)
    table = ctypes.cast(older, ctypes.POINTER(abi.Api))
    table.contents.struct_size = size
    api_of = abi.api_of
    monkeypatch.setattr(abi, "api_of", lambda _: api_of(table))
    module, x = load(mlp_path, poison=True), np.ones(8, np.float32)
    assert np.array_equal(module(x), programs.expected_mlp(x))
    assert dict(module.assets) == {}
    if last == "instance_unseed":
        assert np.array_equal(module.run({"x": x}, seed=1)["y"], programs.expected_mlp(x))
    else:
        with pytest.raises(RuntimeError, match="older than seeds of runs"):
            module.run({"x": x}, seed=1)
    table.contents.struct_size = abi.Api.model_ranks.offset
    with pytest.raises(RuntimeError, match="another C interface"):
        load(mlp_path, poison=True)


# ---- pools and memory --------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["first", "today", "later"])
def test_pools_of_hosts_of_all_versions(
    mlp_path: Path, later: Path, tmp_path: Path, version: str
) -> None:
    headers = {"first": OLD / "pool-bd959be7", "today": INCLUDE, "later": later / "include"}
    flags = (*WATCHED, f"-I{headers[version]}", *(("-DLATER",) if version == "later" else ()))
    host = build(tmp_path / "host", *flags, HERE / "pool_host.c")
    assert ran(host, mlp_path) == "ok\n"
    if version == "later":
        assert ran(host, mlp_path, "later") == refusal("tcc_pool_config", 64, 16, 56)


@pytest.fixture(scope="module")
def later_pool(later: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds objects of a later version's pools, under sanitizers; returns the folder."""
    source, objects = later / "src", tmp_path_factory.mktemp("pool")
    files = (*(source / name for name in POOL), *sorted((source / "pool").glob("*.c")))
    includes = (f"-I{later / 'include'}", f"-I{source}")
    for path in files:
        build(objects / f"{path.stem}.o", "-w", *WATCHED, *includes, "-c", path)
    return objects


@pytest.mark.parametrize("version", ["first", "today"])
def test_later_pools_take_hosts_of_this_version(
    later_pool: Path, tmp_path: Path, version: str
) -> None:
    headers = {"first": OLD / "pool-bd959be7", "today": INCLUDE}
    flags = (*WATCHED, "-DLINKED", f"-I{headers[version]}")
    objects = sorted(later_pool.glob("*.o"))
    assert ran(build(tmp_path / "host", *flags, HERE / "pool_host.c", *objects)) == "ok\n"
