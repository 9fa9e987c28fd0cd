"""Builds programs of this folder with the communication library, plain or with sanitizers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tcc.backends.artifact.comm_library import comm_sources
from tcc.backends.artifact.gpu_binaries import Platform
from tcc.backends.artifact.toolchain import runtime_folder

from tests.lib.fake_gpu.fakes import Fakes
from tests.processes import finished
from tests.runtime.interposer import interposed

HERE = Path(__file__).parent
FAKES = HERE.parents[1] / "lib" / "fake_gpu"
LIBRARIES = ("-lm", "-lpthread", "-ldl")
# The libraries that move data between GPUs, by the names that test programs use.
DEVICE_LIBRARIES = {"nccl": Platform.CUDA, "rccl": Platform.HIP}
WATCHED = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# Calls of the library to the system can be made to fail.
FAILING = (*WATCHED, "-DWRAPPED", *(f"-Wl,--wrap={name}" for name in sorted(interposed())))
# The ranks are threads, and share mappings.
RACES = ("-O0", "-g", "-fsanitize=thread")
THREADS = (*RACES, "-include", str(HERE / "one_mapping.h"))


def _command(*flags: str) -> tuple[str, ...]:
    base = runtime_folder()
    includes = (f"-I{base / 'include'}", f"-I{base / 'src'}", f"-I{HERE}")
    return ("cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", *flags, *includes)


def build_program(folder: Path, name: str, library: Path) -> Path:
    """Builds `name`.c of this folder, or of the path `name`, linked with libtcc_comm.so."""
    program = folder / Path(name).name
    command = (*_command("-O1"), str(HERE / f"{name}.c"), str(library))
    run(*command, f"-Wl,-rpath,{library.parent}", "-o", program, *LIBRARIES)
    return program


def build_whole(folder: Path, name: str, sources: Sequence[Path], *flags: str) -> Path:
    """Builds `name`.c of this folder with files of the library, all compiled with `flags`; the
    files may be objects of `build_objects` with the same flags."""
    program = folder / name
    parts = [str(path) for path in sources]
    run(*_command(*flags), str(HERE / f"{name}.c"), *parts, "-o", program, *LIBRARIES)
    return program


def build_objects(folder: Path, *flags: str) -> None:
    """Compiles the files of the library to objects with the same stems in `folder`; they can also
    form a shared library."""

    def compile_one(source: Path) -> None:
        run(*_command(*flags, "-fPIC"), "-c", source, "-o", folder / f"{source.stem}.o")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, comm_sources()))


def build_shared(folder: Path, name: str, parts: Sequence[Path], *flags: str) -> Path:
    """Links the communication library as the shared object `name`, from its files, compiled with
    `flags`, or from objects of `build_objects` with the same flags."""
    shared_library = folder / name
    run(*_command(*flags, "-fPIC", "-shared"), *map(str, parts), "-o", shared_library, *LIBRARIES)
    return shared_library


def build_nccl(folder: Path, name: str) -> dict[str, str]:
    """Builds fake_nccl.c as NCCL or RCCL, with the stand-in driver; returns variables for programs
    and ranks."""
    driver = Fakes(folder).driver(DEVICE_LIBRARIES[name])
    nccl_library = folder / f"lib{name}.so"
    hip = ("-DRCCL",) if name == "rccl" else ()
    flags = ("-O1", "-shared", "-fPIC", "-fvisibility=hidden", *hip)
    run(*_command(*flags), str(FAKES / "fake_nccl.c"), "-o", nccl_library, *LIBRARIES)
    files = {"FAKE_DRIVER": driver, f"TCC_{name.upper()}_LIBRARY": nccl_library, "TMPDIR": folder}
    return {variable: str(path) for variable, path in files.items()}


def run(*command: str | Path, seconds: float = 100, **variables: str) -> str:
    """Returns the output of a program; fails with its errors."""
    result = finished(*command, seconds=seconds, env=os.environ | variables)
    assert result.returncode == 0, f"{command}: {result.returncode}\n{result.stderr[-3000:]}"
    return result.stdout
