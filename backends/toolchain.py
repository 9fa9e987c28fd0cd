"""The system's C compiler: finding it, running it, and the runtime's objects that it made."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tcc.errors import ToolError

# Portable for the architecture: the runtime checks CPU features before any kernel runs.
RUNTIME_FLAGS = (
    "-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-plt", "-g0", "-Wall", "-Wextra",
)  # fmt: skip
_TIMEOUT_SECONDS = 300
# Runtimes of this process alone, by key.
_OWN: dict[str, Path] = {}
# By folder: files of two folders may have one name.
_OBJECT_PREFIX = {"ops": "op_", "gpu": "gpu_"}


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C compiler that links shared libraries: `command` and what it calls itself."""

    command: tuple[str, ...]
    version: str


def find_toolchain(triple: str = "") -> Toolchain:
    """The compiler to link with: $CC, else cc, gcc or clang, else the ziglang wheel.

    For another architecture than this machine's (`triple`, as in aarch64-linux-gnu) it is $CC, the
    cross compiler ARCH-linux-gnu-gcc, or zig.  Raises ToolError, with the remedy, where there is
    none.
    """
    foreign = bool(triple) and triple.split("-")[0] != platform.machine()
    candidates: list[tuple[str, ...]] = []
    chosen = _chosen_compiler()
    cross = f"{triple.split('-')[0]}-linux-gnu-gcc"
    if chosen:
        candidates.append(chosen)
    elif foreign:
        candidates.append((cross,))
    else:
        candidates.extend((name,) for name in ("cc", "gcc", "clang"))
    for candidate in candidates:
        found = shutil.which(candidate[0])
        if found:
            return Toolchain((found, *candidate[1:]), _version((found, *candidate[1:])))
    if not chosen and importlib.util.find_spec("ziglang"):
        command: tuple[str, ...] = (sys.executable, "-m", "ziglang", "cc")
        if foreign:
            command += ("-target", _zig_triple(triple))
        return Toolchain(command, _version(command))
    raise ToolError(
        f"no C compiler{f' for {triple}' if foreign else ''} was found, and one is needed to link",
        why=f"tried {', '.join(c[0] for c in candidates)} on the PATH",
        hint=f"install {cross if foreign else 'gcc or clang'}, or tcc's extra zig (see README.md)",
    )


def _chosen_compiler() -> tuple[str, ...]:
    """The command in $CC; empty where there is none."""
    try:
        return tuple(shlex.split(os.environ.get("CC", "")))
    except ValueError as error:
        raise ToolError(
            "the compiler's command cannot be read", where="$CC", why=str(error)
        ) from error


def run_tool(command: Sequence[str], folder: Path) -> str:
    """Runs `command` in `folder` and returns its output; raises ToolError if it fails."""
    environment = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    try:
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True,
            timeout=_TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(
            f"{command[0]} could not be run", why=f"{shlex.join(command)}\n{error}"
        ) from error
    if result.returncode:
        output = (result.stderr or result.stdout)[-4000:]
        raise ToolError(
            f"{command[0]} failed with exit code {result.returncode}",
            why=f"{shlex.join(command)}\n{output}",
            hint="check the compiler, or choose another one with CC=...",
        )
    return result.stdout


def runtime_folder() -> Path:
    """The folder of the runtime's C sources: include/ and src/ are in it."""
    return Path(str(resources.files("tcc.runtime")))


def runtime_sources() -> tuple[Path, ...]:
    """The runtime's C files, in a fixed order."""
    source = runtime_folder() / "src"
    folders = (source, source / "gpu", source / "ops")
    return tuple(path for folder in folders for path in sorted(folder.glob("*.c")))


def runtime_objects(toolchain: Toolchain) -> tuple[Path, ...]:
    """The runtime compiled by `toolchain`, from the user's cache or made now.

    A folder runtime/lib/KEY beside the sources (a wheel may ship one) comes before the cache; where
    none can be written the runtime is compiled for this process alone, and stderr says so.
    """
    key = _runtime_key(toolchain)
    shipped = runtime_folder() / "lib" / key
    folder = shipped if shipped.is_dir() else _cache_folder() / f"runtime-{key}"
    if not folder.is_dir():
        folder = _OWN.get(key, folder)
    if not folder.is_dir():
        print("compiling tcc's runtime, once for this compiler ...", file=sys.stderr)
        try:
            _build_runtime(toolchain, folder)
        except _UnwritableError as error:
            print(f"it is not kept: {error.where}: {error.why}", file=sys.stderr)
            folder = _OWN[key] = Path(tempfile.mkdtemp(prefix="tcc-runtime-")) / key
            atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
            _build_runtime(toolchain, folder)
    return tuple(folder / _object_name(source) for source in runtime_sources())


def build_runtime(toolchain: Toolchain, parent: Path) -> Path:
    """Compiles the runtime to `parent`/KEY, where `runtime_objects` looks; returns the folder."""
    folder = parent / _runtime_key(toolchain)
    _build_runtime(toolchain, folder)
    return folder


def _version(command: Sequence[str]) -> str:
    return next(iter(run_tool((*command, "--version"), Path.cwd()).splitlines()), "")


def _zig_triple(triple: str) -> str:
    """zig names platforms arch-os-abi; LLVM's triples may have a vendor in the middle."""
    parts = triple.split("-")
    abi = parts[-1] if parts[-1].startswith(("gnu", "musl")) else "gnu"
    return f"{parts[0]}-linux-{abi}"


def _object_name(source: Path) -> str:
    return _OBJECT_PREFIX.get(source.parent.name, "") + source.stem + ".o"


def _runtime_key(toolchain: Toolchain) -> str:
    digest = hashlib.sha256()
    base = runtime_folder()
    headers = (*sorted((base / "include").glob("*.h")), *sorted((base / "src").rglob("*.h")))
    for path in (*headers, *runtime_sources()):
        digest.update(path.relative_to(base).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    # of the command only what follows the program's place on this machine
    digest.update("\0".join((toolchain.version, *toolchain.command[1:], *RUNTIME_FLAGS)).encode())
    digest.update(platform.machine().encode())
    return digest.hexdigest()[:32]


class _UnwritableError(ToolError):
    """Nothing can be kept for later processes."""


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tcc"


def _build_runtime(toolchain: Toolchain, folder: Path) -> None:
    """Compiles beside, then renames: another process may be doing the same."""
    source = runtime_folder() / "src"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="making-", dir=folder.parent))
    except OSError as error:
        raise _UnwritableError(
            "the folder for compiled runtimes cannot be written",
            where=str(folder.parent),
            why=error.strerror or str(error),
            hint="set XDG_CACHE_HOME to a folder that can be written",
        ) from error

    def compile_one(path: Path) -> None:
        relative = path.relative_to(source).as_posix()
        target = str(made / _object_name(path))
        flags = (*RUNTIME_FLAGS, "-I../include", "-I.")
        run_tool((*toolchain.command, *flags, "-c", relative, "-o", target), source)

    try:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(compile_one, runtime_sources()))
        made.chmod(0o755)
        made.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise ToolError(
                "the compiled runtime cannot be stored", where=str(folder), why=str(error)
            ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
