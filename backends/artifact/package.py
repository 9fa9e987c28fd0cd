"""Packages: an artifact in a folder from which make, CMake, pkg-config and cargo build programs.

    include/tcc.h, include/tcc.hpp, include/NAME/NAME.h
    lib/NAME.so or lib/NAME.a, and beside it NAME.so.weights if the weights are in a side file
    lib/cmake/NAME/NAMEConfig.cmake, lib/pkgconfig/NAME.pc
    rust/NAME: the crate tcc_NAME

No file names a folder, so a package may move. A folder can hold several packages. The model's own
header has a folder of its own, because a model may have the name of a system header.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tcc.backends.artifact.crate import port_constants
from tcc.backends.artifact.emit import LIBRARIES, side_path
from tcc.backends.artifact.publish import folder_beside
from tcc.backends.artifact.toolchain import runtime_folder

LIBRARY_SUFFIXES = (".so", ".a")
_TEMPLATES = Path(__file__).parent
# The place of each text in a package. The same keys as in the texts stand for values.
_TEXTS = MappingProxyType(
    {
        "lib/cmake/@NAME@/@NAME@Config.cmake": _TEMPLATES / "package.cmake",
        "lib/pkgconfig/@NAME@.pc": _TEMPLATES / "package.pc",
        "rust/@NAME@/Cargo.toml": _TEMPLATES / "crate.toml",
        "rust/@NAME@/build.rs": _TEMPLATES / "crate_build.rs",
        "rust/@NAME@/src/lib.rs": _TEMPLATES / "crate_lib.rs",
    }
)
# The place of each file of the runtime, which has the same name.
_RUNTIME = (
    "include/tcc.h",
    "include/tcc.hpp",
    "rust/@NAME@/src/tcc.rs",
    "rust/@NAME@/src/tcc_abi.rs",
    "rust/@NAME@/src/tcc_elements.rs",
)


def package_library(folder: Path, name: str, suffix: str = ".so") -> Path:
    """Returns the path of the library in the package of the model `name`."""
    return folder / "lib" / f"{name}{suffix}"


@contextmanager
def new_package(folder: Path, name: str) -> Iterator[Path]:
    """Yields a folder in which the block writes the package of the model `name`.

    Then the package appears in `folder`: at once in a new folder, else file by file, the files that
    find the package last. Then libraries and side files of an older package of that name are
    removed. `name` is a C identifier (`c_name`). Raises ToolError if a file cannot be written.
    """
    place = folder / name if os.path.isdir(folder) else folder
    with folder_beside(place, "the package", "choose another folder") as beside:
        package = beside / "package"
        yield package
        if place == folder:
            package.rename(folder)
        else:
            _publish(package, folder, name)


def complete_package(
    library: Path, version: str, ports: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    """Adds the other files of a package to its library and the files beside it.

    `version` is the version in the file of pkg-config, and `ports` the result of `describe_ports`.
    """
    name, package, is_static = library.stem, library.parent.parent, library.suffix == ".a"
    side = side_path(library)
    files = [*([] if is_static else [library.name]), *([side.name] if side.exists() else [])]
    values = {
        "@NAME@": name,
        "@VERSION@": version,
        "@FILE@": library.name,
        "@RUNTIME_FILES@": " ".join(f'"${{_tcc_prefix}}/lib/{file}"' for file in files),
        "@LIBRARIES@": LIBRARIES if is_static else "",
        "@PORTS@": port_constants(ports),  # the last, because it may have any text
    }
    for place, template in _TEXTS.items():
        path = package / _filled(place, values)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(template.read_text(), values))
    header = package / "include" / name / f"{name}.h"
    header.parent.mkdir(parents=True)
    library.with_suffix(".h").rename(header)
    for place in _RUNTIME:
        path = package / _filled(place, values)
        shutil.copyfile(runtime_folder() / "include" / path.name, path)


def _filled(text: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        text = text.replace(key, value)
    return text


def _publish(package: Path, folder: Path, name: str) -> None:
    """Renames the files to their places in an existing folder, and removes older libraries.

    The library follows its side file, and the files that find the library follow it.
    """
    files = [path for path in package.rglob("*") if path.is_file()]
    finders = (".cmake", ".pc", ".rs", ".toml")
    for path in sorted(
        files, key=lambda path: (path.suffix in finders, path.suffix in LIBRARY_SUFFIXES, path)
    ):
        place = folder / path.relative_to(package)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)
    new = {folder / path.relative_to(package) for path in files}
    for library in (package_library(folder, name, suffix) for suffix in LIBRARY_SUFFIXES):
        for path in {library, side_path(library)} - new:
            path.unlink(missing_ok=True)
