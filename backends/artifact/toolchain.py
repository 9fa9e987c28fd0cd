"""The system's C compiler: finding it, running it, and the runtime's objects that it made."""

import atexit
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from itertools import chain
from pathlib import Path

from tcc.backends.artifact.cache import cache_folder, check_own, make_own
from tcc.backends.environment import compiler_environment
from tcc.errors import ToolError
from tcc.record import record
from tcc.target import ARCHITECTURES
from tcc.temporary import temporary_folder

# Portable for the architecture: the runtime checks CPU features before any kernel runs.
RUNTIME_FLAGS = tuple("-std=c11 -O2 -fPIC -fvisibility=hidden -fno-plt -g0 -Wall -Wextra".split())
# Files of the runtime that are compiled for their size: a process, a load or a recorded run of a
# GPU runs through them once, strings and lists take most of their time elsewhere.
_RARE = frozenset(
    f"src/{name}.c"
    for name in """
    api gpu/graph gpu/images gpu/instance gpu/memory heap image launchers limits model place values
    workers
    """.split()
)
PLANNER = "libtcc_plan.so"
_TIMEOUT_SECONDS = 300
# Runtimes of this process alone, by key.
_OWN: dict[str, Path] = {}
_ENDING = ExitStack()
atexit.register(_ENDING.close)


@record
class Toolchain:
    """A C compiler that links shared libraries for `arch`: `command` and what it calls itself."""

    command: tuple[str, ...]
    version: str
    arch: str


def find_toolchain(triple: str = "") -> Toolchain:
    """The compiler to link with: $CC, else cc, gcc or clang, else the ziglang wheel.

    For another architecture than this machine's (`triple`, as in aarch64-linux-gnu) it is $CC, the
    cross compiler ARCH-linux-gnu-gcc, or zig.  Raises ToolError, with the remedy, where there is
    none.
    """
    arch = triple.split("-")[0] or platform.machine()
    foreign = arch != platform.machine()
    chosen = _chosen_compiler()
    cross = f"{arch}-linux-gnu-gcc"
    candidates = [chosen] if chosen else [(cross,)] if foreign else [("cc",), ("gcc",), ("clang",)]
    for candidate in candidates:
        found = shutil.which(candidate[0])
        if found:
            command = (found, *candidate[1:])
            return Toolchain(command, _version(command), arch)
    if not chosen and importlib.util.find_spec("ziglang"):
        # without a target zig would use all that this machine's processor has
        command = (sys.executable, "-P", "-m", "ziglang", "cc", "-target", f"{arch}-linux-gnu")
        return Toolchain(command, _version(command), arch)
    raise ToolError(
        f"no C compiler{f' for {triple}' if foreign else ''} was found, and one is needed to link",
        why=f"tried {', '.join(c[0] for c in candidates)} on the PATH",
        hint=f"install {cross if foreign else 'gcc or clang'}, or: pip install 'tcc[zig]'",
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
    try:
        result = subprocess.run(
            command, cwd=folder, env=compiler_environment(), capture_output=True, text=True,
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
    """The folder of the runtime's C sources: include/ and src/ are in it.

    The package is found and not imported: a wheel is built without NumPy.
    """
    spec = importlib.util.find_spec("tcc.runtime")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def runtime_flags(source: Path) -> tuple[str, ...]:
    """Returns the compiler's flags for one file of the runtime."""
    is_rare = source.relative_to(runtime_folder()).as_posix() in _RARE
    return (*RUNTIME_FLAGS, "-Os") if is_rare else RUNTIME_FLAGS


def runtime_sources() -> tuple[Path, ...]:
    """The runtime's C files, in a fixed order."""
    source = runtime_folder() / "src"
    folders = (source, source / "gpu", source / "ops", source / "plan", source / "pool")
    return tuple(path for folder in folders for path in sorted(folder.glob("*.c")))


@cache
def planner_sources() -> tuple[Path, ...]:
    """The C files of the arena planner, in a fixed order: those of the runtime and the search."""
    source = runtime_folder() / "src"
    folders = (source / "plan", source / "plan" / "exact")
    files = (path for folder in folders for path in sorted(folder.glob("*.c")))
    return (source / "alloc.c", source / "status.c", *files)


def runtime_objects(toolchain: Toolchain) -> tuple[Path, ...]:
    """The runtime compiled by `toolchain` and the C library to link it with, from the user's cache
    or made now.

    A folder runtime/lib/KEY beside the sources (a wheel may ship one) comes before the cache; where
    none can be written the runtime is compiled for this process alone, and stderr says so.
    Raises ToolError where others could have changed what is in the cache.
    """
    names = (*map(_object_name, runtime_sources()), *c_library(toolchain.arch))
    return _built(toolchain, names)


def planner_library() -> Path:
    """The arena planner for this machine: runtime/lib/libtcc_plan.so, which a wheel and
    scripts/devtree make, else one beside the runtime's objects, made at its first use.

    Raises ToolError as `find_toolchain` and `runtime_objects` do.
    """
    shipped = runtime_folder() / "lib" / PLANNER
    if shipped.is_file():
        return shipped
    toolchain = find_toolchain()
    folder = runtime_objects(toolchain)[0].parent
    if not (folder / PLANNER).is_file():
        try:
            build_planner(toolchain, folder)
        except OSError:  # for this process alone
            folder = _ENDING.enter_context(temporary_folder("tcc-planner-"))
            return build_planner(toolchain, folder)
    return _built(toolchain, (PLANNER,))[0]


def build_planner(toolchain: Toolchain, folder: Path) -> Path:
    """Writes libtcc_plan.so into `folder`, whole or not at all, and returns its path."""
    flags = (*RUNTIME_FLAGS, "-fvisibility=default", f"-I{runtime_folder()}/include")
    return build_library(toolchain, folder / PLANNER, flags, planner_sources())


def build_library(
    toolchain: Toolchain, out: Path, flags: Sequence[str], sources: Sequence[Path]
) -> Path:
    """Compiles and links the shared library `out`, whole or not at all, and returns its path.

    Like an artifact it is linked against the functions of `c_library`; a function that is missing
    there is taken from the machine's own C library, in the newest version that this has.  Raises
    ToolError where the compiler fails, and OSError where the folder cannot be written.
    """
    with temporary_folder("making-", out.parent) as made:
        for library in c_library(toolchain.arch):
            link_stand_in(toolchain, library, made)
        linked = ("-shared", "-Wl,-z,defs", "-Wl,--as-needed", *c_library(toolchain.arch))
        command = (*toolchain.command, *flags, *map(str, sources), *linked)
        run_tool((*command, "-o", out.name), made)
        (made / out.name).chmod(0o755)
        return (made / out.name).rename(out)


def link_stand_in(toolchain: Toolchain, library: str, folder: Path) -> None:
    """Writes a library with the names and versions of `c_library` but no code, for the linker.

    The machine's own C library would have the linker take its newest version of each function,
    and the result would not load where there is an older one.
    """
    versions = c_library(toolchain.arch)[library]
    row = ".globl {0}\n.type {0}, STT_FUNC\n{0}:\n"
    labels = "".join(row.format(n) for names in versions.values() for n in names)
    (folder / f"{library}.s").write_text(labels)
    nodes = (f"GLIBC_{v} {{ {'; '.join(names)}; }};\n" for v, names in versions.items())
    (folder / f"{library}.map").write_text("".join(nodes))
    flags = ("-shared", "-nostdlib", f"-Wl,-soname,{library},--version-script={library}.map")
    run_tool((*toolchain.command, *flags, f"{library}.s", "-o", library), folder)


def _built(toolchain: Toolchain, names: Sequence[str]) -> tuple[Path, ...]:
    """Files of the compiled runtime."""
    key = _runtime_key(toolchain)
    shipped = runtime_folder() / "lib" / key
    folder = shipped if shipped.is_dir() else cache_folder() / f"runtime-{key}"
    if not folder.is_dir():
        make_own(folder.parent)
        folder = _OWN.get(key, folder)
    if not folder.is_dir():
        print("compiling tcc's runtime, once for this compiler ...", file=sys.stderr)
        try:
            _build_runtime(toolchain, folder)
        except _UnwritableError as error:
            print(f"it is not kept: {error.where}: {error.why}", file=sys.stderr)
            folder = _OWN[key] = _ENDING.enter_context(temporary_folder("tcc-runtime-")) / key
            _build_runtime(toolchain, folder)
    files = tuple(folder / name for name in names)
    if folder != shipped:
        check_own(files)
    return files


@cache
def c_library(arch: str) -> dict[str, dict[str, list[str]]]:
    """Functions by library and by version, as runtime/glibc.txt lists them, on an architecture of
    this name of the compilers'."""
    newer = next((row.c_library for row in ARCHITECTURES.values() if arch in row.systems), "")
    libraries: dict[str, dict[str, list[str]]] = {}
    names: list[str] = []
    for line in (runtime_folder() / "glibc.txt").read_text().splitlines():
        if line.startswith(" "):
            names += line.split()
        elif not line.startswith("#"):
            library, version = line.split()
            names = libraries.setdefault(library, {}).setdefault(newer or version, [])
    return libraries


def build_runtime(toolchain: Toolchain, parent: Path) -> Path:
    """Compiles the runtime to `parent`/KEY, where `runtime_objects` looks, and the planner to
    `parent`; returns the folder."""
    folder = parent / _runtime_key(toolchain)
    _build_runtime(toolchain, folder)
    build_planner(toolchain, parent)
    return folder


@cache
def _version(command: tuple[str, ...]) -> str:
    return next(iter(run_tool((*command, "--version"), Path.cwd()).splitlines()), "")


def _object_name(source: Path) -> str:
    """Files of two folders may have one name."""
    return f"{source.parent.name}_{source.stem}.o"


@cache
def _runtime_key(toolchain: Toolchain) -> str:
    digest = hashlib.sha256()
    base = runtime_folder()
    headers = (*sorted((base / "include").glob("*.h")), *sorted((base / "src").rglob("*.h")))
    for path in (*headers, *runtime_sources(), *planner_sources(), base / "glibc.txt"):
        digest.update(path.relative_to(base).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    # of the command only what follows the program's place on this machine
    flags = (*RUNTIME_FLAGS, *sorted(_RARE))
    digest.update("\0".join((toolchain.version, *toolchain.command[1:], *flags)).encode())
    digest.update(toolchain.arch.encode())
    return digest.hexdigest()[:32]


class _UnwritableError(ToolError):
    """Nothing can be kept for later processes."""


def _build_runtime(toolchain: Toolchain, folder: Path) -> None:
    """Compiles beside, then renames: another process may be doing the same."""
    with ExitStack() as ending:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            made = ending.enter_context(temporary_folder("making-", folder.parent))
        except OSError as error:
            raise _UnwritableError(
                "the folder for compiled runtimes cannot be written",
                where=str(folder.parent),
                why=error.strerror or str(error),
                hint="set XDG_CACHE_HOME to a folder that can be written",
            ) from error
        try:
            _compile_runtime(toolchain, made)
            for path in (made, *made.iterdir()):
                path.chmod(0o755)
            made.rename(folder)
        except OSError as error:
            if not folder.is_dir():
                raise ToolError(
                    "the compiled runtime cannot be stored", where=str(folder), why=str(error)
                ) from error


def _compile_runtime(toolchain: Toolchain, made: Path) -> None:
    """Writes the runtime's objects, and the libraries to link them against, into the folder
    `made`."""
    source = runtime_folder() / "src"

    def compile_one(path: Path) -> None:
        relative = path.relative_to(source).as_posix()
        target = str(made / _object_name(path))
        flags = (*runtime_flags(path), "-I../include", "-I.")
        run_tool((*toolchain.command, *flags, "-c", relative, "-o", target), source)

    with ThreadPoolExecutor() as pool:
        libraries = c_library(toolchain.arch)
        linked = pool.map(lambda library: link_stand_in(toolchain, library, made), libraries)
        list(chain(linked, pool.map(compile_one, runtime_sources())))
