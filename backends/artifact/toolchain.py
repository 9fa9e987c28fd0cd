"""Finds and runs the system's C compiler, and compiles the runtime to object files."""

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
from tcc.errors import ToolError, UserError, check_written
from tcc.frozen import frozen
from tcc.target import ARCHITECTURES
from tcc.temporary import temporary_folder

# No flag selects a CPU: the runtime has to run on every CPU of the architecture, because it checks
# the CPU's features before it runs a kernel.
RUNTIME_FLAGS = tuple("-std=c11 -O2 -fPIC -fvisibility=hidden -fno-plt -g0 -Wall -Wextra".split())
# Files of the runtime that are compiled for size, because their speed does not matter. Their code
# runs once per process, load or recorded GPU run. heap.c has the storage of strings and lists.
# Operations on them spend most of their time in other files.
_RARE = frozenset(
    f"src/{name}.c"
    for name in """
    gpu/graph gpu/images gpu/instance gpu/memory heap image launchers limits place workers
    """.split()
)
PLANNER = "libtcc_plan.so"
_TIMEOUT_SECONDS = 300
# Compiled runtimes that only this process uses, by `_runtime_key`.
_OWN: dict[str, Path] = {}
_ENDING = ExitStack()
atexit.register(_ENDING.close)


@frozen
class Toolchain:
    """A C compiler for `arch` that links shared libraries.

    `command` is the words that call it, and `version` the text that it prints as its version.
    """

    command: tuple[str, ...]
    version: str
    arch: str


def find_toolchain(triple: str = "") -> Toolchain:
    """Returns the compiler to link with: $CC, else cc, gcc or clang, else the ziglang wheel.

    `triple` (as in aarch64-linux-gnu) may name another architecture than this machine's. The
    compiler is then $CC, the cross compiler ARCH-linux-gnu-gcc, or zig. Raises ToolError with a
    remedy if there is none.
    """
    arch = triple.split("-")[0] or platform.machine()
    foreign = arch != platform.machine()
    user = _user_command()
    cross = f"{arch}-linux-gnu-gcc"
    candidates = [user] if user else [(cross,)] if foreign else [("cc",), ("gcc",), ("clang",)]
    for candidate in candidates:
        path = shutil.which(candidate[0])
        if path:
            command = (path, *candidate[1:])
            return Toolchain(command, _version(command), arch)
    if not user and importlib.util.find_spec("ziglang"):
        # without a target, zig would use all instructions of this machine's CPU
        command = (sys.executable, "-P", "-m", "ziglang", "cc", "-target", f"{arch}-linux-gnu")
        return Toolchain(command, _version(command), arch)
    raise ToolError(
        f"no C compiler{f' for {triple}' if foreign else ''} was found, and one is needed to link",
        why=f"tried {', '.join(c[0] for c in candidates)} on the PATH",
        hint=f"install {cross if foreign else 'gcc or clang'}, or: pip install 'tcc[zig]'",
    )


def _user_command() -> tuple[str, ...]:
    """Returns the words of the command in $CC, or () if it is not set.

    Raises ToolError if it is malformed.
    """
    try:
        return tuple(shlex.split(os.environ.get("CC", "")))
    except ValueError as error:
        raise ToolError(
            "the compiler's command cannot be read", where="$CC", why=str(error)
        ) from error


def run_tool(command: Sequence[str], folder: Path) -> str:
    """Runs `command` in `folder` and returns its output.

    Raises ToolError if it fails, and UserError if it could not write a file.
    """
    try:
        # A compiler that is killed leaves its temporary files behind.
        with temporary_folder() as temporary:
            result = subprocess.run(
                command, cwd=folder, env={**compiler_environment(), "TMPDIR": str(temporary)},
                capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False,
            )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(
            f"{command[0]} could not be run", why=f"{shlex.join(command)}\n{error}"
        ) from error
    if result.returncode:
        output = (result.stderr or result.stdout)[-4000:]
        check_written(command[0], output)
        raise ToolError(
            f"{command[0]} failed with exit code {result.returncode}",
            why=f"{shlex.join(command)}\n{output}",
            hint="check the compiler, or choose another one with CC=...",
        )
    return result.stdout


def runtime_folder() -> Path:
    """Returns the folder of the runtime's C sources, which contains include/ and src/.

    The package is only located, not imported, because wheels are built without NumPy.
    """
    spec = importlib.util.find_spec("tcc.runtime")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def runtime_flags(source: Path) -> tuple[str, ...]:
    """Returns the compiler flags for a file of the runtime."""
    is_rare = source.relative_to(runtime_folder()).as_posix() in _RARE
    return (*RUNTIME_FLAGS, "-Os") if is_rare else RUNTIME_FLAGS


def runtime_sources() -> tuple[Path, ...]:
    """Returns the C files of the runtime, in a fixed order."""
    source = runtime_folder() / "src"
    folders = (source, source / "gpu", source / "ops", source / "plan", source / "pool")
    return tuple(path for folder in folders for path in sorted(folder.glob("*.c")))


@cache
def planner_sources() -> tuple[Path, ...]:
    """Returns the C files of the arena planner, in a fixed order.

    They are the runtime's planner and the exact search.
    """
    source = runtime_folder() / "src"
    folders = (source / "plan", source / "plan" / "exact")
    files = (path for folder in folders for path in sorted(folder.glob("*.c")))
    return (source / "alloc.c", source / "status.c", *files)


def runtime_objects(toolchain: Toolchain) -> tuple[Path, ...]:
    """Returns the runtime's object files and the C library to link them with.

    They come from the folder runtime/lib/KEY, which a wheel may ship, or from the user's cache. If
    neither has them, they are compiled now. If the cache cannot be written, only this process uses
    them, and stderr says so. Raises ToolError if another user could have changed the cache.
    """
    names = (*map(_object_name, runtime_sources()), *c_library(toolchain.arch))
    return _built(toolchain, names)


def planner_library() -> Path:
    """Returns the library of the arena planner for this machine.

    Wheels and scripts/devtree provide it as runtime/lib/libtcc_plan.so. Otherwise it is a file next
    to the runtime's objects, and its first use compiles it.

    Raises ToolError if there is no toolchain, or if another user could have changed the cache.
    """
    shipped = runtime_folder() / "lib" / PLANNER
    if shipped.is_file():
        return shipped
    toolchain = find_toolchain()
    folder = runtime_objects(toolchain)[0].parent
    if not (folder / PLANNER).is_file():
        try:
            build_planner(toolchain, folder)
        except OSError:
            # The cache cannot be written, so the library goes into a temporary folder.
            folder = _ENDING.enter_context(temporary_folder("tcc-planner-"))
            return build_planner(toolchain, folder)
    return _built(toolchain, (PLANNER,))[0]


def build_planner(toolchain: Toolchain, folder: Path) -> Path:
    """Writes libtcc_plan.so into `folder`, completely or not at all, and returns its path."""
    flags = (*RUNTIME_FLAGS, "-fvisibility=default", f"-I{runtime_folder()}/include")
    return build_library(toolchain, folder / PLANNER, flags, planner_sources())


def build_library(
    toolchain: Toolchain, out: Path, flags: Sequence[str], sources: Sequence[Path]
) -> Path:
    """Compiles and links the shared library `out`, completely or not at all; returns its path.

    Like an artifact, it is linked against the functions of `c_library`. Functions that are missing
    there come from the machine's C library, in their newest version. Raises ToolError if the
    compiler fails, and OSError if the folder cannot be written.
    """
    with temporary_folder("making-", out.parent) as build_folder:
        for library in c_library(toolchain.arch):
            link_stand_in(toolchain, library, build_folder)
        link_flags = ("-shared", "-Wl,-z,defs", "-Wl,--as-needed", *c_library(toolchain.arch))
        command = (*toolchain.command, *flags, *map(str, sources), *link_flags)
        run_tool((*command, "-o", out.name), build_folder)
        (build_folder / out.name).chmod(0o755)
        return (build_folder / out.name).rename(out)


def link_stand_in(toolchain: Toolchain, library: str, folder: Path) -> None:
    """Writes a stand-in for a library: the names and versions of `c_library`, without code.

    With the machine's C library, the linker would choose the newest version of each function. The
    result would then not load on machines with an older C library.
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
    """Returns the paths of the files `names` of the compiled runtime.

    The runtime is compiled first if neither a wheel nor the cache provides it.
    """
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
    """Returns the functions of runtime/glibc.txt as library -> version -> names.

    `arch` is the compilers' name of an architecture.
    """
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
    """Compiles the runtime into `parent`/KEY, where `runtime_objects` looks for it; returns that
    folder.

    The arena planner goes into `parent`.
    """
    folder = parent / _runtime_key(toolchain)
    _build_runtime(toolchain, folder)
    build_planner(toolchain, parent)
    return folder


@cache
def _version(command: tuple[str, ...]) -> str:
    return next(iter(run_tool((*command, "--version"), Path.cwd()).splitlines()), "")


def _object_name(source: Path) -> str:
    """Returns the name of an object file.

    It includes the source's folder, because files of two folders may have one name.
    """
    return f"{source.parent.name}_{source.stem}.o"


@cache
def _runtime_key(toolchain: Toolchain) -> str:
    digest = hashlib.sha256()
    base = runtime_folder()
    headers = (*sorted((base / "include").glob("*.h")), *sorted((base / "src").rglob("*.h")))
    for path in (*headers, *runtime_sources(), *planner_sources(), base / "glibc.txt"):
        digest.update(path.relative_to(base).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    # The key has the compiler's version and arguments. It leaves out the compiler's path
    # (`command[0]`), which differs between machines and does not affect the code.
    flags = (*RUNTIME_FLAGS, *sorted(_RARE))
    digest.update("\0".join((toolchain.version, *toolchain.command[1:], *flags)).encode())
    digest.update(toolchain.arch.encode())
    return digest.hexdigest()[:32]


class _UnwritableError(ToolError):
    """Raised if the cache cannot be written, so that later processes have to compile again."""


def _build_runtime(toolchain: Toolchain, folder: Path) -> None:
    """Compiles into a new folder and then renames it, because another process may do the same."""
    with ExitStack() as ending:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            build_folder = ending.enter_context(temporary_folder("making-", folder.parent))
        except OSError as error:
            raise _UnwritableError(
                "the folder for compiled runtimes cannot be written",
                where=str(folder.parent),
                why=error.strerror or str(error),
                hint="set XDG_CACHE_HOME to a folder that can be written",
            ) from error
        try:
            _compile_runtime(toolchain, build_folder)
            for path in (build_folder, *build_folder.iterdir()):
                path.chmod(0o755)
            build_folder.rename(folder)
        except OSError as error:
            if not folder.is_dir():
                raise UserError(
                    "the compiled runtime cannot be stored", where=folder, why=error.strerror or ""
                ) from error


def _compile_runtime(toolchain: Toolchain, folder: Path) -> None:
    """Writes into `folder` the runtime's object files and the libraries to link them with."""
    source = runtime_folder() / "src"

    def compile_one(path: Path) -> None:
        relative = path.relative_to(source).as_posix()
        target = str(folder / _object_name(path))
        flags = (*runtime_flags(path), "-I../include", "-I.")
        run_tool((*toolchain.command, *flags, "-c", relative, "-o", target), source)

    with ThreadPoolExecutor() as pool:
        libraries = c_library(toolchain.arch)
        stand_ins = pool.map(lambda library: link_stand_in(toolchain, library, folder), libraries)
        list(chain(stand_ins, pool.map(compile_one, runtime_sources())))
