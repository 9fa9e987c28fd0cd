"""The communication library libtcc_comm.so, built from runtime/src/comm.

    python -m tcc.backends.artifact.comm_library FOLDER

This compiles it into FOLDER for this machine. A wheel ships it in tcc/runtime/lib.
"""

import sys
from pathlib import Path

from tcc.backends.artifact.toolchain import Toolchain, build_library, find_toolchain, runtime_folder
from tcc.errors import file_errors

LIBRARY = "libtcc_comm.so"
# -O3 vectorises the loops of reduce.c. nodelete keeps the library loaded, because it registers
# handlers for forks and for the end of the process.
FLAGS = (
    "-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-g0",
    "-Wall", "-Wextra", "-Wl,-z,nodelete", f"-Wl,-soname,{LIBRARY}",
)  # fmt: skip


# C files that artifacts contain too, as part of the runtime.
_SHARED = ("alloc", "launchers", "notes", "sha256", "sized", "status")


def comm_sources() -> tuple[Path, ...]:
    """Returns the library's C files, in a fixed order."""
    source = runtime_folder() / "src"
    return (
        *(source / f"{name}.c" for name in _SHARED),
        *sorted((source / "comm").glob("*.c")),
    )


def build_comm_library(toolchain: Toolchain, folder: Path) -> Path:
    """Writes libtcc_comm.so into `folder`, completely or not at all, and returns its path.

    Raises ToolError if the compiler fails, and UserError if the folder cannot be written.
    """
    base = runtime_folder()
    flags = (*FLAGS, f"-I{base / 'include'}", f"-I{base / 'src'}")
    with file_errors("the communication library cannot be stored", folder):
        folder.mkdir(parents=True, exist_ok=True)
        return build_library(toolchain, folder / LIBRARY, flags, comm_sources())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(build_comm_library(find_toolchain(), Path(sys.argv[1])))
