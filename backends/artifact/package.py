"""Packages: an artifact in a folder from which make, CMake and pkg-config build programs.

    include/tcc.h, include/tcc.hpp, include/NAME/NAME.h
    lib/NAME.so, lib/NAME.so.weights if the weights are in a side file
    lib/cmake/NAME/NAMEConfig.cmake, lib/pkgconfig/NAME.pc

No file names a folder, so a package may move. A folder can hold several packages. The model's own
header has a folder of its own, because a model may have the name of a system header.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tcc.backends.artifact.publish import folder_beside
from tcc.backends.artifact.toolchain import runtime_folder
from tcc.ir.container import SIDE_SUFFIX

_TEMPLATES = Path(__file__).parent


def package_library(folder: Path, name: str) -> Path:
    """Returns the path of the library in the package of the model `name`."""
    return folder / "lib" / f"{name}.so"


@contextmanager
def new_package(folder: Path, name: str, version: str) -> Iterator[Path]:
    """Yields the path at which the block writes the library with its header and side file.

    Then the package appears in `folder`: at once in a new folder, else file by file, the files that
    find the package last. `name` is a C identifier (`c_name`), and `version` the version in the
    file of pkg-config. Raises ToolError if a file cannot be written.
    """
    place = folder / name if os.path.isdir(folder) else folder
    with folder_beside(place, "the package", "choose another folder") as beside:
        package = beside / "package"
        library = package_library(package, name)
        yield library
        _write_headers(package, library)
        _write_texts(package, library, version)
        if place == folder:
            package.rename(folder)
        else:
            _publish(package, folder)


def _write_headers(package: Path, library: Path) -> None:
    """Moves the model's header to its folder, and copies the headers of tcc."""
    include = package / "include"
    header = include / library.stem / f"{library.stem}.h"
    header.parent.mkdir(parents=True)
    library.with_suffix(".h").rename(header)
    for name in ("tcc.h", "tcc.hpp"):
        shutil.copyfile(runtime_folder() / "include" / name, include / name)


def _write_texts(package: Path, library: Path, version: str) -> None:
    """Writes the files by which CMake and pkg-config find the package."""
    name, side = library.stem, library.with_name(library.name + SIDE_SUFFIX)
    files = (library.name, *((side.name,) if side.exists() else ()))
    separator = '" "${_tcc_prefix}/lib/'
    values = {"@NAME@": name, "@VERSION@": version, "@FILES@": separator.join(files)}
    places = {
        "package.cmake": f"cmake/{name}/{name}Config.cmake",
        "package.pc": f"pkgconfig/{name}.pc",
    }
    for template, place in places.items():
        text = (_TEMPLATES / template).read_text()
        for key, value in values.items():
            text = text.replace(key, value)
        path = library.parent / place
        path.parent.mkdir(parents=True)
        path.write_text(text)


def _publish(package: Path, folder: Path) -> None:
    """Renames the files to their places in an existing folder.

    The library follows its side file, and the files that find the library follow it.
    """
    files = [path for path in package.rglob("*") if path.is_file()]
    for path in sorted(
        files, key=lambda path: (path.suffix in (".cmake", ".pc"), path.suffix == ".so", path)
    ):
        place = folder / path.relative_to(package)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)
